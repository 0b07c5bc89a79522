/*
 * WATCH: follows the events of blocks by a long poll. A request is answered at once if there is
 * something to tell, else when there is or its time is over. A client has one answer at a time on
 * its way, so that nothing queues for one that does not read.
 */
#ifndef KVC_API_WATCH_H
#define KVC_API_WATCH_H

#include "daemon/api/session.h"

struct watches;

kvc_status watches_create(struct api *api, struct watches **watches);
/* The rest when the loop runs next. NULL is fine. */
void watches_close(struct watches *watches);

/* Something has happened; the store may be in the middle of it. */
void watches_note(struct watches *watches, const struct store_event *event);

void watch_forget_session(struct session *session);

#endif
