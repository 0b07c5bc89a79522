/*
 * What peers are asked for on behalf of a session: begun by a LOOKUP that says remote_ms, named in
 * its reply, waited for or declined by REMOTE.
 */
#ifndef KVC_API_REMOTE_H
#define KVC_API_REMOTE_H

#include "daemon/api/session.h"

/* Asks peers for the keys of a lookup that are not here, if it wants that and there are peers. */
void remote_begin(struct session *session, uint32_t ms, const struct store_lookup *lookup,
                  const struct store_lookup_result *result, struct msg_lookup_reply *reply);

void remote_forget_session(struct session *session);

#endif
