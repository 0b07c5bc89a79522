#include "tests/lib/engine.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/ctl/content.h"
#include "tests/lib/check_main.h"
#include "tests/lib/gpu.h"
#include "tests/lib/wait.h"

static const uint32_t slice_bytes[ENGINE_SLICES] = {4096, 1000, 8192};

#define BLOCK_BYTES  (4096u + 1000u + 8192u)
#define MEMORY_BYTES ((size_t)ENGINE_BLOCKS * BLOCK_BYTES)
#define POISON       0xa5
#define TRAP_BYTES   4096u // a page

// Slice s of all blocks lies behind slice s - 1 of all blocks, as an engine's layers do.
static uint8_t *slice_at(const struct engine *e, uint32_t slice, uint32_t block)
{
    uint8_t *at = e->memory;

    for (uint32_t s = 0; s < slice; s++)
        at += (size_t)ENGINE_BLOCKS * slice_bytes[s];
    return at + (size_t)block * slice_bytes[slice];
}

static void make_key(uint32_t number, uint8_t key[KVC_KEY_BYTES])
{
    kvc_key(&number, sizeof(number), key);
}

static const uint8_t *make_keys(uint32_t first, uint32_t n)
{
    static uint8_t keys[ENGINE_BLOCKS * KVC_KEY_BYTES];

    ck_assert_uint_le(n, ENGINE_BLOCKS);
    for (uint32_t i = 0; i < n; i++)
        make_key(first + i, keys + (size_t)i * KVC_KEY_BYTES);
    return keys;
}

static const uint32_t *block_ids(void)
{
    static uint32_t ids[ENGINE_BLOCKS];

    for (uint32_t i = 0; i < ENGINE_BLOCKS; i++)
        ids[i] = i;
    return ids;
}

static void succeed(const struct engine *e, kvc_status status, const char *what)
{
    ck_assert_msg(status == KVC_OK, "%s: %s (%s)", what, kvc_text(status), kvc_error(e->client));
}

static enum { AS_IS_RUN, KEEPS, LENDS } lends;

void engine_lends(bool yes)
{
    lends = yes ? LENDS : KEEPS;
}

static uint32_t load_ms; // 0: as for everything else

void engine_load_ms(uint32_t ms)
{
    load_ms = ms;
}

static kvc_status connect_with_peers(struct engine *e, const char *socket, kvc_role role,
                                     uint32_t ms, uint32_t remote_ms)
{
    const kvc_options options = {.socket = socket,
                                 .name = "engine",
                                 .role = role,
                                 .connect_ms = ms,
                                 .lookup_ms = ms,
                                 .save_ms = ms,
                                 .load_ms = load_ms > 0 ? load_ms : ms,
                                 .remote_ms = remote_ms};

    *e = (struct engine){.fd = -1};
    return kvc_connect(&options, &e->client);
}

static kvc_status try_connect(struct engine *e, const char *socket, kvc_role role, uint32_t ms)
{
    return connect_with_peers(e, socket, role, ms, 0);
}

void engine_connect(struct engine *e, const char *socket, kvc_role role)
{
    kvc_status status = try_connect(e, socket, role, wait_patient_ms(ENGINE_MS));

    ck_assert_msg(status == KVC_OK, "connect: %s", kvc_text(status));
}

static bool is_lent(void)
{
    return lends == AS_IS_RUN ? check_copies_by_daemon() : lends == LENDS;
}

static void upload(const struct engine *e)
{
    if (e->device != NULL)
        gpu_write(e->device, e->memory, MEMORY_BYTES);
}

// Private, or a memfd that the daemon may map, or a GPU's.
static void make_memory(struct engine *e)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;

    if (gpu_is_used())
        e->device = gpu_alloc(MEMORY_BYTES);
    if (e->device == NULL && is_lent()) {
        e->fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ck_assert_int_ge(e->fd, 0);
        ck_assert_int_eq(ftruncate(e->fd, (off_t)MEMORY_BYTES), 0);
        flags = MAP_SHARED;
    }
    e->memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, flags, e->fd, 0);
    ck_assert_ptr_ne(e->memory, MAP_FAILED);
}

static kvc_status try_register(struct engine *e, uint8_t ns)
{
    kvc_memory memory;
    kvc_slice slices[ENGINE_SLICES];
    kvc_part_desc desc = {.name = "engine",
                          .block_tokens = 16,
                          .slices = slices,
                          .n_slices = ENGINE_SLICES,
                          .n_blocks = ENGINE_BLOCKS};

    memset(desc.namespace_digest, ns, sizeof(desc.namespace_digest));
    if (e->memory == NULL)
        make_memory(e);
    if (e->fd >= 0 || (e->device != NULL && is_lent()))
        desc.copy = KVC_COPY_DAEMON;
    if (e->fd >= 0) {
        memory = (kvc_memory){.fd = e->fd, .base = e->memory, .bytes = MEMORY_BYTES};
        desc.memories = &memory;
        desc.n_memories = 1;
    }
    for (uint32_t s = 0; s < ENGINE_SLICES; s++)
        slices[s] = (kvc_slice){e->device != NULL ? e->device + (slice_at(e, s, 0) - e->memory)
                                                  : slice_at(e, s, 0),
                                slice_bytes[s], slice_bytes[s], 0};
    return kvc_register(e->client, &desc, &e->part);
}

void engine_register(struct engine *e, uint8_t ns)
{
    succeed(e, try_register(e, ns), "register");
}

void engine_open(struct engine *e, const char *socket)
{
    engine_connect(e, socket, KVC_ROLE_WORKER);
    engine_register(e, 1);
}

bool engine_try_open(struct engine *e, const char *socket, uint32_t ms)
{
    if (try_connect(e, socket, KVC_ROLE_WORKER, ms) != KVC_OK)
        return false;
    if (try_register(e, 1) == KVC_OK)
        return true;
    engine_close(e);
    return false;
}

void engine_close(struct engine *e)
{
    kvc_close(e->client);
    if (e->device != NULL)
        gpu_free(e->device);
    if (e->memory != NULL)
        munmap(e->memory, MEMORY_BYTES);
    if (e->fd >= 0)
        close(e->fd);
    *e = (struct engine){.fd = -1};
}

void engine_fill(struct engine *e, uint32_t first, uint32_t n)
{
    uint8_t key[KVC_KEY_BYTES];

    for (uint32_t i = 0; i < n; i++) {
        make_key(first + i, key);
        for (uint32_t s = 0; s < ENGINE_SLICES; s++)
            content_write(key, s, slice_at(e, s, i), slice_bytes[s]);
    }
    upload(e);
}

bool engine_holds(const struct engine *e, uint32_t first, uint32_t n)
{
    uint8_t key[KVC_KEY_BYTES];

    if (e->device != NULL)
        gpu_read(e->memory, e->device, MEMORY_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        make_key(first + i, key);
        for (uint32_t s = 0; s < ENGINE_SLICES; s++)
            if (!content_matches(key, s, slice_at(e, s, i), slice_bytes[s]))
                return false;
    }
    return true;
}

void engine_poison(struct engine *e)
{
    memset(e->memory, POISON, MEMORY_BYTES);
    upload(e);
}

bool engine_is_poisoned(struct engine *e, uint32_t first_block)
{
    if (e->device != NULL)
        gpu_read(e->memory, e->device, MEMORY_BYTES);
    for (uint32_t s = 0; s < ENGINE_SLICES; s++) {
        const uint8_t *at = slice_at(e, s, first_block);

        for (size_t i = 0; i < (size_t)(ENGINE_BLOCKS - first_block) * slice_bytes[s]; i++)
            if (at[i] != POISON)
                return false;
    }
    return true;
}

// The second page of the block's last slice. It is a whole page of that slice alone.
static struct {
    uint8_t *page;
} trap;

static void spring(int signal)
{
    (void)signal;
    raise(SIGSTOP);
    mprotect(trap.page, TRAP_BYTES, PROT_READ | PROT_WRITE);
}

void engine_trap(struct engine *e, uint32_t block)
{
    const struct sigaction action = {.sa_handler = spring};

    trap.page = slice_at(e, ENGINE_SLICES - 1, block) + TRAP_BYTES;
    ck_assert_uint_eq((uintptr_t)trap.page % TRAP_BYTES, 0);
    ck_assert_int_eq(sigaction(SIGSEGV, &action, NULL), 0);
    ck_assert_int_eq(mprotect(trap.page, TRAP_BYTES, PROT_NONE), 0);
}

kvc_status engine_save_filled(struct engine *e, uint32_t first, uint32_t n, uint8_t *states,
                              uint64_t *save)
{
    const kvc_save_entry entry = {.part = e->part,
                                  .keys = make_keys(first, n),
                                  .blocks = block_ids(),
                                  .n_keys = n,
                                  .states = states};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1, .to_host = e->to_host};

    return kvc_save(e->client, &args, save);
}

kvc_status engine_try_save(struct engine *e, uint32_t first, uint32_t n, uint8_t *states,
                           uint64_t *save)
{
    engine_fill(e, first, n);
    return engine_save_filled(e, first, n, states, save);
}

static uint32_t count_saved(const uint8_t *states, uint32_t n)
{
    uint32_t saved = 0;

    for (uint32_t i = 0; i < n; i++)
        saved += states[i] == KVC_KEY_SAVED;
    return saved;
}

uint64_t engine_save(struct engine *e, uint32_t first, uint32_t n)
{
    uint8_t states[ENGINE_BLOCKS];
    uint64_t save = 0;

    succeed(e, engine_try_save(e, first, n, states, &save), "save");
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(states[i] == KVC_KEY_SAVED, "key %u is in state %u and not copied", first + i,
                      states[i]);
    return save;
}

static void wait_published(struct engine *e, uint64_t save, uint32_t published)
{
    kvc_outcome outcome;

    succeed(e, kvc_wait(e->client, save, wait_patient_ms(ENGINE_MS), &outcome), "wait");
    ck_assert_msg(outcome.status == KVC_OK, "the save ended: %s", kvc_text(outcome.status));
    ck_assert_uint_eq(outcome.published, published);
    ck_assert_uint_eq(outcome.dropped, 0);
}

void engine_put(struct engine *e, uint32_t first, uint32_t n)
{
    wait_published(e, engine_save(e, first, n), n);
}

uint32_t engine_put_some(struct engine *e, uint32_t first, uint32_t n)
{
    uint8_t states[ENGINE_BLOCKS];
    uint64_t save = 0;
    uint32_t saved;

    succeed(e, engine_try_save(e, first, n, states, &save), "save");
    saved = count_saved(states, n);
    if (saved > 0)
        wait_published(e, save, saved);
    return saved;
}

uint32_t engine_probe(struct engine *e, uint32_t first, uint32_t n)
{
    uint32_t blocks;

    succeed(e, kvc_probe(e->client, &e->part, 1, make_keys(first, n), n, &blocks), "probe");
    return blocks;
}

uint32_t engine_count(struct engine *e, uint32_t first, uint32_t n)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++)
        count += engine_probe(e, first + i, 1);
    return count;
}

kvc_status engine_try_lookup(struct engine *e, uint32_t first, uint32_t n)
{
    e->leased = first;
    return kvc_lookup(e->client, 0, &e->part, 1, make_keys(first, n), n, 0, &e->lease);
}

uint32_t engine_lookup(struct engine *e, uint32_t first, uint32_t n)
{
    succeed(e, engine_try_lookup(e, first, n), "lookup");
    return e->lease.blocks;
}

kvc_status engine_load_over(struct engine *e)
{
    const kvc_load_args args = {
        .lease = e->lease.id, .part = e->part, .count = e->lease.blocks, .blocks = block_ids()};

    return kvc_load(e->client, &args);
}

kvc_status engine_try_load(struct engine *e)
{
    engine_poison(e);
    return engine_load_over(e);
}

void engine_load(struct engine *e)
{
    succeed(e, engine_try_load(e), "load");
    ck_assert_msg(engine_holds(e, e->leased, e->lease.blocks), "wrong bytes were loaded");
}

void engine_release(struct engine *e)
{
    succeed(e, kvc_release(e->client, e->lease.id), "release");
    e->lease = (kvc_lease){0};
}

void engine_verify(struct engine *e, uint32_t first, uint32_t n)
{
    ck_assert_uint_eq(engine_lookup(e, first, n), n);
    engine_load(e);
    engine_release(e);
}

struct admin_stats engine_stats(kvc_client *client)
{
    struct admin_stats stats;
    kvc_status status = admin_stats(client, &stats);

    ck_assert_msg(status == KVC_OK, "stats: %s", kvc_text(status));
    return stats;
}

void engine_open_with_peers(struct engine *e, const char *socket, uint32_t remote_ms)
{
    kvc_status status =
        connect_with_peers(e, socket, KVC_ROLE_WORKER, wait_patient_ms(ENGINE_MS), remote_ms);

    ck_assert_msg(status == KVC_OK, "connect: %s", kvc_text(status));
    engine_register(e, 1);
}

uint32_t engine_lookup_all(struct engine *e, uint32_t first, uint32_t n)
{
    static uint64_t request = 1u << 20;
    uint64_t fetch;

    succeed(e, kvc_lookup(e->client, ++request, &e->part, 1, make_keys(first, n), n, 0, &e->lease),
            "lookup");
    fetch = e->lease.fetch;
    if (fetch != 0) {
        succeed(e, kvc_remote(e->client, fetch, wait_patient_ms(ENGINE_MS), NULL), "remote");
        succeed(e,
                kvc_lookup(e->client, request, &e->part, 1, make_keys(first, n), n, 0, &e->lease),
                "lookup again");
        if (e->lease.fetch != 0)
            succeed(e, kvc_decline(e->client, e->lease.fetch), "decline");
    }
    e->leased = first;
    return e->lease.blocks;
}

void engine_verify_all(struct engine *e, uint32_t first, uint32_t n)
{
    ck_assert_uint_eq(engine_lookup_all(e, first, n), n);
    engine_load(e);
    engine_release(e);
}
