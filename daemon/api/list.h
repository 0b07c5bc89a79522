/* Rows of lists for people: what list.c shares with those that have a file of their own. */
#ifndef KVC_API_LIST_H
#define KVC_API_LIST_H

#include "daemon/api/session.h"
#include "daemon/store/walk.h"

#define LIST_VALUE_BYTES (2u * KVC_NAMESPACE_BYTES + 1u)

struct row {
    uint64_t id; /* rows come in its order */
    char text[MSG_LIST_COLUMNS][LIST_VALUE_BYTES];
};

/* Of a list that is long: where a page stands in it, and what it leaves out. */
struct list_walk {
    const struct session *asks;
    uint64_t cursor;                 /* behind what was looked at; the row's id */
    uint32_t steps;                  /* that this page may still take */
    const uint8_t *namespace_digest; /* NULL: of all */
    const char *key_prefix;          /* lower case; "": all */
};

/* Operators see everybody, others only who shares their tenant. */
bool list_may_see(const struct session *asks, const char *tenant);
/* What a door does not let through is not there for who came through it. */
bool list_may_name(const struct session *asks, const uint8_t digest[KVC_NAMESPACE_BYTES]);

/* n bytes as 2 n hex digits. */
void list_write_hex(const uint8_t *bytes, size_t n, char text[LIST_VALUE_BYTES]);

/* The row with the lowest id above `after` that the session may see; false: there is none. */
bool list_next_extents(const struct session *asks, uint64_t after, struct row *row);

/* The next row; its id is not filled. */
enum store_walk list_walk_leases(struct list_walk *walk, struct row *row);
enum store_walk list_walk_layouts(struct list_walk *walk, struct row *row);
enum store_walk list_walk_blocks(struct list_walk *walk, struct row *row);

#endif
