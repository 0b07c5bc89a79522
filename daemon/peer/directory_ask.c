/* Who has one of these keys, as far as the directory knows. */
#ifdef KVC_DIRECTORY

#include <stdio.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/peer/directory_internal.h"

/* A question to several nodes, answered when the last of them is. */
struct question {
    struct directory *directory;
    uint64_t number;
    uint32_t n, n_left, n_found;
    const char *found[PEERS_MAX];
    struct {
        struct question *question;
        char name[PEER_NAME_MAX];
    } nodes[PEERS_MAX];
};

static bool has_any(const redisReply *reply)
{
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY)
        return false;
    for (size_t i = 0; i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer != 0)
            return true;
    return false;
}

static void node_cb(redisAsyncContext *redis, void *reply, void *arg)
{
    struct question **slot = arg;
    struct question *q = *slot;
    const uint32_t i =
        (uint32_t)(((char *)slot - (char *)q->nodes) / (ptrdiff_t)sizeof(q->nodes[0]));

    (void)directory_answered(redis);
    if (has_any(reply))
        q->found[q->n_found++] = q->nodes[i].name;
    if (--q->n_left > 0)
        return;
    q->directory->config.hint(q->directory->config.peers, q->number, q->found, q->n_found);
    mem_free(q);
}

bool directory_ask(struct directory *d, uint64_t number, uint32_t part, const uint8_t *keys,
                   uint32_t n_keys, const char *const *names, uint32_t n)
{
    const char *argv[2 + KVC_KEYS_MAX];
    size_t lens[2 + KVC_KEYS_MAX];
    struct question *q;

    if (!directory_is_connected(d) || d->stopping || n == 0 || d->owed > OWED_MAX)
        return false;
    q = mem_zalloc(sizeof(*q));
    if (q == NULL)
        return false;
    q->directory = d;
    q->number = number;
    argv[0] = "SMISMEMBER";
    lens[0] = strlen(argv[0]);
    for (uint32_t k = 0; k < n_keys; k++) {
        argv[2 + k] = (const char *)keys + (size_t)k * KVC_KEY_BYTES;
        lens[2 + k] = KVC_KEY_BYTES;
    }
    for (uint32_t i = 0; i < n; i++) {
        char set[SET_NAME_MAX];

        q->nodes[i].question = q;
        snprintf(q->nodes[i].name, sizeof(q->nodes[i].name), "%s", names[i]);
        directory_set_name(d, names[i], part, set);
        argv[1] = set;
        lens[1] = strlen(set);
        if (redisAsyncCommandArgv(d->redis, node_cb, &q->nodes[i].question, (int)(2 + n_keys), argv,
                                  lens) == REDIS_OK) {
            q->n_left++;
            d->owed++;
        }
    }
    if (q->n_left > 0)
        return true;
    mem_free(q);
    return false;
}

#endif
