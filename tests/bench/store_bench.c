/*
 * How the cost of a block grows with the number of blocks: insert (a slot, its record, the index,
 * the eviction order), lookup, evict, at 10 thousand to 1 million blocks, and the bytes of metadata
 * for each slot in use. No tier's memory is touched.
 *
 *     store_bench [--json]
 *
 * Exit status 1 when a promise is not kept: the largest store costs at most 8 times what the
 * smallest does, and a slot in use at most 128 bytes.
 */
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "daemon/store/block.h"
#include "daemon/store/policy.h"
#include "daemon/store/slots.h"

#define SLOT_BYTES  4096u
#define RUN         1024u /* keys of a lookup */
#define ROUNDS      7     /* a figure is the median of as many */
#define RATIO_MAX   8.0
#define BYTES_MAX   128.0
#define LOOKUP_KEYS (256u * RUN) /* a round */

struct world {
    struct table *table;
    struct slots *slots;
    struct blocks *blocks;
    struct policy policy;
    uint64_t first, end; /* the keys in it are made of these numbers */
};

struct figures {
    uint64_t blocks;
    double insert_ns, evict_ns;
    double lookup_ns, scattered_ns, absent_ns; /* a key, in runs of RUN */
    double bytes;                              /* a slot in use */
};

/* Time on the processor: what else the machine does is not the store's cost. */
static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void make_key(uint64_t n, uint8_t key[KVC_KEY_BYTES])
{
    uint64_t words[2] = {mix(n + 1), mix(n + 0x1234567)};

    memcpy(key, words, sizeof(words));
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "store_bench: %s failed\n", what);
    exit(1);
}

static void insert(struct world *w)
{
    struct table_slot *record;
    uint32_t slot, id;

    must(slots_take(w->slots, 0, SLOT_BYTES, NULL, &slot), "taking a slot");
    record = slots_record(w->slots, slot);
    make_key(w->end, record->key);
    record->part = 1;
    record->epoch = 1;
    record->last_use = w->end++;
    table_slot_set_state(record, SLOT_FILLING);
    must(blocks_add(w->blocks, 1, TIER_HOST, slot, &id) == KVC_OK, "adding a block");
    table_slot_set_state(record, SLOT_READY);
    blocks_get(w->blocks, id)->state = BLOCK_READY;
    policy_lru.add(&w->policy, id);
}

static void evict(struct world *w)
{
    uint32_t id = policy_lru.victim(&w->policy);
    uint32_t slot = blocks_get(w->blocks, id)->slot[TIER_HOST];

    policy_lru.remove(&w->policy, id);
    blocks_unlink(w->blocks, id);
    table_slot_set_state(slots_record(w->slots, slot), SLOT_FREE);
    slots_give(w->slots, slot);
    blocks_drop(w->blocks, id);
    w->first++;
}

/* Nanoseconds a key for lookups of RUN keys; each starts somewhere else, or each key does. */
static double lookup(const struct world *w, bool scattered, bool absent, uint64_t *random)
{
    uint8_t(*keys)[KVC_KEY_BYTES] = malloc(LOOKUP_KEYS * sizeof(*keys));
    uint32_t ids[RUN], found = 0;
    double start;

    must(keys != NULL, "malloc");
    for (uint32_t i = 0; i < LOOKUP_KEYS; i++) {
        uint64_t span = w->end - w->first - RUN;

        if (scattered || i % RUN == 0)
            *random = mix(*random + 1);
        make_key((absent ? w->end : w->first) + *random % span + (scattered ? 0 : i % RUN),
                 keys[i]);
    }
    start = now_ns();
    for (uint32_t i = 0; i < LOOKUP_KEYS; i += RUN)
        found += blocks_find_run(w->blocks, 1, keys[i], RUN, NULL, NULL, ids);
    start = now_ns() - start;
    must(absent ? found == 0 : found == LOOKUP_KEYS, "finding the keys");
    free(keys);
    return start / LOOKUP_KEYS;
}

/* Absent keys one by one: a run would end at the first. */
static double lookup_absent(const struct world *w, uint64_t *random)
{
    const uint32_t n = 100000;
    uint8_t key[KVC_KEY_BYTES];
    double start = now_ns();

    for (uint32_t i = 0; i < n; i++) {
        *random = mix(*random + 1);
        make_key(w->end + *random % (1u << 30), key);
        must(blocks_find(w->blocks, 1, key) == BLOCK_NONE, "missing a key");
    }
    return (now_ns() - start) / n;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), compare);
    return values[ROUNDS / 2];
}

static void world_open(struct world *w, uint64_t blocks)
{
    /* Room for a few extents more, of which the geometry rounds some away. */
    const uint64_t budget[TIER_COUNT] = {0, blocks * SLOT_BYTES / 10 * 11 + (64ull << 20)};
    struct table_part part = {0};
    const uint32_t slice = SLOT_BYTES;
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    uint32_t index;

    memset(w, 0, sizeof(*w));
    must(table_create(budget, 1, &w->table) == KVC_OK, "making a table");
    must(table_add_tenant(w->table, "bench", 0, &part.tenant) == KVC_OK, "adding a tenant");
    must(table_add_namespace(w->table, 0, digest, NULL, &part.namespace_) == KVC_OK,
         "adding a namespace");
    must(table_add_layout(w->table, 16, &slice, 1, NULL, &part.layout) == KVC_OK,
         "adding a layout");
    must(table_add_part(w->table, &part, &index) == KVC_OK && index == 1, "adding a part");
    must(slots_create(w->table, TIER_HOST, &w->slots) == KVC_OK, "making slots");
    slots_grant(w->slots, 0, UINT32_MAX);
    must(blocks_create(w->table, &w->blocks) == KVC_OK, "making blocks");
    policy_init(&w->policy, &policy_lru, w->blocks, TIER_HOST);
}

static void world_close(struct world *w)
{
    blocks_destroy(w->blocks);
    slots_destroy(w->slots);
    table_destroy(w->table);
}

/* The heap, and the pages of the table that exist: everything there is. */
static uint64_t bytes_in_use(const struct world *w)
{
    struct mallinfo2 heap = mallinfo2();
    struct stat st = {0};

    if (w)
        fstat(table_fd(w->table), &st);
    return heap.uordblks + heap.hblkhd + (uint64_t)st.st_blocks * 512;
}

static struct figures measure(uint64_t blocks)
{
    struct figures f = {.blocks = blocks};
    uint64_t before = bytes_in_use(NULL), random = blocks;
    uint64_t batch = blocks / 10;
    double insert_ns[ROUNDS], evict_ns[ROUNDS], run[ROUNDS], scattered[ROUNDS], absent[ROUNDS];
    struct world w;

    world_open(&w, blocks);
    for (uint64_t i = 0; i < blocks; i++)
        insert(&w);
    f.bytes = (double)(bytes_in_use(&w) - before) / (double)blocks;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();

        for (uint64_t i = 0; i < batch; i++)
            evict(&w);
        evict_ns[round] = (now_ns() - start) / (double)batch;
        start = now_ns();
        for (uint64_t i = 0; i < batch; i++)
            insert(&w);
        insert_ns[round] = (now_ns() - start) / (double)batch;
        run[round] = lookup(&w, false, false, &random);
        scattered[round] = lookup(&w, true, false, &random);
        absent[round] = lookup_absent(&w, &random);
    }
    f.insert_ns = median(insert_ns);
    f.evict_ns = median(evict_ns);
    f.lookup_ns = median(run);
    f.scattered_ns = median(scattered);
    f.absent_ns = median(absent);
    world_close(&w);
    return f;
}

static void print_text(const struct figures *f, int n, const double ratio[3])
{
    printf("%10s %12s %12s %12s %14s %12s %10s\n", "blocks", "insert ns", "evict ns", "lookup ns",
           "scattered ns", "absent ns", "bytes");
    for (int i = 0; i < n; i++)
        printf("%10llu %12.1f %12.1f %12.1f %14.1f %12.1f %10.1f\n",
               (unsigned long long)f[i].blocks, f[i].insert_ns, f[i].evict_ns, f[i].lookup_ns,
               f[i].scattered_ns, f[i].absent_ns, f[i].bytes);
    printf("largest to smallest: insert %.1f x, lookup %.1f x, evict %.1f x (at most %.0f x)\n",
           ratio[0], ratio[1], ratio[2], RATIO_MAX);
}

static void print_json(const struct figures *f, int n, const double ratio[3])
{
    printf("{\"sizes\": [");
    for (int i = 0; i < n; i++)
        printf("%s{\"blocks\": %llu, \"insert_ns\": %.1f, \"evict_ns\": %.1f, \"lookup_ns\": %.1f, "
               "\"scattered_ns\": %.1f, \"absent_ns\": %.1f, \"metadata_bytes\": %.1f}",
               i ? ", " : "", (unsigned long long)f[i].blocks, f[i].insert_ns, f[i].evict_ns,
               f[i].lookup_ns, f[i].scattered_ns, f[i].absent_ns, f[i].bytes);
    printf("], \"ratio\": {\"insert\": %.2f, \"lookup\": %.2f, \"evict\": %.2f}}\n", ratio[0],
           ratio[1], ratio[2]);
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = {10000, 100000, 1000000};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct figures f[N];
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0, kept = true;
    double ratio[3];

    if (argc > 1 + json) {
        fprintf(stderr, "usage: %s [--json]\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < N; i++) {
        f[i] = measure(sizes[i]);
        kept = kept && f[i].bytes <= BYTES_MAX;
    }
    ratio[0] = f[N - 1].insert_ns / f[0].insert_ns;
    ratio[1] = f[N - 1].scattered_ns / f[0].scattered_ns;
    ratio[2] = f[N - 1].evict_ns / f[0].evict_ns;
    for (int i = 0; i < 3; i++)
        kept = kept && ratio[i] <= RATIO_MAX;
    (json ? print_json : print_text)(f, N, ratio);
    return kept ? 0 : 1;
}
