/* Rows of lists for people: what list.c shares with those that have a file of their own. */
#ifndef KVC_API_LIST_H
#define KVC_API_LIST_H

#include "daemon/api/session.h"

#define LIST_VALUE_BYTES (2u * KVC_NAMESPACE_BYTES + 1u)

struct row {
    uint64_t id; /* rows come in its order */
    char text[MSG_LIST_COLUMNS][LIST_VALUE_BYTES];
};

/* Root and the daemon's own user see everybody, others only who shares their tenant. */
bool list_may_see(const struct session *asks, const char *tenant);

/* The row with the lowest id above `after` that the session may see; false: there is none. */
bool list_next_extents(const struct session *asks, uint64_t after, struct row *row);

#endif
