#include "client/ctl/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/content.h"
#include "client/ctl/pace.h"
#include "client/kvcache.h"

/* A daemon that is started again meanwhile is waited for, some seconds. */
#define START_TRIES 5000

#define BLOCK_TOKENS 512
#define SAVE_MS      1000  /* a replay would rather wait than lose a save */
#define ENDED_MS     60000 /* a copy by the daemon that has not ended by then never will */

struct worker {
    const struct worker_options *options;
    struct tally_worker *counts;
    kvc_client *client;
    kvc_part part;
    uint8_t *cache;    /* slices x n_blocks x slice_bytes: a layer's blocks lie together */
    uint32_t n_blocks; /* twice the longest request, so that ids are fresh */
    uint64_t block_bytes;
    uint32_t next_block;
    uint8_t *keys;    /* of the request in hand */
    uint32_t *blocks; /* its block ids */
    uint8_t *states;  /* of its saved keys */
    uint8_t *valid;   /* of its loaded blocks */
    int memfd;        /* the cache, if the daemon copies; else -1 */
    struct pace pace;
    enum tally_phase phase;
    uint64_t elapsed_ns, processor_ns; /* when it began */
    /* Saves of this request and of the one before, whose blocks are not used again yet. */
    struct saves {
        uint64_t *ids;
        uint32_t n;
    } saves[2];
};

static double now_micros(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What it has used since the phase before began is that one's. */
static void enter(struct worker *worker, enum tally_phase phase)
{
    uint64_t elapsed = clock_ns(CLOCK_MONOTONIC), processor = clock_ns(CLOCK_THREAD_CPUTIME_ID);

    atomic_fetch_add(&worker->counts->elapsed_ns[worker->phase], elapsed - worker->elapsed_ns);
    atomic_fetch_add(&worker->counts->processor_ns[worker->phase],
                     processor - worker->processor_ns);
    worker->phase = phase;
    worker->elapsed_ns = elapsed;
    worker->processor_ns = processor;
}

static int fail(struct worker *worker, const char *what, kvc_status status)
{
    snprintf(worker->counts->message, sizeof(worker->counts->message), "%s: %s (%s)", what,
             kvc_text(status), worker->client ? kvc_error(worker->client) : "");
    atomic_store(&worker->counts->failed, 1);
    return 1;
}

static bool is_session_loss(kvc_status status)
{
    return status == KVC_E_DISCONNECTED || status == KVC_E_PROTOCOL;
}

/* Without a daemon all is a miss, at a pace that leaves some of the trace for when it is back. */
static void reconnect(struct worker *worker)
{
    if (kvc_reconnect(worker->client) != KVC_OK)
        usleep(1000);
}

static uint8_t *slice_at(const struct worker *worker, uint32_t block, uint32_t slice)
{
    return worker->cache +
           ((uint64_t)slice * worker->n_blocks + block) * worker->options->slice_bytes;
}

static kvc_status register_part(struct worker *worker)
{
    const struct worker_options *o = worker->options;
    kvc_slice *slices = calloc(o->slices, sizeof(*slices));
    if (!slices)
        return KVC_E_NO_MEMORY;
    for (uint32_t s = 0; s < o->slices; s++)
        slices[s] = (kvc_slice){slice_at(worker, 0, s), o->slice_bytes, o->slice_bytes, 0};
    kvc_memory memory = {worker->memfd, worker->cache, worker->n_blocks * worker->block_bytes, 0};
    char weights[32];
    snprintf(weights, sizeof(weights), "replay-%016llx", (unsigned long long)o->seed);
    kvc_namespace names = {.model = "replay", .weights = weights, .block_tokens = BLOCK_TOKENS};
    kvc_part_desc desc = {.name = "replay",
                          .block_tokens = BLOCK_TOKENS,
                          .slices = slices,
                          .n_slices = o->slices,
                          .n_blocks = worker->n_blocks,
                          .copy = o->copy,
                          .memories = &memory,
                          .n_memories = o->copy == KVC_COPY_DAEMON};
    kvc_namespace_digest(&names, desc.namespace_digest);
    kvc_status status = kvc_register(worker->client, &desc, &worker->part);
    free(slices);
    return status;
}

static void *map_cache(struct worker *worker, uint64_t bytes)
{
    if (worker->options->copy != KVC_COPY_DAEMON)
        return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    worker->memfd = memfd_create("replay-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (worker->memfd < 0 || ftruncate(worker->memfd, (off_t)bytes) < 0)
        return MAP_FAILED;
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, worker->memfd, 0);
}

static bool allocate(struct worker *worker)
{
    uint32_t longest = worker->options->trace->longest;
    if (!longest)
        longest = 1;
    worker->n_blocks = 2 * longest;
    worker->block_bytes = (uint64_t)worker->options->slices * worker->options->slice_bytes;
    worker->memfd = -1;
    worker->cache = map_cache(worker, worker->n_blocks * worker->block_bytes);
    worker->keys = malloc((size_t)longest * KVC_KEY_BYTES);
    worker->blocks = malloc(longest * sizeof(*worker->blocks));
    worker->states = malloc(longest);
    worker->valid = malloc(longest);
    for (uint32_t i = 0; i < 2; i++)
        worker->saves[i].ids = malloc((longest / KVC_KEYS_MAX + 1) * sizeof(uint64_t));
    return worker->saves[0].ids && worker->saves[1].ids && worker->cache != MAP_FAILED &&
           worker->keys && worker->blocks && worker->states && worker->valid;
}

static void name_blocks(struct worker *worker, const struct trace_request *request)
{
    const uint64_t *ids = worker->options->trace->ids + request->first;
    for (uint32_t i = 0; i < request->n_ids; i++) {
        kvc_key(&ids[i], sizeof(ids[i]), worker->keys + (size_t)i * KVC_KEY_BYTES);
        worker->blocks[i] = worker->next_block;
        worker->next_block = (worker->next_block + 1) % worker->n_blocks;
    }
}

/*
 * Twice the longest request of blocks: those of the request before last are used again now, and the
 * daemon must be done with them.
 */
static kvc_status wait_for_saves(struct worker *worker)
{
    struct saves oldest = worker->saves[1];
    kvc_status status = KVC_OK;
    for (uint32_t i = 0; i < oldest.n && status == KVC_OK; i++)
        status = kvc_wait(worker->client, oldest.ids[i], ENDED_MS, NULL);
    worker->saves[1] = worker->saves[0];
    worker->saves[0] = (struct saves){oldest.ids, 0};
    return status;
}

/* Whatever the daemon still copies from or to this worker's memory has ended when this returns. */
static kvc_status settle(struct worker *worker)
{
    kvc_status status = kvc_suspend(worker->client, worker->part, ENDED_MS);
    return status == KVC_OK ? kvc_resume(worker->client, worker->part) : status;
}

static void poison(struct worker *worker, uint32_t count)
{
    enter(worker, TALLY_VERIFYING);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t s = 0; s < worker->options->slices; s++)
            memset(slice_at(worker, worker->blocks[i], s), 0xa5, worker->options->slice_bytes);
        pace_step(&worker->pace);
    }
}

static void verify(struct worker *worker, uint32_t count)
{
    enter(worker, TALLY_VERIFYING);
    for (uint32_t i = 0; i < count; i++) {
        if (!worker->valid[i])
            continue;
        for (uint32_t s = 0; s < worker->options->slices; s++) {
            if (!content_matches(worker->keys + (size_t)i * KVC_KEY_BYTES, s,
                                 slice_at(worker, worker->blocks[i], s),
                                 worker->options->slice_bytes))
                atomic_fetch_add(&worker->counts->mismatches, 1);
        }
        atomic_fetch_add(&worker->counts->verified_bytes, worker->block_bytes);
        pace_step(&worker->pace);
    }
}

/* What peers bring behind the lease, if they are asked, is leased with it. */
static kvc_status wait_for_peers(struct worker *worker, uint64_t request, uint32_t n,
                                 kvc_lease *lease)
{
    uint32_t blocks = 0;
    kvc_status status = KVC_OK;

    if (lease->fetch == 0)
        return KVC_OK;
    status = kvc_remote(worker->client, lease->fetch, worker->options->remote_ms, &blocks);
    if (status == KVC_E_DEADLINE)
        return kvc_decline(worker->client, lease->fetch);
    if (status != KVC_OK || blocks == 0)
        return status;
    status = kvc_lookup(worker->client, request, &worker->part, 1, worker->keys, n, 0, lease);
    if (status == KVC_OK && lease->fetch != 0)
        status = kvc_decline(worker->client, lease->fetch);
    return status;
}

/* Returns how many leading blocks of the request hold their bytes now. */
static kvc_status load_prefix(struct worker *worker, uint64_t request, uint32_t n, uint32_t *loaded)
{
    struct tally_worker *counts = worker->counts;
    kvc_lease lease;
    *loaded = 0;
    enter(worker, TALLY_ASKING);
    double start = now_micros();
    kvc_status status =
        kvc_lookup(worker->client, request, &worker->part, 1, worker->keys, n, 0, &lease);
    if (status != KVC_OK)
        return status;
    tally_sample(worker->options->tally, worker->options->index, TALLY_LOOKUP,
                 now_micros() - start);
    const uint32_t here = lease.blocks;
    status = wait_for_peers(worker, request, n, &lease);
    if (status != KVC_OK)
        return status;
    const uint32_t came = lease.blocks > here ? lease.blocks - here : 0;
    if (!lease.id)
        return KVC_OK;
    if (worker->options->verify)
        poison(worker, lease.blocks);
    memset(worker->valid, 0, lease.blocks);
    enter(worker, TALLY_LOADING);
    start = now_micros();
    kvc_load_args args = {.lease = lease.id,
                          .part = worker->part,
                          .count = lease.blocks,
                          .blocks = worker->blocks,
                          .valid = worker->valid,
                          .release = 1};
    status = kvc_load(worker->client, &args);
    if (status == KVC_OK) {
        tally_sample(worker->options->tally, worker->options->index, TALLY_LOAD,
                     now_micros() - start);
        atomic_fetch_add(&counts->hits[0], lease.gpu);
        atomic_fetch_add(&counts->hits[1], lease.host > came ? lease.host - came : 0);
        atomic_fetch_add(&counts->hits[2], came);
        atomic_fetch_add(&counts->bytes_loaded, lease.blocks * worker->block_bytes);
    } else if (!is_session_loss(status)) {
        atomic_fetch_add(&counts->refused_loads, 1);
        if (worker->options->copy == KVC_COPY_DAEMON && status == KVC_E_BUSY)
            status = settle(worker);
    }
    if (worker->options->verify)
        verify(worker, lease.blocks);
    while (*loaded < lease.blocks && worker->valid[*loaded])
        (*loaded)++;
    return is_session_loss(status) ? status : KVC_OK;
}

static kvc_status save_rest(struct worker *worker, uint32_t first, uint32_t n)
{
    struct tally_worker *counts = worker->counts;
    enter(worker, TALLY_GENERATING);
    for (uint32_t i = first; i < n; i++) {
        for (uint32_t s = 0; s < worker->options->slices; s++)
            content_write(worker->keys + (size_t)i * KVC_KEY_BYTES, s,
                          slice_at(worker, worker->blocks[i], s), worker->options->slice_bytes);
        pace_step(&worker->pace);
    }
    enter(worker, TALLY_SAVING);
    for (uint32_t at = first; at < n; at += KVC_KEYS_MAX) {
        uint32_t count = n - at < KVC_KEYS_MAX ? n - at : KVC_KEYS_MAX;
        kvc_save_entry entry = {.part = worker->part,
                                .keys = worker->keys + (size_t)at * KVC_KEY_BYTES,
                                .blocks = worker->blocks + at,
                                .n_keys = count,
                                .states = worker->states};
        kvc_save_args args = {.entries = &entry, .n_entries = 1};
        double start = now_micros();
        uint64_t save = 0;
        kvc_status status = kvc_save(worker->client, &args,
                                     worker->options->copy == KVC_COPY_DAEMON ? &save : NULL);
        if (save)
            worker->saves[0].ids[worker->saves[0].n++] = save;
        if (status == KVC_E_DEADLINE) {
            atomic_fetch_add(&counts->late_saves, 1);
            continue;
        }
        if (status != KVC_OK)
            return status;
        tally_sample(worker->options->tally, worker->options->index, TALLY_SAVE,
                     now_micros() - start);
        uint64_t by_state[4] = {0};
        for (uint32_t i = 0; i < count; i++)
            by_state[worker->states[i] & 3]++;
        atomic_fetch_add(&counts->present_blocks, by_state[KVC_KEY_HIT]);
        atomic_fetch_add(&counts->saved_blocks, by_state[KVC_KEY_SAVED]);
        atomic_fetch_add(&counts->pending_blocks, by_state[KVC_KEY_PENDING]);
        atomic_fetch_add(&counts->skipped_blocks, by_state[KVC_KEY_SKIPPED]);
        atomic_fetch_add(&counts->bytes_saved, by_state[KVC_KEY_SAVED] * worker->block_bytes);
    }
    return KVC_OK;
}

/* Memory that the daemon does not let go of cannot be used any more: the worker ends. */
static kvc_status fail_copy(struct worker *worker, kvc_status status)
{
    fail(worker, "a save by the daemon does not end", status);
    atomic_store(&worker->options->tally->stop, 1);
    return status;
}

static kvc_status replay_request(struct worker *worker, uint64_t index)
{
    const struct trace_request *request = &worker->options->trace->requests[index];
    kvc_status status = wait_for_saves(worker);
    if (status != KVC_OK && !is_session_loss(status))
        return fail_copy(worker, status);
    name_blocks(worker, request);
    uint32_t loaded = 0;
    if (status == KVC_OK)
        status = load_prefix(worker, index + 1, request->n_ids, &loaded);
    if (status == KVC_OK)
        status = save_rest(worker, loaded, request->n_ids);
    enter(worker, TALLY_REST);
    atomic_fetch_add(&worker->counts->requests, 1);
    atomic_fetch_add(&worker->counts->blocks, request->n_ids);
    pace_step(&worker->pace);
    return status;
}

static bool tries_on(const struct worker *worker, int tried)
{
    return tried < START_TRIES && !atomic_load(&worker->options->tally->stop);
}

/* Connects and registers; a daemon that goes away meanwhile is waited for. */
static int begin(struct worker *worker)
{
    kvc_options connect = {.socket = worker->options->socket,
                           .name = "replay",
                           .role = KVC_ROLE_WORKER,
                           .connect_ms = 10000,
                           .lookup_ms = SAVE_MS,
                           .save_ms = SAVE_MS,
                           .load_ms = SAVE_MS,
                           .remote_ms = worker->options->remote_ms};
    kvc_status status = kvc_connect(&connect, &worker->client);
    for (int i = 0; tries_on(worker, i) && is_session_loss(status); i++) {
        usleep(1000);
        status = kvc_connect(&connect, &worker->client);
    }
    if (status != KVC_OK)
        return fail(worker, "connect", status);
    status = register_part(worker);
    for (int i = 0; tries_on(worker, i) && is_session_loss(status); i++) {
        reconnect(worker);
        status = register_part(worker);
    }
    return status == KVC_OK ? 0 : fail(worker, "register", status);
}

static void replay_share(struct worker *worker)
{
    const struct worker_options *options = worker->options;
    uint64_t at = atomic_load(&worker->counts->next);
    while (at < options->trace->n_requests && !atomic_load(&options->tally->stop)) {
        kvc_status status = replay_request(worker, at);
        if (status != KVC_OK)
            atomic_fetch_add(&worker->counts->errors, 1);
        if (is_session_loss(status))
            reconnect(worker);
        else if (status == KVC_E_STALE) /* the namespace was flushed, and is used anew */
            (void)register_part(worker);
        at += options->tally->n_workers;
        atomic_store(&worker->counts->next, at);
    }
}

static void release(struct worker *worker)
{
    kvc_close(worker->client);
    if (worker->cache != MAP_FAILED)
        munmap(worker->cache, worker->n_blocks * worker->block_bytes);
    if (worker->memfd >= 0)
        close(worker->memfd);
    free(worker->saves[0].ids);
    free(worker->saves[1].ids);
    free(worker->keys);
    free(worker->blocks);
    free(worker->states);
    free(worker->valid);
}

int worker_run(const struct worker_options *options)
{
    struct worker worker = {.options = options,
                            .counts = &options->tally->workers[options->index],
                            .phase = TALLY_REST,
                            .elapsed_ns = clock_ns(CLOCK_MONOTONIC)};
    int rc;
    pace_begin(&worker.pace, options->pace);
    signal(SIGINT, SIG_IGN); /* the parent decides when to stop */
    signal(SIGHUP, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    rc = allocate(&worker) ? begin(&worker) : fail(&worker, "memory", KVC_E_NO_MEMORY);
    if (rc == 0)
        replay_share(&worker);
    release(&worker);
    enter(&worker, TALLY_REST);
    return rc;
}
