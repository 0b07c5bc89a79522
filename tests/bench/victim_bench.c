/*
 * What a victim costs the store (S26): saves of keys into a full tier, each of which evicts a
 * block, with 10 thousand to 1 million blocks of 1 to 1000 namespaces that compete for it. No
 * tier's memory is touched; the daemon is said to have copied at once.
 *
 *     victim_bench [--json]
 *
 * Exit status 1 when a promise is not kept: the most blocks and namespaces cost at most 8 times
 * what the fewest do.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/store/figures.h"
#include "daemon/store/store.h"

#define SLOT_BYTES 4096u
#define RUN        8u /* keys of a save: less than a share */
#define ROUNDS     7  /* the figure is the median of as many */
#define RATIO_MAX  8.0
#define OWNERS_MAX 16u
#define SAVES      2000u /* of a round */

struct world {
    struct store *store;
    uint32_t n_namespaces;
    struct owner *owners[OWNERS_MAX]; /* each has registered KVC_PARTS_MAX of them */
    struct store_part_info *parts;
    uint64_t next; /* keys are made of these numbers */
};

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "victim_bench: %s failed\n", what);
    exit(1);
}

static kvc_status no_copy(void *mover, const struct move *move, move_done_cb *done, void *arg)
{
    (void)mover, (void)move, (void)done, (void)arg;
    return KVC_E_DEVICE;
}

static void world_open(struct world *w, uint64_t blocks, uint32_t namespaces)
{
    static const struct mover_ops mover = {.copy = no_copy};
    const struct store_config config = {
        .budget = {blocks * SLOT_BYTES, 0},
        .boot_epoch = 1,
        .tenant_share = UINT32_MAX,
        .lease_ms_max = KVC_LEASE_MS_MAX,
        .tuning = {.lease_ms = KVC_LEASE_MS_DEFAULT,
                   .save_proof_ms = KVC_SAVE_PROOF_MS,
                   .moving_bytes_max = 1u << 20},
        .mover_ops = &mover,
    };
    const uint32_t slice = SLOT_BYTES;
    uint32_t tenant;

    memset(w, 0, sizeof(*w));
    w->n_namespaces = namespaces;
    w->parts = calloc(namespaces, sizeof(*w->parts));
    must(w->parts && store_create(&config, &w->store) == KVC_OK, "making a store");
    must(store_tenant(w->store, "bench", UINT32_MAX, &tenant) == KVC_OK, "adding a tenant");
    for (uint32_t i = 0; i < namespaces; i++) {
        struct owner **owner = &w->owners[i / KVC_PARTS_MAX];
        const struct owner_identity identity = {.tenant = tenant, .role = STORE_ROLE_WORKER};
        uint8_t digest[KVC_NAMESPACE_BYTES] = {(uint8_t)i, (uint8_t)(i >> 8)};
        const struct store_part part = {
            .namespace_digest = digest, .slice_bytes = &slice, .n_slices = 1, .block_tokens = 16};
        struct refusal why;

        if (!*owner)
            must(store_owner_open(w->store, &identity, NULL, owner) == KVC_OK, "a session");
        must(store_register(w->store, *owner, &part, &w->parts[i], &why) == KVC_OK, "a part");
    }
}

static void world_close(struct world *w)
{
    store_destroy(w->store);
    free(w->parts);
}

/* One save of a namespace, published at once. */
static void save(struct world *w, uint32_t ns)
{
    static uint64_t keys[RUN][2];
    static uint8_t states[RUN];
    static struct store_location locations[RUN];
    static struct store_chunk chunks[RUN];
    const struct store_save_entry entry = {.part = w->parts[ns].part,
                                           .epoch = w->parts[ns].epoch,
                                           .keys = (const uint8_t *)keys,
                                           .n_keys = RUN};
    const struct store_save req = {.entries = &entry, .n_entries = 1, .by_daemon = true};
    struct store_save_result result = {.states = states, .locations = locations, .chunks = chunks};
    struct save *open;
    struct refusal why;
    uint32_t short_of;

    for (uint32_t i = 0; i < RUN; i++, w->next++) {
        keys[i][0] = w->next * 0x9E3779B97F4A7C15ull;
        keys[i][1] = w->next;
    }
    must(store_save_open(w->store, w->owners[ns / KVC_PARTS_MAX], &req, &open, &short_of, &why) ==
             KVC_OK,
         "a save");
    store_save_seal(w->store, open, &result);
    for (uint32_t c = 0; c < result.n_chunks; c++)
        store_chunk_copied(w->store, open, c, NULL, KVC_OK);
    store_tick(w->store);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Nanoseconds a key, saved into a full tier. */
static double measure(uint64_t blocks, uint32_t namespaces)
{
    const uint64_t runs = blocks / RUN + namespaces + 8;
    double each[ROUNDS];
    struct store_stats before, after;
    struct world w;

    world_open(&w, blocks, namespaces);
    for (uint64_t i = 0; i < runs; i++)
        save(&w, (uint32_t)(i % namespaces));
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();

        store_stats(w.store, &before);
        for (uint32_t i = 0; i < SAVES; i++)
            save(&w, (i * 7919u) % namespaces);
        each[round] = (now_ns() - start) / ((double)SAVES * RUN);
        store_stats(w.store, &after);
        must(after.evictions - before.evictions > SAVES * RUN / 2, "evicting");
    }
    world_close(&w);
    qsort(each, ROUNDS, sizeof(each[0]), compare);
    return each[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = {10000, 100000, 1000000};
    static const uint32_t counts[] = {1, 30, 1000};
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    double first = 0, last = 0;

    printf(json ? "{\"victims\": [" : "%10s %12s %12s\n", "blocks", "namespaces", "ns a key");
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            last = measure(sizes[i], counts[k]);
            first = first > 0 ? first : last;
            printf(json ? "%s{\"blocks\": %llu, \"namespaces\": %u, \"ns\": %.1f}"
                        : "%s%10llu %12u %12.1f\n",
                   json && (i || k) ? ", " : "", (unsigned long long)sizes[i], counts[k], last);
        }
    printf(json ? "], \"ratio\": %.2f}\n" : "most to fewest: %.1f x\n", last / first);
    return last / first <= RATIO_MAX ? 0 : 1;
}
