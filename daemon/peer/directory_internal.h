/* What the files of the directory share; included by directory*.c only. */
#ifndef KVC_PEER_DIRECTORY_INTERNAL_H
#define KVC_PEER_DIRECTORY_INTERNAL_H

#include <hiredis/async.h>

#include "daemon/peer/state.h"

#define OWED_MAX     65536u /* commands without an answer: the server does not keep up */
#define SET_NAME_MAX 256u

enum directory_state {
    DIRECTORY_WAITING,
    DIRECTORY_RESOLVING,
    DIRECTORY_CONNECTING,
    DIRECTORY_TELLING, /* connected; what is here is being said */
    DIRECTORY_OPEN,
    DIRECTORY_STOPPED,
};

struct directory {
    struct directory_config config;
    enum directory_state state;
    redisAsyncContext *redis; /* NULL: there is none */
    uv_timer_t timer;
    uv_getaddrinfo_t resolving;
    uint32_t backoff_ms, owed;
    uint32_t silent_ms;                          /* in which something was owed and nothing came */
    bool stopping, quiet, timer_open, said_down; /* quiet: nothing is said of what is here */
    enum tier_kind walk_tier;
    uint32_t walk_slot;
    uint64_t told[(TABLE_PARTS + 63) / 64]; /* parts that it has sets of */
};

/* directory.c */
void directory_set_state(struct directory *directory, enum directory_state state);
bool directory_is_connected(const struct directory *directory);
/* So much time of its timer has passed; true: it was silent for too long, and is given up. */
bool directory_gives_up(struct directory *directory, uint32_t ms);
/* Whose reply a callback has, which is owed no more; NULL: nobody's any more. */
struct directory *directory_answered(redisAsyncContext *redis);

/* directory_say.c */
/* Of the set of keys that a node has of a part. */
void directory_set_name(const struct directory *directory, const char *node, uint32_t part,
                        char name[SET_NAME_MAX]);
void directory_tell(struct directory *directory); /* all that is here, which takes some turns */
void directory_take_back(struct directory *directory);

#endif
