// Another user of the machine: what a tenant may not see, map, reopen for writing, take over or
// declare drained. Needs root, to become somebody else.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define KEYS   100u
#define N_KEYS 8u

#define SKIP_UNLESS_ROOT()                                                                         \
    do {                                                                                           \
        if (geteuid() != 0)                                                                        \
            TEST_SKIP("needs root, to become another user");                                       \
    } while (0)

static const char *const open_to_all[] = {
    "--gpu-bytes", "8M", "--host-bytes", "8M", "--socket-mode", "0666", NULL};

static void open_stage(struct stage *s, const char *const args[])
{
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    stage_open(s, args);
}

static int try_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), error;

    ck_assert_int_ge(sock, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    error = connect(sock, (struct sockaddr *)&address, sizeof(address)) < 0 ? errno : 0;
    close(sock);
    return error;
}

static void connects_without_permission(struct scene *s)
{
    const kvc_options options = {.socket = s->socket};
    kvc_client *client = NULL;

    actor_become_somebody_else();
    ck_assert_int_eq(try_connect(s->socket), EACCES);
    ck_assert_int_ne(kvc_connect(&options, &client), KVC_OK);
    ck_assert_ptr_null(client);
}

START_TEST(another_user_cannot_connect_without_permission)
{
    struct actor other;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s, NULL);
    other = actor_start(connects_without_permission, s.socket);
    actor_end(&other);
    stage_close(&s);
}
END_TEST

// With the same namespace, layout and keys as the witness.
static void sees_nothing(struct scene *s)
{
    struct engine *e = &s->engine;
    kvc_lease lease;

    actor_become_somebody_else();
    engine_open(e, s->socket);
    ck_assert_uint_eq(engine_probe(e, STAGE_WITNESS_KEYS, 4), 0);
    ck_assert_uint_eq(engine_lookup(e, STAGE_WITNESS_KEYS, 4), 0);
    ck_assert_uint_eq(e->lease.id, 0);

    // By name: the witness's lease, its token.
    ck_assert_int_eq(kvc_adopt(e->client, s->told->token, e->part, 0, &lease), KVC_E_UNKNOWN);
    e->lease = (kvc_lease){.id = s->told->values[0], .blocks = 4};
    ck_assert_int_eq(kvc_release(e->client, s->told->values[0]), KVC_E_DENIED);
    ck_assert_int_eq(kvc_extend(e->client, s->told->values[0], 0, NULL), KVC_E_DENIED);
    ck_assert_int_eq(engine_try_load(e), KVC_E_DENIED);
    ck_assert(!engine_holds(e, STAGE_WITNESS_KEYS, 1));
    e->lease = (kvc_lease){0};

    // The memory is the witness's tenant's, all of it: nothing can be saved, and nothing fails.
    ck_assert_uint_eq(engine_put_some(e, KEYS, N_KEYS), 0);
    engine_close(e);
}

START_TEST(F43_another_tenants_keys_and_leases_are_not_there)
{
    struct actor other;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s, open_to_all);
    ck_assert_uint_eq(engine_lookup(&s.witness, STAGE_WITNESS_KEYS, 4), 4);
    other = actor_start(sees_nothing, s.socket);
    other.told->values[0] = s.witness.lease.id;
    memcpy(other.told->token, s.witness.lease.token, KVC_TOKEN_BYTES);
    actor_end(&other);
    engine_load(&s.witness); // its lease is as it was
    engine_release(&s.witness);
    stage_wait_sessions(&s, 1);
    stage_baseline(&s); // the other tenant and its part are known now
    stage_close(&s);
}
END_TEST

static void gets_no_memory(struct scene *s)
{
    uint32_t extent = (uint32_t)s->told->values[0];
    Kvcache__Map map = KVCACHE__MAP__INIT;
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__Drained drained = KVCACHE__DRAINED__INIT;
    Kvcache__Abort abort = KVCACHE__ABORT__INIT;
    Kvcache__MapReply *mapped;
    Kvcache__ListReply *listed;
    struct talk_worker w;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    actor_become_somebody_else();
    w = talk_worker_unmapped(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    mapped = talk_reply(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), WIRE_MAP,
                        &kvcache__map_reply__descriptor, fds, &n_fds);
    ck_assert_uint_eq(n_fds, 0);
    ck_assert_uint_eq(mapped->n_extents, 0);
    talk_free(mapped);
    map.mapped = &extent;
    map.n_mapped = 1;
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), KVC_E_DENIED, "mapped[0]");

    // Another tenant's lost session, with its secret.
    drained.session = s->told->values[1];
    drained.secret = (ProtobufCBinaryData){KVC_SECRET_BYTES, s->told->token};
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_DRAINED, &drained.base), KVC_E_UNKNOWN,
                      "session");
    abort.save = s->told->values[2];
    abort.never_all = true;
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_ABORT, &abort.base), KVC_E_UNKNOWN, "save");

    // Who else is there is told to nobody either.
    list.what = "clients";
    listed = talk_ask(w.sock, WIRE_LIST, &list.base, &kvcache__list_reply__descriptor);
    ck_assert_uint_eq(listed->n_rows, 1);
    talk_free(listed);
    talk_worker_close(&w);
}

START_TEST(another_tenant_gets_no_descriptor_and_drains_nobody)
{
    Kvcache__SaveReply *lost_save, *open_save;
    struct talk_worker lost, busy;
    struct actor other;
    struct stage s;

    SKIP_UNLESS_ROOT();
    open_stage(&s, open_to_all);
    lost = talk_worker(s.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    busy = talk_worker(s.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    lost_save = talk_save(&lost, KEYS, N_KEYS, false);
    open_save = talk_save(&busy, 2 * KEYS, N_KEYS, false);
    close(lost.sock);
    lost.sock = -1;
    wait_for(stage_stats(&s).quarantined_slots == N_KEYS, ENGINE_MS);
    other = actor_start(gets_no_memory, s.socket);
    other.told->values[0] = (uint64_t)lost_save->entries[0]->tiers.data[0] << 31;
    other.told->values[1] = lost.session;
    other.told->values[2] = open_save->save;
    memcpy(other.told->token, lost.secret, KVC_SECRET_BYTES);
    actor_end(&other);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_KEYS);
    ck_assert_uint_eq(stage_stats(&s).filling_slots, N_KEYS);
    talk_prove(&lost, lost_save, 0);
    talk_prove(&busy, open_save, 0);
    wait_for(talk_probe(&busy, 2 * KEYS, N_KEYS) == N_KEYS, ENGINE_MS);
    talk_free(lost_save);
    talk_free(open_save);
    talk_worker_close(&lost);
    talk_worker_close(&busy);
    stage_wait_sessions(&s, 1);
    stage_baseline(&s);
    stage_close(&s);
}
END_TEST

// A descriptor that is for reading stays so.
static void expect_readonly(int fd, size_t bytes)
{
    uint8_t *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    char path[48];

    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(mprotect(memory, bytes, PROT_READ | PROT_WRITE), -1);
    ck_assert_int_eq(pwrite(fd, "", 1, 0), -1);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(fchmod(fd, 0666), -1);
    munmap(memory, bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ck_assert_int_eq(open(path, O_RDWR | O_CLOEXEC), -1);
    ck_assert_int_eq(errno, EACCES);
    ck_assert_int_eq(open(path, O_WRONLY | O_CLOEXEC), -1);
    // Not even another one for reading, since all come from the daemon.
    ck_assert_int_eq(open(path, O_RDONLY | O_CLOEXEC), -1);
    ck_assert_int_eq(chmod(path, 0666), -1);
}

static void reopens_for_writing(struct scene *s)
{
    Kvcache__Map map = KVCACHE__MAP__INIT;
    int fds[KVC_WIRE_FDS_MAX], own;
    Kvcache__MapReply *mapped;
    struct talk_worker w;
    uint32_t n_fds;
    char path[48];

    actor_become_somebody_else();
    // That the trick works with what is one's own.
    own = memfd_create("own", MFD_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", own);
    ck_assert_int_ge(open(path, O_RDWR | O_CLOEXEC), 0);

    w = talk_worker_unmapped(s->socket, KVCACHE__ROLE__ROLE_READER, STAGE_RAW_NS);
    mapped = talk_reply(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), WIRE_MAP,
                        &kvcache__map_reply__descriptor, fds, &n_fds);
    ck_assert_uint_gt(n_fds, 0);
    for (uint32_t i = 0; i < n_fds; i++)
        expect_readonly(fds[i], KVC_EXTENT_BYTES_MIN);
    talk_free(mapped);

    // The daemon's own descriptors.
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)s->told->values[0]);
    ck_assert_int_eq(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), -1);
    ck_assert_int_eq(errno, EACCES);
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)s->told->values[0]);
    ck_assert_int_eq(open(path, O_RDONLY | O_CLOEXEC), -1);
}

START_TEST(a_reader_cannot_reopen_for_writing)
{
    struct actor other;
    struct stage s;

    SKIP_UNLESS_ROOT();
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    stage_open_bare(&s, open_to_all);
    other = actor_start(reopens_for_writing, s.socket);
    other.told->values[0] = (uint64_t)daemon_pid(s.daemon);
    actor_end(&other);
    stage_wait_sessions(&s, 0);
    stage_close(&s);
}
END_TEST

static void lives_with_its_own(struct scene *s)
{
    actor_become_somebody_else();
    engine_open(&s->engine, s->socket);
    engine_put(&s->engine, KEYS, N_KEYS);
    engine_verify(&s->engine, KEYS, N_KEYS);
    actor_stop();
    engine_verify(&s->engine, KEYS, N_KEYS);
    engine_close(&s->engine);
}

// The other way round: root is another tenant too, and sees nothing of theirs.
START_TEST(root_is_a_tenant_like_any_other)
{
    struct actor other;
    struct engine e;
    struct stage s;

    SKIP_UNLESS_ROOT();
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    stage_open_bare(&s, open_to_all);
    other = actor_start(lives_with_its_own, s.socket);
    actor_until_stop(&other);
    engine_open(&e, s.socket);
    ck_assert_uint_eq(engine_count(&e, KEYS, N_KEYS), 0);
    ck_assert_uint_eq(engine_put_some(&e, KEYS, N_KEYS), 0);
    engine_close(&e);
    actor_continue(&other);
    actor_end(&other);
    stage_wait_sessions(&s, 0);
    stage_close(&s);
}
END_TEST

CHECK_MAIN("fault/tenants", CHECK_LIFE_S, another_user_cannot_connect_without_permission,
           F43_another_tenants_keys_and_leases_are_not_there,
           another_tenant_gets_no_descriptor_and_drains_nobody, a_reader_cannot_reopen_for_writing,
           root_is_a_tenant_like_any_other)
