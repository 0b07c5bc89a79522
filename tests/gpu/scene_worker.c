#include "tests/gpu/scene.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"

void worker_register_as(struct worker *w, uint8_t name)
{
    kvc_slice slices[SCENE_SLICES];
    kvc_part_desc desc = {
        .name = "scene",
        .block_tokens = 16,
        .slices = slices,
        .n_slices = SCENE_SLICES,
        .n_blocks = w->n_blocks,
        .copy = w->by_daemon ? KVC_COPY_DAEMON : KVC_COPY_WORKER,
    };

    memset(desc.namespace_digest, name, sizeof(desc.namespace_digest));
    for (uint32_t i = 0; i < SCENE_SLICES; i++)
        slices[i] = (kvc_slice){
            .base = (void *)(uintptr_t)(w->memory + (uint64_t)i * w->n_blocks * SCENE_SLICE_BYTES),
            .stride = SCENE_SLICE_BYTES,
            .bytes = SCENE_SLICE_BYTES,
        };
    w->registered = kvc_register(w->client, &desc, &w->part);
    if (w->may_be_refused)
        return;
    if (w->registered == KVC_E_UNSUPPORTED && !pack_cuda_built())
        scene_waive("the library was built without nvcc");
    else
        KVC(w, w->registered);
}

// Two MiB at a time, one behind the other. Lives as long as the process.
static uint64_t map_pieces(struct worker *w, int ordinal, uint64_t bytes)
{
    const uint64_t piece = 2 << 20;
    const struct cuda_allocation allocation = {
        .type = 1, .handle_types = CUDA_HANDLE_FD, .location = {1, ordinal}};
    const struct cuda_access access = {{1, ordinal}, CUDA_ACCESS_READWRITE};
    uint64_t memory, handle = 0;
    void *address = NULL;

    bytes = (bytes + piece - 1) / piece * piece;
    CUDA(w, vmm_reserve(&address, bytes, 0, 0, 0));
    memory = (uintptr_t)address;
    for (uint64_t at = 0; at < bytes; at += piece) {
        CUDA(w, vmm_create(&handle, piece, &allocation, 0));
        CUDA(w, vmm_map(memory + at, piece, 0, handle, 0));
        CUDA(w, vmm_release(handle));
        CUDA(w, vmm_access(memory + at, piece, &access, 1));
    }
    return memory;
}

void worker_open_gpu(struct worker *w, const struct worker_options *options)
{
    const uint64_t bytes = (uint64_t)w->n_blocks * SCENE_BLOCK_BYTES;
    char why[CUDA_WHY_MAX];
    void *memory = NULL;
    int count = 0;

    if (cuda_driver_open(&w->driver, why) != KVC_OK)
        scene_waive(why);
    CUDA(w, device_count(&count));
    if (options->ordinal >= count)
        scene_waive("not so many GPUs");
    CUDA(w, context_retain(&w->context, options->ordinal));
    CUDA(w, context_push(w->context));
    CUDA(w, stream_create(&w->stream, CUDA_STREAM_NON_BLOCKING));
    w->mapped = options->mapped;
    w->pinned = options->pinned;
    if (w->mapped) {
        w->memory = map_pieces(w, options->ordinal, bytes);
    } else if (w->pinned) {
        CUDA(w, host_alloc(&memory, bytes, 3)); // portable, for devices too
        w->memory = (uintptr_t)memory;
    } else {
        CUDA(w, memory_alloc(&w->memory, bytes));
    }
    w->mirror = malloc(bytes);
    CHECK(w->mirror != NULL);
}

void worker_open_with(struct worker *w, const struct scene_daemon *d,
                      const struct worker_options *options)
{
    const kvc_options connect = {
        .socket = d->socket,
        .role = options->role,
        .connect_ms = SCENE_MS,
        .lookup_ms = SCENE_MS,
        .save_ms = SCENE_MS,
        .load_ms = SCENE_MS,
        .remote_ms = options->remote_ms,
    };
    kvc_status status;

    *w = (struct worker){.n_blocks = options->n_blocks,
                         .by_daemon = options->by_daemon,
                         .may_be_refused = options->may_be_refused};
    worker_open_gpu(w, options);
    status = kvc_connect(&connect, &w->client);
    if (status != KVC_OK)
        fprintf(stderr, "cannot connect: %s\n", kvc_text(status));
    CHECK(status == KVC_OK && strcmp(kvc_device(w->client), "cuda") == 0);
    worker_register_as(w, 7);
}

void worker_open(struct worker *w, const struct scene_daemon *d, kvc_role role, uint32_t n_blocks)
{
    worker_open_with(w, d, &(struct worker_options){.role = role, .n_blocks = n_blocks});
}

void worker_close(struct worker *w)
{
    kvc_close(w->client);
    if (w->pinned)
        CUDA(w, host_free((void *)(uintptr_t)w->memory));
    else if (!w->mapped)
        CUDA(w, memory_free(w->memory));
    CUDA(w, stream_destroy(w->stream));
    free(w->mirror);
}

// Spins until so many nanoseconds have passed.
static const char hold_code[] = ".version 7.0\n"
                                ".target sm_80\n"
                                ".address_size 64\n"
                                ".visible .entry hold(.param .u64 ns)\n"
                                "{\n"
                                "  .reg .u64 %rd<4>;\n"
                                "  .reg .pred %p<2>;\n"
                                "  ld.param.u64 %rd1, [ns];\n"
                                "  mov.u64 %rd2, %globaltimer;\n"
                                "  add.u64 %rd1, %rd2, %rd1;\n"
                                "again:\n"
                                "  mov.u64 %rd3, %globaltimer;\n"
                                "  setp.lt.u64 %p1, %rd3, %rd1;\n"
                                "  @%p1 bra again;\n"
                                "  ret;\n"
                                "}\n";

void worker_hold(struct worker *w, uint64_t us)
{
    int *fake = dlsym(w->driver.library, "kvc_fake_hold");
    uint64_t ns = us * 1000u;
    void *module, *parameters[] = {&ns};

    if (fake != NULL) {
        *fake = 1;
        return;
    }
    if (w->hold == NULL) {
        if (w->driver.module_load(&module, hold_code) != 0)
            scene_waive("the driver compiles no PTX");
        CUDA(w, module_function(&w->hold, module, "hold"));
    }
    CUDA(w, launch(w->hold, 1, 1, 1, 1, 1, 1, 0, w->stream, parameters, NULL));
}

void worker_sync(struct worker *w)
{
    CUDA(w, stream_synchronize(w->stream));
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static void fill_slice(uint8_t *at, uint32_t key, uint32_t slice)
{
    uint64_t state = mix(scene_seed() ^ ((uint64_t)key << 32 | slice));
    uint64_t *words = (uint64_t *)(void *)at;

    for (uint32_t i = 0; i < SCENE_SLICE_BYTES / 8; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
}

static uint8_t *slice_of(const struct worker *w, uint32_t block, uint32_t slice)
{
    return w->mirror + ((uint64_t)slice * w->n_blocks + block) * SCENE_SLICE_BYTES;
}

static void to_device(struct worker *w)
{
    CUDA(w, copy_async(w->memory, (uintptr_t)w->mirror, (size_t)w->n_blocks * SCENE_BLOCK_BYTES,
                       w->stream));
    worker_sync(w);
}

void worker_fill(struct worker *w, uint32_t first_key, uint32_t n)
{
    for (uint32_t b = 0; b < n; b++)
        for (uint32_t s = 0; s < SCENE_SLICES; s++)
            fill_slice(slice_of(w, b, s), first_key + b, s);
    to_device(w);
}

uint64_t worker_fill_prepare(struct worker *w, uint32_t first_key, uint32_t n)
{
    const size_t bytes = (size_t)w->n_blocks * SCENE_BLOCK_BYTES;
    uint64_t prepared = 0;

    worker_fill(w, first_key, n);
    CUDA(w, memory_alloc(&prepared, bytes));
    CUDA(w, copy_async(prepared, w->memory, bytes, w->stream));
    worker_poison(w);
    return prepared;
}

void worker_fill_enqueue(struct worker *w, uint64_t prepared)
{
    CUDA(w, copy_async(w->memory, prepared, (size_t)w->n_blocks * SCENE_BLOCK_BYTES, w->stream));
}

void worker_poison(struct worker *w)
{
    CUDA(w, set_async(w->memory, 0xee, (size_t)w->n_blocks * SCENE_BLOCK_BYTES, w->stream));
    worker_sync(w);
}

uint32_t worker_wrong(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t wanted[SCENE_SLICE_BYTES] __attribute__((aligned(8)));
    uint32_t wrong = 0;

    CUDA(w, copy_async((uintptr_t)w->mirror, w->memory, (size_t)w->n_blocks * SCENE_BLOCK_BYTES,
                       w->stream));
    worker_sync(w);
    for (uint32_t b = 0; b < n; b++) {
        bool same = true;

        for (uint32_t s = 0; s < SCENE_SLICES && same; s++) {
            fill_slice(wanted, first_key + b, s);
            same = memcmp(wanted, slice_of(w, b, s), SCENE_SLICE_BYTES) == 0;
        }
        wrong += !same;
    }
    return wrong;
}

// Slots follow each other from an extent's begin on; a block begins with its first slice.
static uint32_t count_in_extent(const uint8_t *extent, uint64_t bytes, uint32_t first_key,
                                uint32_t n)
{
    uint8_t wanted[SCENE_SLICE_BYTES] __attribute__((aligned(8)));
    uint32_t count = 0;

    for (uint32_t k = 0; k < n; k++) {
        fill_slice(wanted, first_key + k, 0);
        for (uint64_t at = 0; at + SCENE_BLOCK_BYTES <= bytes; at += SCENE_BLOCK_BYTES)
            count += memcmp(extent + at, wanted, sizeof(wanted)) == 0;
    }
    return count;
}

uint32_t worker_in_tier(struct worker *w, uint32_t first_key, uint32_t n, int ordinal)
{
    const struct map_tier *tier = &w->client->map.tiers[0];
    uint8_t *extent = malloc(tier->extent_bytes);
    uint32_t count = 0;

    CHECK(extent != NULL);
    for (uint32_t i = 0; i < tier->n_extents; i++) {
        const uint64_t at = (uintptr_t)tier->base + i * tier->extent_bytes;
        int on = -1;

        if (tier->states[i] != MAP_MAPPED)
            continue;
        CUDA(w, pointer_attribute(&on, CUDA_POINTER_DEVICE_ORDINAL, at));
        if (ordinal >= 0 && on != ordinal)
            continue;
        CUDA(w, copy_async((uintptr_t)extent, at, tier->extent_bytes, w->stream));
        worker_sync(w);
        count += count_in_extent(extent, tier->extent_bytes, first_key, n);
    }
    free(extent);
    return count;
}

void scene_keys(uint32_t first_key, uint32_t n, uint8_t *keys)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t words[2] = {mix(first_key + i + 1), first_key + i};

        memcpy(keys + (size_t)i * KVC_KEY_BYTES, words, sizeof(words));
    }
}

uint64_t worker_save_enqueue(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    uint32_t blocks[KVC_KEYS_MAX];
    const kvc_save_entry entry = {.part = w->part, .keys = keys, .blocks = blocks, .n_keys = n};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1, .stream = w->stream};
    uint64_t save = 0;

    scene_keys(first_key, n, keys);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = i;
    KVC(w, kvc_save(w->client, &args, &save));
    return save;
}

void worker_put(struct worker *w, uint32_t first_key, uint32_t n)
{
    kvc_outcome outcome = {0};
    uint64_t save;

    worker_fill(w, first_key, n);
    save = worker_save_enqueue(w, first_key, n);
    KVC(w, kvc_wait(w->client, save, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == n);
}

void worker_pin(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    uint32_t pinned = 0;

    scene_keys(first_key, n, keys);
    KVC(w, kvc_pin(w->client, w->part, keys, n, 600, &pinned));
    CHECK(pinned == n);
}

uint32_t worker_lookup(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];

    scene_keys(first_key, n, keys);
    KVC(w, kvc_lookup(w->client, 0, &w->part, 1, keys, n, 0, &w->lease));
    return w->lease.blocks;
}

kvc_status worker_load(struct worker *w, uint8_t *valid)
{
    uint32_t blocks[KVC_KEYS_MAX];
    uint64_t load = 0;
    const kvc_load_args args = {
        .lease = w->lease.id,
        .part = w->part,
        .count = w->lease.blocks,
        .blocks = blocks,
        .stream = w->stream,
        .load = &load,
    };
    kvc_status status;

    for (uint32_t i = 0; i < w->lease.blocks; i++)
        blocks[i] = i;
    status = kvc_load(w->client, &args);
    return status == KVC_OK ? kvc_load_result(w->client, load, SCENE_MS, valid) : status;
}

void worker_verify(struct worker *w, uint32_t first_key, uint32_t n)
{
    worker_poison(w);
    CHECK(worker_lookup(w, first_key, n) == n);
    KVC(w, worker_load(w, NULL));
    CHECK(worker_wrong(w, first_key, n) == 0);
    KVC(w, kvc_release(w->client, w->lease.id));
}

void worker_put_patiently(struct worker *w, uint32_t first_key, uint32_t n)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    uint32_t there = 0;

    worker_fill(w, first_key, n);
    while (there < n) {
        const uint64_t save = worker_save_enqueue(w, first_key, n);
        kvc_outcome outcome;

        if (save != 0)
            KVC(w, kvc_wait(w->client, save, SCENE_MS, &outcome));
        there = worker_lookup(w, first_key, n);
        if (there > 0)
            KVC(w, kvc_release(w->client, w->lease.id));
        CHECK(scene_now_us() < until_us);
        usleep(5000);
    }
}

uint32_t worker_put_sets(struct worker *w, uint32_t first_key, uint32_t sets)
{
    const uint32_t each = w->n_blocks;
    uint32_t on_host = 0;

    for (uint32_t i = 0; i < sets; i++)
        worker_put_patiently(w, first_key + i * each, each);
    for (uint32_t i = 0; i < sets; i++) {
        worker_poison(w);
        CHECK(worker_lookup(w, first_key + i * each, each) == each);
        on_host += w->lease.host;
        KVC(w, worker_load(w, NULL));
        CHECK(worker_wrong(w, first_key + i * each, each) == 0);
        KVC(w, kvc_release(w->client, w->lease.id));
    }
    return on_host;
}

void worker_capture_is_refused(struct worker *w)
{
    uint8_t key[KVC_KEY_BYTES];
    uint32_t block = 0;
    const kvc_save_entry entry = {.part = w->part, .keys = key, .blocks = &block, .n_keys = 1};
    kvc_save_args args = {.entries = &entry, .n_entries = 1};
    int (*begin)(void *, int), (*end)(void *, void **);
    uint64_t save = 0;
    void *graph;

    scene_keys(1, 1, key);
    *(void **)&begin = dlsym(w->driver.library, "cuStreamBeginCapture_v2");
    *(void **)&end = dlsym(w->driver.library, "cuStreamEndCapture");
    args.stream = begin != NULL ? w->stream : (void *)0xca; // what the fake takes for capturing
    CHECK(begin == NULL || begin(w->stream, 1 /* of this thread */) == 0);
    CHECK(kvc_save(w->client, &args, &save) == KVC_E_BUSY);
    CHECK(strstr(kvc_error(w->client), "captured") != NULL);
    CHECK(begin == NULL || end(w->stream, &graph) == 0);
    worker_put(w, 1, 4);
    worker_verify(w, 1, 4);
}

bool scene_is_of_the_device(kvc_status status)
{
    return status == KVC_E_DEVICE || status == KVC_E_MAP || status == KVC_E_NO_MEMORY ||
           status == KVC_E_UNSUPPORTED;
}

void scene_play_try(const struct scene_daemon *d, void *arg)
{
    const uint32_t *first = arg;
    kvc_outcome outcome = {0};
    struct worker w;
    uint64_t save;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = SCENE_TRY,
                                              .mapped = *first / SCENE_TRY % 2 == 1,
                                              .by_daemon = true,
                                              .may_be_refused = true});
    if (w.registered == KVC_OK) {
        worker_fill(&w, *first, SCENE_TRY);
        save = worker_save_enqueue(&w, *first, SCENE_TRY);
        if (save != 0)
            KVC(&w, kvc_wait(w.client, save, SCENE_MS, &outcome));
        CHECK(outcome.status == KVC_OK || scene_is_of_the_device(outcome.status));
        worker_poison(&w);
        if (worker_lookup(&w, *first, SCENE_TRY) > 0) {
            uint8_t valid[SCENE_TRY] = {0};
            const uint32_t n = w.lease.blocks;

            if (worker_load(&w, valid) == KVC_OK)
                CHECK(worker_wrong(&w, *first, n) == 0);
            KVC(&w, kvc_release(w.client, w.lease.id));
        }
    } else {
        CHECK(scene_is_of_the_device(w.registered));
    }
    kvc_close(w.client);
}
