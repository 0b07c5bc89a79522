// Two users of the machine and one memory: what the first does not need moves to the second, when
// the first has let go of it, and nothing of either is seen or written by the other. Needs root, to
// become somebody else.
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define KEYS    100u
#define N_KEYS  8u
#define EXTENTS 4u // of the gpu tier, all there is
#define FILL    512u
#define MOVE_MS 15000

#define SKIP_UNLESS_ROOT()                                                                         \
    do {                                                                                           \
        if (geteuid() != 0)                                                                        \
            TEST_SKIP("needs root, to become another user");                                       \
    } while (0)

static const char *const gpu_only[] = {"--gpu-bytes", "8M", "--host-bytes", "0", "--socket-mode",
                                       "0666",        NULL};

static void open_stage(struct stage *s)
{
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    stage_open_bare(s, gpu_only);
}

// Fills the tier, then does what is asked of it until it is told to stop.
static void fills_and_answers(struct scene *s)
{
    struct engine *e = &s->engine;

    engine_open(e, s->socket);
    for (uint32_t i = 0; i < 3; i++)
        engine_put_some(e, 10000 + i * FILL, FILL);
    actor_stop();
    while (__atomic_load_n(&s->told->values[0], __ATOMIC_ACQUIRE) == 0) {
        ck_assert_int_eq(kvc_dispatch(e->client), KVC_OK);
        usleep(1000);
    }
    // It goes on with what it has.
    wait_for(engine_put_some(e, KEYS, N_KEYS) == N_KEYS || engine_probe(e, KEYS, N_KEYS) == N_KEYS,
             ENGINE_MS);
    engine_verify(e, KEYS, N_KEYS);
    engine_close(e);
}

// Asks until it gets slots; what it saves is there.
static void comes_late(struct scene *s)
{
    struct engine *e = &s->engine;

    actor_become_somebody_else();
    engine_open(e, s->socket);
    wait_for(engine_put_some(e, KEYS, N_KEYS) == N_KEYS, MOVE_MS);
    engine_verify(e, KEYS, N_KEYS);
    actor_stop();
    engine_verify(e, KEYS, N_KEYS);
    engine_close(e);
}

// Rows of the list of extents, as an operator sees them: extents of a tenant in a state.
static uint32_t count_listed(const struct stage *s, const char *tenant, const char *state)
{
    struct admin_list list;
    uint32_t n = 0;

    ck_assert_int_eq(admin_list(s->figures, "extents", 0, 0, &list), KVC_OK);
    ck_assert_uint_eq(list.n_columns, 7);
    for (size_t i = 0; i < list.n_rows; i++) {
        char *const *v = list.rows[i].values;

        if (strcmp(v[0], "gpu") == 0 && strcmp(v[1], tenant) == 0 && strcmp(v[6], state) == 0)
            n += (uint32_t)strtoul(v[3], NULL, 10);
    }
    return n;
}

START_TEST(F43_a_user_that_comes_late_gets_memory)
{
    struct actor first, second;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s);
    first = actor_start(fills_and_answers, s.socket);
    actor_until_stop(&first);
    ck_assert_uint_eq(count_listed(&s, "uid:0", "used"), EXTENTS);
    actor_continue(&first);
    second = actor_start(comes_late, s.socket);
    actor_until_stop(&second);
    ck_assert_uint_ge(stage_stats(&s).moved_extents, 1);
    ck_assert_uint_ge(count_listed(&s, "uid:65534", "used"), 1);
    __atomic_store_n(&first.told->values[0], 1, __ATOMIC_RELEASE);
    actor_end(&first);
    actor_continue(&second);
    actor_end(&second);
    stage_wait_sessions(&s, 0);
    stage_check(&s);
    stage_close(&s);
}
END_TEST

// Never answers (it is stopped): the other gets nothing, and all is counted. Killed: it does.
START_TEST(S15_a_worker_that_never_unmaps_keeps_all_until_it_is_killed)
{
    struct actor first, second;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s);
    first = actor_start(fills_and_answers, s.socket);
    actor_until_stop(&first);
    second = actor_start(comes_late, s.socket);
    wait_for(stage_stats(&s).waiting_extents == 1, ENGINE_MS);
    ck_assert_uint_eq(count_listed(&s, "uid:0", "unmapping"), 1);
    daemon_clock_advance(s.daemon, 6000000);
    wait_for(stage_stats(&s).kept_extents == 1, ENGINE_MS);
    ck_assert_uint_eq(stage_stats(&s).waiting_extents, 0);
    daemon_clock_advance(s.daemon, 60000000);
    usleep(100000);
    ck_assert_uint_eq(stage_stats(&s).moved_extents, 0);
    ck_assert_uint_eq(stage_stats(&s).kept_extents, 1);
    actor_kill(&first);
    actor_until_stop(&second);
    ck_assert_uint_ge(stage_stats(&s).moved_extents, 1);
    actor_continue(&second);
    actor_end(&second);
    stage_wait_sessions(&s, 0);
    stage_check(&s);
    stage_close(&s);
}
END_TEST

// What it was told to unmap it keeps mapped, and says that it has not.
struct keeper {
    struct talk_worker w;
    uint8_t *extents[EXTENTS];
};

static void keep_all(struct keeper *k, const char *socket)
{
    Kvcache__Map map = KVCACHE__MAP__INIT;
    Kvcache__MapReply *reply;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    k->w = talk_worker_unmapped(socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    reply = talk_reply(k->w.sock, talk_send(k->w.sock, WIRE_MAP, &map.base), WIRE_MAP,
                       &kvcache__map_reply__descriptor, fds, &n_fds);
    ck_assert_uint_eq(n_fds, EXTENTS);
    for (uint32_t i = 0; i < n_fds; i++) {
        k->extents[i] =
            mmap(NULL, KVC_EXTENT_BYTES_MIN, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
        ck_assert_ptr_ne(k->extents[i], MAP_FAILED);
        close(fds[i]);
        memset(k->extents[i], 0xee, KVC_EXTENT_BYTES_MIN);
    }
    map.n_mapped = reply->n_extents;
    map.mapped = reply->extents;
    map.cursor = reply->cursor;
    talk_free(talk_ask(k->w.sock, WIRE_MAP, &map.base, &kvcache__map_reply__descriptor));
    talk_free(reply);
}

static bool unmap_all(struct keeper *k)
{
    uint32_t extents[EXTENTS] = {0, 1, 2, 3};
    Kvcache__Unmap unmap = KVCACHE__UNMAP__INIT;

    unmap.n_extents = EXTENTS;
    unmap.extents = extents;
    talk_free(talk_ask(k->w.sock, WIRE_UNMAP, &unmap.base, &kvcache__empty__descriptor));
    return true;
}

static bool holds_anything(const struct keeper *k, uint8_t expected)
{
    for (uint32_t e = 0; e < EXTENTS; e++)
        for (uint32_t i = 0; i < KVC_EXTENT_BYTES_MIN; i++)
            if (k->extents[e][i] != expected && k->extents[e][i] != 0)
                return true;
    return false;
}

static void finds_zeros(struct scene *s)
{
    Kvcache__Map map = KVCACHE__MAP__INIT;
    Kvcache__MapReply *reply;
    struct talk_worker w;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds = 0;

    actor_become_somebody_else();
    w = talk_worker_unmapped(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    while (n_fds == 0) {
        reply = talk_reply(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), WIRE_MAP,
                           &kvcache__map_reply__descriptor, fds, &n_fds);
        talk_free(reply);
        usleep(1000);
    }
    for (uint32_t i = 0; i < n_fds; i++) {
        uint8_t *memory = mmap(NULL, KVC_EXTENT_BYTES_MIN, PROT_READ, MAP_SHARED, fds[i], 0);

        ck_assert_ptr_ne(memory, MAP_FAILED);
        ck_assert_int_eq(memory[0], 0);
        ck_assert_int_eq(memcmp(memory, memory + 1, KVC_EXTENT_BYTES_MIN - 1), 0);
        munmap(memory, KVC_EXTENT_BYTES_MIN);
        close(fds[i]);
    }
    actor_stop();
    talk_worker_close(&w);
}

// The tenant that had it wrote all of it full, and keeps it mapped and writes.
START_TEST(S15_what_a_worker_kept_mapped_is_nobody_elses)
{
    struct actor reader, second;
    struct keeper k;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s);
    keep_all(&k, s.socket);
    talk_publish(&k.w, KEYS, N_KEYS);
    reader = actor_start(finds_zeros, s.socket);
    wait_for(unmap_all(&k) && stage_stats(&s).moved_extents == 1, MOVE_MS);
    actor_until_stop(&reader);
    actor_kill(&reader);
    for (uint32_t i = 0; i < EXTENTS; i++)
        memset(k.extents[i], 0xdd, KVC_EXTENT_BYTES_MIN);
    second = actor_start(comes_late, s.socket);
    actor_until_stop(&second);
    // It sees nothing of what they have saved, and what it writes now changes none of it.
    ck_assert(!holds_anything(&k, 0xdd));
    for (uint32_t i = 0; i < EXTENTS; i++)
        memset(k.extents[i], 0xcc, KVC_EXTENT_BYTES_MIN);
    actor_continue(&second);
    actor_end(&second);
    for (uint32_t i = 0; i < EXTENTS; i++)
        munmap(k.extents[i], KVC_EXTENT_BYTES_MIN);
    talk_worker_close(&k.w);
    stage_wait_sessions(&s, 0);
    stage_check(&s);
    stage_close(&s);
}
END_TEST

// A worker killed in the middle of a save: nothing of it moves before it is gone.
static void dies_in_a_save(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    for (uint32_t i = 0; i < 3; i++)
        engine_put_some(&s->engine, 10000 + i * FILL, FILL);
    engine_trap(&s->engine, 3);
    engine_save_filled(&s->engine, KEYS, N_KEYS, NULL, NULL);
}

START_TEST(S15_a_worker_killed_in_a_save_gives_its_extents_when_it_is_gone)
{
    struct actor first, second;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s);
    first = actor_start(dies_in_a_save, s.socket);
    actor_until_stop(&first);
    ck_assert_uint_gt(stage_stats(&s).filling_slots, 0);
    second = actor_start(comes_late, s.socket);
    actor_kill(&first);
    actor_until_stop(&second);
    ck_assert_uint_ge(stage_stats(&s).moved_extents, 1);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, 0);
    actor_continue(&second);
    actor_end(&second);
    stage_wait_sessions(&s, 0);
    stage_check(&s);
    stage_close(&s);
}
END_TEST

CHECK_MAIN("fault/tenants_move", CHECK_LIFE_S, F43_a_user_that_comes_late_gets_memory,
           S15_a_worker_that_never_unmaps_keeps_all_until_it_is_killed,
           S15_what_a_worker_kept_mapped_is_nobody_elses,
           S15_a_worker_killed_in_a_save_gives_its_extents_when_it_is_gone)
