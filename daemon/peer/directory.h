/*
 * The directory: a Redis or Valkey that daemons share, in which each says which keys it has. It is
 * a hint and no more: who is asked for what follows from it, what is there is the source's answer.
 *
 *     kvcached:nodes                    set of names, each the address that the node listens on
 *     kvcached:node:NAME                there while the node lives: it has a time limit
 *     kvcached:keys:NAME:DIGEST:PRINT   set of keys of a namespace and layout, with a time limit
 *
 * Every node refreshes what is its own; what a dead one had goes by itself. After a connection was
 * lost everything is said anew. A directory that is down costs remote hits and nothing else.
 */
#ifndef KVC_PEER_DIRECTORY_H
#define KVC_PEER_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/status.h"

struct directory;
struct peers;

/* A node that lives has been found; again is harmless. */
typedef void directory_node_cb(struct peers *peers, const char *name);
/* Who has one of the keys that were asked for under this number: names, n of them. */
typedef void directory_hint_cb(struct peers *peers, uint64_t number, const char *const *names,
                               uint32_t n);

struct directory_config {
    struct peers *peers;
    const char *host, *port, *name; /* name: this node's; stay */
    uint32_t ttl_ms;
    directory_node_cb *node;
    directory_hint_cb *hint;
};
kvc_status directory_create(const struct directory_config *config, struct directory **directory);
/* Takes back what it has said, if it can, and closes; directory_destroy when it is not busy. */
void directory_stop(struct directory *directory);
/* The same, but stays connected; and says everything anew when it is over. */
void directory_drain(struct directory *directory, bool drain);
bool directory_is_busy(const struct directory *directory);
void directory_destroy(struct directory *directory); /* NULL is fine */

/* A key of a part is here from now on, or is no longer. */
void directory_note(struct directory *directory, uint32_t part, const uint8_t *key, bool here);

/*
 * Asks which of these nodes have any of the keys, all of them in one go. false: it cannot be asked
 * now, and there will be no answer.
 */
bool directory_ask(struct directory *directory, uint64_t number, uint32_t part, const uint8_t *keys,
                   uint32_t n_keys, const char *const *names, uint32_t n);

#endif
