/*
 * What the store tells its user: saves that have ended, room, owners that owe nothing. Collected
 * where it happens, delivered where nobody is surprised by it (see store_events).
 */
#ifndef KVC_STORE_EVENT_H
#define KVC_STORE_EVENT_H

#include "daemon/store/state.h"

bool event_is_due(const struct store *store);
void event_deliver(struct store *store);

#endif
