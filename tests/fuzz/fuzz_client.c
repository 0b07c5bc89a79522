/*
 * The library against a daemon that means it no good. The first byte says how many of the next
 * bytes are calls; the rest is what the daemon (hostile.h) makes of each request: the right reply,
 * the same with bytes changed, a refusal, any body, descriptors that are none to be trusted, a
 * notice, another number, or the end. Whatever it does, calls come back, in time, and nothing is
 * written outside the blocks that a call names.
 */
#include <pthread.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "tests/fuzz/hostile.h"

const char fuzz_name[] = "client";

#define SLICE_BYTES 4096u
#define BLOCKS      8u
#define GUARD_BYTES 4096u
#define CALLS_MAX   24u

struct user {
    kvc_client *client;
    struct fuzz_input calls;
    uint8_t *cache; /* GUARD_BYTES, BLOCKS of two slices, GUARD_BYTES */
    kvc_part part;
    kvc_lease lease;
    uint64_t save;
};

static void register_part(struct user *u)
{
    kvc_slice slices[2];
    kvc_part_desc desc = {.namespace_digest = "n",
                          .name = "fuzz",
                          .block_tokens = 16,
                          .slices = slices,
                          .n_slices = 2,
                          .n_blocks = BLOCKS};

    for (uint32_t s = 0; s < 2; s++)
        slices[s] = (kvc_slice){.base = u->cache + GUARD_BYTES + (size_t)s * BLOCKS * SLICE_BYTES,
                                .stride = SLICE_BYTES,
                                .bytes = SLICE_BYTES};
    (void)kvc_register(u->client, &desc, &u->part);
}

static void save(struct user *u, uint32_t n)
{
    static const uint32_t blocks[BLOCKS] = {3, 1, 2, 0, 7, 6, 5, 4};
    uint8_t keys[BLOCKS * KVC_KEY_BYTES] = {0}, states[BLOCKS];
    kvc_save_entry entry = {u->part, keys, blocks, n, states};
    kvc_save_args args = {.entries = &entry, .n_entries = 1};

    for (uint32_t i = 0; i < n; i++)
        keys[i * KVC_KEY_BYTES] = (uint8_t)(i + 1);
    (void)kvc_save(u->client, &args, &u->save);
}

static void load(struct user *u, uint32_t n)
{
    static const uint32_t blocks[BLOCKS] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint8_t valid[BLOCKS];
    kvc_load_args args = {
        .lease = u->lease.id, .part = u->part, .count = n, .blocks = blocks, .valid = valid};

    (void)kvc_load(u->client, &args);
}

static void lookup(struct user *u, uint32_t n, bool probe)
{
    uint8_t keys[BLOCKS * KVC_KEY_BYTES] = {0};
    uint32_t blocks;

    for (uint32_t i = 0; i < n; i++)
        keys[i * KVC_KEY_BYTES] = (uint8_t)(i + 1);
    if (probe)
        (void)kvc_probe(u->client, &u->part, 1, keys, n, &blocks);
    else if (kvc_lookup(u->client, 3, &u->part, 1, keys, n, 0, &u->lease) == KVC_OK)
        FUZZ_REQUIRE(u->lease.blocks <= n);
}

static void call(struct user *u, uint32_t what, uint32_t n)
{
    struct admin_stats stats;
    struct admin_list list;
    kvc_outcome outcome;
    uint32_t ms;

    switch (what) {
    case 0:
    case 1:
        lookup(u, n, what == 1);
        break;
    case 2:
        load(u, n);
        break;
    case 3:
        save(u, n);
        break;
    case 4:
        (void)kvc_wait(u->client, u->save, 1, &outcome);
        break;
    case 5:
        (void)kvc_cancel(u->client, u->save, 3, &outcome);
        break;
    case 6:
        (void)kvc_drain(u->client);
        break;
    case 7:
        (void)kvc_extend(u->client, u->lease.id, 5, &ms);
        break;
    case 8:
        (void)kvc_release(u->client, u->lease.id);
        break;
    case 9:
        (void)kvc_adopt(u->client, u->lease.token, u->part, 0, &u->lease);
        break;
    case 10:
        (void)kvc_reconnect(u->client);
        break;
    case 11:
        (void)kvc_dispatch(u->client);
        break;
    case 12:
        (void)kvc_unregister(u->client, u->part);
        break;
    case 13:
        (void)admin_stats(u->client, &stats);
        (void)admin_list(u->client, "clients", 0, 10, &list);
        break;
    case 14:
        (void)kvc_ping(u->client);
        break;
    default:
        register_part(u);
        break;
    }
    (void)strlen(kvc_error(u->client));
}

static void use(struct user *u, const char *socket, uint32_t n_calls, uint32_t role)
{
    kvc_options options = {.socket = socket,
                           .role = role % 4 == 3 ? KVC_ROLE_READER : KVC_ROLE_WORKER,
                           .connect_ms = 20,
                           .lookup_ms = 10,
                           .save_ms = 5};

    if (kvc_connect(&options, &u->client) != KVC_OK)
        return;
    register_part(u);
    while (n_calls-- > 0) {
        uint32_t code = fuzz_u8(&u->calls);

        call(u, code % 16, code / 16 % (BLOCKS + 1));
    }
    kvc_close(u->client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t cache_bytes = 2 * GUARD_BYTES + (size_t)2 * BLOCKS * SLICE_BYTES;
    struct fuzz_input in = {data, size};
    struct hostile hostile = {0};
    struct user user = {0};
    pthread_t thread;
    uint32_t head;
    size_t n_calls;

    if (size < 2)
        return 0;
    head = fuzz_u8(&in);
    user.calls.at = fuzz_bytes(&in, head / 4 % (CALLS_MAX + 1), &n_calls);
    user.calls.left = n_calls;
    hostile.in = in;
    hostile_open(&hostile);
    user.cache = malloc(cache_bytes);
    FUZZ_REQUIRE(user.cache != NULL);
    memset(user.cache, 0xa5, cache_bytes);
    FUZZ_REQUIRE(pthread_create(&thread, NULL, hostile_run, &hostile) == 0);
    use(&user, hostile.socket, (uint32_t)n_calls, head);
    hostile_stop(&hostile);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        FUZZ_REQUIRE(user.cache[i] == 0xa5 && user.cache[cache_bytes - 1 - i] == 0xa5);
    free(user.cache);
    hostile_close(&hostile);
    return 0;
}

void fuzz_end(void)
{
    hostile_end();
}
