// Extents, mapped and unmapped, against a scripted daemon.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

static void make_kv(struct kv *kv)
{
    kv_init(kv, (const uint32_t[]){2048, 100, 16}, 3, 8);
}

enum bad_map {
    MAP_USUAL,
    MAP_NO_FD,
    MAP_ONE_FD_MORE,
    MAP_NOT_SEALED,
    MAP_TOO_SHORT,
    MAP_REGULAR_FILE,
    MAP_DEVICE,
    MAP_PIPE,
    MAP_READ_ONLY_FD,
    MAP_NO_SUCH_EXTENT,
    MAP_NO_SUCH_IN_TIER,
    MAP_KINDS_SHORT,
    MAP_OTHER_KIND,
    MAP_ENDLESS,
    MAP_KINDS
};

static int sealed(size_t size, int seals)
{
    int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0)
        _exit(1);
    return fd;
}

static int bad_descriptor(struct fake *fake)
{
    char path[64];
    int pipes[2], fd;

    switch (fake->shared->mode[0]) {
    case MAP_NOT_SEALED:
        return sealed(FAKE_EXTENT_BYTES, F_SEAL_GROW);
    case MAP_TOO_SHORT:
        return sealed(FAKE_EXTENT_BYTES - 1, F_SEAL_SHRINK);
    case MAP_REGULAR_FILE:
        snprintf(path, sizeof(path), "%s.file", fake->socket);
        fd = open(path, O_CREAT | O_RDWR, 0600);
        return ftruncate(fd, FAKE_EXTENT_BYTES) < 0 ? -1 : fd;
    case MAP_DEVICE:
        return open("/dev/zero", O_RDWR);
    case MAP_PIPE:
        return pipe(pipes) < 0 ? -1 : pipes[0];
    case MAP_READ_ONLY_FD:
        fd = sealed(FAKE_EXTENT_BYTES, F_SEAL_SHRINK);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return open(path, O_RDONLY);
    default:
        return fake->extents[0][0];
    }
}

static bool bad_map_hook(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__MapReply reply = KVCACHE__MAP_REPLY__INIT;
    const int mode = fake->shared->mode[0];
    uint32_t extents[2] = {0, 0}, n_fds = 1;
    uint8_t kinds[2] = {1, 1};
    int fds[2];

    if (request->type != WIRE_MAP || mode == MAP_USUAL)
        return false;
    if (request->body_len > 0 && mode != MAP_ENDLESS)
        return false; // a later one: the usual rest
    fds[0] = fds[1] = bad_descriptor(fake);
    n_fds = mode == MAP_NO_FD ? 0 : mode == MAP_ONE_FD_MORE ? 2 : 1;
    if (mode == MAP_NO_SUCH_EXTENT)
        extents[0] = 1u << 30;
    if (mode == MAP_NO_SUCH_IN_TIER)
        extents[0] = 1u << 31 | FAKE_EXTENTS;
    kinds[0] = mode == MAP_OTHER_KIND ? 2 : 1;
    reply.n_extents = 1;
    reply.extents = extents;
    reply.kinds = (ProtobufCBinaryData){mode == MAP_KINDS_SHORT ? 0 : 1, kinds};
    reply.cursor = 1;
    reply.more = true;
    fake_send(fake, WIRE_MAP | WIRE_REPLY, request->seq, &reply.base, fds, n_fds);
    return true;
}

// A descriptor that may shrink under a mapping would let the daemon kill the worker by SIGBUS.
START_TEST(bad_extents_are_refused)
{
    struct fake *fake = fake_start(bad_map_hook);
    const kvc_options options = {.socket = fake->socket,
                                 .connect_ms = _i == MAP_ENDLESS ? 100 : wait_patient_ms(5000)};
    kvc_client *client;
    struct kv kv;
    kvc_part part;
    kvc_status status;
    int fds;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    fake->shared->mode[0] = _i;
    make_kv(&kv);
    fds = proc_count_fds(getpid());
    status = kvc_register(client, &kv.desc, &part);
    if (_i == MAP_READ_ONLY_FD)
        ck_assert_int_eq(status, KVC_OK); // left out: this worker cannot write to it
    else if (_i == MAP_ENDLESS)
        ck_assert_int_eq(status, KVC_E_DEADLINE);
    else
        ck_assert_int_eq(status, _i == MAP_USUAL ? KVC_OK : KVC_E_PROTOCOL);
    ck_assert_int_eq(proc_count_fds(getpid()), fds);
    if (_i == MAP_READ_ONLY_FD)
        ck_assert(!map_has(&client->map, 0));
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

START_TEST(all_extents_are_mapped_and_acknowledged)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part;
    int fds = proc_count_fds(getpid());

    make_kv(&kv);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    ck_assert_int_eq(proc_count_fds(getpid()), fds);
    ck_assert_uint_eq(fake->shared->mapped, 2 * FAKE_EXTENTS);
    for (uint32_t t = 0; t < 2; t++)
        for (uint64_t at = 0; at < FAKE_EXTENTS * FAKE_EXTENT_BYTES; at += 512 * 1024) {
            fake->slab[t][at] = (uint8_t)(1 + t + at / 4096);
            ck_assert_uint_eq(*map_at(&client->map, t, at, 512), fake->slab[t][at]);
        }
    // One block may lie in several extents, none may lie outside.
    ck_assert_ptr_nonnull(map_at(&client->map, 0, 512, 3 * FAKE_EXTENT_BYTES));
    ck_assert_ptr_null(map_at(&client->map, 0, 512, FAKE_EXTENTS * FAKE_EXTENT_BYTES));
    ck_assert_ptr_null(map_at(&client->map, 0, 4, 512));
    ck_assert_ptr_null(map_at(&client->map, 0, UINT64_MAX - 511, 1024));
    ck_assert_ptr_null(map_at(&client->map, 0, 512, UINT64_MAX));
    ck_assert_ptr_null(map_at(&client->map, 2, 0, 512));
    ck_assert_ptr_null(map_word(&client->map, KVC_PAGE_WORDS));
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

// On PING: withdraws extent 1 of the host tier, later grants again.
static bool extents_hook(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__Extents notice = KVCACHE__EXTENTS__INIT;
    uint32_t extents[2] = {1u << 31 | 1, fake->shared->mode[0] == 3 ? 77 : 1u << 31 | 2};

    if (request->type != WIRE_PING || fake->shared->mode[0] == 0)
        return false;
    if (fake->shared->mode[0] != 2) {
        notice.n_withdrawn = 2;
        notice.withdrawn = extents;
    }
    notice.granted = fake->shared->mode[0] == 2;
    fake_send(fake, WIRE_EXTENTS, 0, &notice.base, NULL, 0);
    fake->shared->mode[0] = 0;
    return false;
}

START_TEST(extents_come_and_go_by_notice)
{
    struct fake *fake = fake_start(extents_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part;

    make_kv(&kv);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    fake->shared->mode[0] = 1;
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    wait_for(fake->shared->unmapped == 2, 2000);
    ck_assert(!map_has(&client->map, 1u << 31 | 1) && !map_has(&client->map, 1u << 31 | 2));
    ck_assert_ptr_null(map_at(&client->map, 1, FAKE_EXTENT_BYTES, 512));
    ck_assert_ptr_null(map_at(&client->map, 1, FAKE_EXTENT_BYTES - 512, 1024));
    ck_assert_ptr_nonnull(map_at(&client->map, 1, FAKE_EXTENT_BYTES - 512, 512));
    // Nobody waits for what is granted: dispatch maps it when it comes.
    fake->shared->mode[0] = 2;
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    wait_for(kvc_dispatch(client) == KVC_OK && map_has(&client->map, 1u << 31 | 1) &&
                 map_has(&client->map, 1u << 31 | 2),
             2000);
    ck_assert_ptr_nonnull(map_at(&client->map, 1, FAKE_EXTENT_BYTES, 512));
    fake->shared->mode[0] = 3;
    ck_assert_int_eq(kvc_ping(client), KVC_E_PROTOCOL);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

START_TEST(readers_cannot_write)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_READER);
    struct kv kv;
    kvc_part part;
    pid_t child;
    int status;

    make_kv(&kv);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    // The mappings are not inherited, so this process itself must try.
    child = proc_fork();
    if (child == 0) {
        const kvc_options options = {.socket = fake->socket, .role = KVC_ROLE_READER};

        signal(SIGSEGV, SIG_DFL); // a sanitizer may have its own
        kvc_close(client);
        if (kvc_connect(&options, &client) != KVC_OK ||
            kvc_register(client, &kv.desc, &part) != KVC_OK)
            _exit(1);
        (void)*(volatile uint8_t *)map_at(&client->map, 0, 0, 512);
        *(volatile uint8_t *)map_at(&client->map, 0, 0, 512) = 1;
        _exit(2);
    }
    kvc_close(client);
    status = proc_wait(child, 5000);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

CHECK_MAIN_LOOPS("client/extents", CHECK_LIFE_S, {bad_extents_are_refused, 0, MAP_KINDS - 1},
                 {all_extents_are_mapped_and_acknowledged, 0, 0},
                 {extents_come_and_go_by_notice, 0, 0}, {readers_cannot_write, 0, 0})
