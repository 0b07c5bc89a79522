/*
 * The library's own save copies before it returns; for the daemon's part of it alone, this plays a
 * worker that copies nothing.
 */
#include "client/ctl/bench.h"

#include <unistd.h>

#include "client/admin.h"
#include "client/client.h"

#define WARM_UP_SAVES 16
#define DEMOTION_US   1000 /* a batch of copies takes less */

static void write_words(kvc_client *client, const struct codec_save_reply *reply)
{
    for (uint32_t i = 0; i < reply->n_chunks; i++)
        __atomic_store_n(map_word(&client->map, reply->chunk_words[i]), reply->chunk_numbers[i],
                         __ATOMIC_RELEASE);
}

/*
 * A worker needs longer to copy than this needs to ask: until the next save the daemon has time to
 * make clean what it wants to have clean.
 */
static kvc_status wait_for_demotions(kvc_client *client)
{
    struct admin_stats stats;
    uint64_t seen = UINT64_MAX;
    kvc_status status = admin_stats(client, &stats);

    while (status == KVC_OK && stats.demotions != seen) {
        seen = stats.demotions;
        usleep(DEMOTION_US);
        status = admin_stats(client, &stats);
    }
    return status;
}

/* Requests of one connection take effect in their order: what comes next finds all published. */
static kvc_status publish(kvc_client *client, const struct codec_save_reply *reply)
{
    write_words(client, reply);
    rpc_hint(&client->rpc, WIRE_NUDGE);
    return wait_for_demotions(client);
}

kvc_status bench_save_once(struct bench *bench, struct bench_figure *figure, double *micros)
{
    kvc_client *client = bench->client;
    const struct part *part = part_of(client, bench->part);
    uint8_t keys[KVC_KEYS_MAX][KVC_KEY_BYTES];
    struct codec_save_entry entry = {
        .part = part->id, .epoch = part->epoch, .keys = keys[0], .n_keys = figure->keys};
    struct codec_save_reply reply;
    struct call call = {.type = WIRE_SAVE};
    struct wire_packet packet;
    double start;
    kvc_status status;

    for (uint32_t i = 0; i < figure->keys; i++, bench->saved++) {
        uint64_t name[2] = {bench->saved, UINT64_MAX};

        kvc_key(name, sizeof(name), keys[i]);
    }
    start = bench_now_micros();
    status = codec_put_save(&(struct codec_save){0}, &entry, 1, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->save_ms, &packet);
    if (status == KVC_OK && !codec_get_save_reply(&client->scratch, &packet, &reply))
        status = KVC_E_PROTOCOL;
    *micros = bench_now_micros() - start;
    if (status != KVC_OK)
        return status;
    bench->request_bytes = KVC_WIRE_HEADER_BYTES + call.len;
    bench->reply_bytes = KVC_WIRE_HEADER_BYTES + packet.body_len;
    figure->hits += reply.entries[0].n_assigned;
    return publish(client, &reply);
}

kvc_status bench_save_warm_up(struct bench *bench)
{
    struct bench_figure figure = {.kind = BENCH_SAVE, .keys = KVC_KEYS_MAX};
    kvc_status status = KVC_OK;
    double micros;

    for (uint32_t i = 0; i < WARM_UP_SAVES && status == KVC_OK; i++)
        status = bench_save_once(bench, &figure, &micros);
    return status;
}
