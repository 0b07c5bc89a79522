/*
 * The latest events of blocks, of all tenants, numbered from 1: a ring that forgets the oldest. To
 * note one costs the same whether anybody reads or not; who reads is never waited for, and told how
 * many events it is too late for.
 */
#ifndef KVC_API_FEED_H
#define KVC_API_FEED_H

#include "daemon/api/access.h"
#include "daemon/conn/message.h"
#include "daemon/store/store.h"

struct feed;

kvc_status feed_create(struct feed **feed);
void feed_destroy(struct feed *feed); /* NULL is fine */

void feed_note(struct feed *feed, const struct store_event *event);
uint64_t feed_last(const struct feed *feed); /* 0: there was none yet */

/* How far a reader has come, and what it may see and wants to. */
struct feed_reader {
    uint64_t after;
    uint32_t tenant;                /* TABLE_NONE: all */
    const struct access_door *door; /* whose namespaces it may see; NULL: all */
    bool has_digest;
    uint8_t digest[KVC_NAMESPACE_BYTES];
};

#define FEED_READ_MAX 8192u /* events that one call looks at */

/*
 * Fills sequences, after, lost, more and all that belongs to events of the reply, at most limit of
 * them, and moves the reader on, also over what is not for it. Returns how many were looked at.
 */
uint32_t feed_read(const struct feed *feed, const struct table *table, struct feed_reader *reader,
                   uint32_t limit, struct msg_watch_reply *reply);

#endif
