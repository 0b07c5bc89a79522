// Connecting, and what a daemon's first reply may be, against a scripted daemon.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

static uint64_t elapsed_ms(uint64_t since_us)
{
    return (rpc_now_us() - since_us) / 1000;
}

START_TEST(no_daemon_fails_fast)
{
    const char *const paths[] = {tmpdir_file("nobody"), "/nonexistent/socket"};

    for (size_t i = 0; i < 2; i++) {
        const kvc_options options = {.socket = paths[i]};
        kvc_client *client = (kvc_client *)1;
        uint64_t best_ms = UINT64_MAX;

        // The best of some: others use this machine, too.
        for (int try = 0; try < 20; try++) {
            uint64_t before = rpc_now_us(), ms;

            ck_assert_int_eq(kvc_connect(&options, &client), KVC_E_DISCONNECTED);
            ck_assert_ptr_eq(client, (kvc_client *)1);
            ms = elapsed_ms(before);
            best_ms = ms < best_ms ? ms : best_ms;
        }
        ck_assert_uint_lt(best_ms, 10);
    }
}
END_TEST

START_TEST(bad_options_are_refused)
{
    char longer[300];
    kvc_options options = {.socket = longer};
    kvc_client *client;

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_E_INVALID);
    options = (kvc_options){.socket = tmpdir_file("nobody"), .role = (kvc_role)9};
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_E_INVALID);
    ck_assert_int_eq(kvc_connect(NULL, NULL), KVC_E_INVALID);
    kvc_close(NULL);
    ck_assert_int_eq(kvc_fd(NULL), -1);
    ck_assert_int_eq(kvc_ping(NULL), KVC_E_INVALID);
}
END_TEST

START_TEST(socket_comes_from_the_environment)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client;

    setenv("KVCACHE_SOCKET", fake->socket, 1);
    ck_assert_int_eq(kvc_connect(NULL, &client), KVC_OK);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(hello_gives_what_the_daemon_said)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    int fd = kvc_fd(client);

    ck_assert_uint_eq(kvc_session(client), 1);
    ck_assert_uint_eq(kvc_boot_epoch(client), 100);
    ck_assert_str_eq(kvc_device(client), "host");
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
    ck_assert_int_eq(kvc_dispatch(client), KVC_OK);
    ck_assert_int_eq(admin_ping(client, "payload", 7), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

// A scheduler maps nothing and has no page; a page that comes nevertheless is one too many.
START_TEST(roles_without_memory_get_no_page)
{
    struct fake *fake = fake_start(NULL);

    for (int role = KVC_ROLE_SCHEDULER; role <= KVC_ROLE_OPERATOR; role++) {
        kvc_client *client = fake_connect(fake, (kvc_role)role);

        ck_assert_int_eq(kvc_ping(client), KVC_OK);
        kvc_close(client);
    }
    fake_stop(fake);
}
END_TEST

enum bad_hello {
    HELLO_REFUSED,
    HELLO_VERSION_REFUSED,
    HELLO_VERSION,
    HELLO_SESSION,
    HELLO_SECRET,
    HELLO_DEVICE,
    HELLO_NO_FD,
    HELLO_TWO_FDS,
    HELLO_NOT_SEALED,
    HELLO_SHORT_PAGE,
    HELLO_NOT_A_MEMFD,
    HELLO_WORDS_0,
    HELLO_WORDS_MANY,
    HELLO_STRIDE,
    HELLO_EXTENTS,
    HELLO_EXTENT_BYTES_0,
    HELLO_EXTENT_BYTES_ODD,
    HELLO_TIER_HUGE,
    HELLO_TYPE,
    HELLO_SILENCE,
    HELLO_GARBAGE,
    HELLO_END,
    HELLO_KINDS
};

static int unsealed(size_t size)
{
    int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (ftruncate(fd, (off_t)size) < 0)
        _exit(1);
    return fd;
}

static int sealed(size_t size)
{
    int fd = unsealed(size);

    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

static void spoil_hello(struct fake *fake, Kvcache__HelloReply *reply, int *fds, uint32_t *n_fds)
{
    const size_t page = (size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE;
    Kvcache__TierGeometry *tier = reply->tiers[0];

    switch (fake->shared->mode[0]) {
    case HELLO_VERSION:
        reply->version = 2;
        break;
    case HELLO_SESSION:
        reply->session = 0;
        break;
    case HELLO_SECRET:
        reply->secret.len = 15;
        break;
    case HELLO_DEVICE:
        reply->device = "cuda";
        break;
    case HELLO_NO_FD:
        *n_fds = 0;
        break;
    case HELLO_TWO_FDS:
        fds[1] = fds[0];
        *n_fds = 2;
        break;
    case HELLO_NOT_SEALED:
        fds[0] = unsealed(page);
        break;
    case HELLO_SHORT_PAGE:
        fds[0] = sealed(page - 1);
        break;
    case HELLO_NOT_A_MEMFD:
        fds[0] = open("/dev/zero", O_RDWR | O_CLOEXEC);
        break;
    case HELLO_WORDS_0:
        reply->page_words = 0;
        break;
    case HELLO_WORDS_MANY:
        reply->page_words = UINT32_MAX;
        break;
    case HELLO_STRIDE:
        reply->page_stride = 8;
        break;
    case HELLO_EXTENTS:
        tier->extents++;
        break;
    case HELLO_EXTENT_BYTES_0:
        tier->extent_bytes = 0;
        break;
    case HELLO_EXTENT_BYTES_ODD:
        tier->extent_bytes = 4095;
        tier->bytes = 4 * 4095;
        break;
    case HELLO_TIER_HUGE:
        tier->extent_bytes = 1ull << 60;
        tier->bytes = 1ull << 62;
        break;
    default:
        break;
    }
}

static bool bad_hello_hook(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__HelloReply reply;
    uint16_t type = WIRE_HELLO | WIRE_REPLY;
    int fds[2] = {fake->page_fd, -1};
    uint32_t n_fds = 1;

    if (request->type != WIRE_HELLO)
        return false;
    switch (fake->shared->mode[0]) {
    case HELLO_REFUSED:
        fake_error(fake, request, KVC_E_NO_ROOM, "role", "too many sessions");
        return true;
    case HELLO_VERSION_REFUSED:
        fake_error(fake, request, KVC_E_VERSION, "version", "speaks 7");
        return true;
    case HELLO_SILENCE:
        return true;
    case HELLO_GARBAGE:
        return write(fake->sock, "garbage", 7) == 7;
    case HELLO_END:
        shutdown(fake->sock, SHUT_RDWR);
        return true;
    case HELLO_TYPE:
        type = WIRE_PING | WIRE_REPLY;
        break;
    default:
        break;
    }
    fake_make_hello(fake, &reply);
    spoil_hello(fake, &reply, fds, &n_fds);
    fake_send(fake, type, request->seq, &reply.base, fds, n_fds);
    return true;
}

static kvc_status expected_status(int kind)
{
    switch (kind) {
    case HELLO_REFUSED:
        return KVC_E_NO_ROOM;
    case HELLO_VERSION_REFUSED:
    case HELLO_VERSION:
        return KVC_E_VERSION;
    case HELLO_DEVICE:
        return KVC_E_NO_DEVICE;
    case HELLO_SILENCE:
        return KVC_E_DEADLINE;
    case HELLO_END:
        return KVC_E_DISCONNECTED;
    default:
        return KVC_E_PROTOCOL;
    }
}

START_TEST(bad_hello_is_refused)
{
    struct fake *fake = fake_start(bad_hello_hook);
    const kvc_options options = {.socket = fake->socket,
                                 .connect_ms = _i == HELLO_SILENCE ? 50 : wait_patient_ms(5000)};
    uint64_t before = rpc_now_us();
    kvc_client *client;

    fake->shared->mode[0] = _i;
    ck_assert_int_eq(kvc_connect(&options, &client), expected_status(_i));
    ck_assert_uint_lt(elapsed_ms(before), wait_patient_ms(2000));
    fake_stop(fake);
}
END_TEST

// A reconnect that fails half-way leaves nothing; the old session is drained by a later one.
START_TEST(failed_reconnect_is_tried_again)
{
    struct fake *fake = fake_start(bad_hello_hook);
    kvc_client *client;
    kvc_options options = {.socket = fake->socket, .connect_ms = wait_patient_ms(5000)};
    struct kv kv;
    kvc_part part;
    int fds;

    fake->shared->mode[0] = HELLO_KINDS;
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    kv_init(&kv, (const uint32_t[]){2048, 100}, 2, 8);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    fds = proc_count_fds(getpid());
    for (int kind = 0; kind < HELLO_KINDS; kind++) {
        fake->shared->mode[0] = kind;
        client->connect_ms = kind == HELLO_SILENCE ? 50 : 5000;
        ck_assert_int_eq(kvc_reconnect(client), expected_status(kind));
        ck_assert_int_eq(kvc_ping(client), KVC_E_DISCONNECTED);
        ck_assert_int_eq(kvc_fd(client), -1);
        ck_assert_int_eq(proc_count_fds(getpid()), fds - 1);
    }
    fake->shared->mode[0] = HELLO_KINDS;
    client->connect_ms = wait_patient_ms(5000);
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_uint_eq(fake->shared->drained_session, 1);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    ck_assert_int_eq(kvc_unregister(client, part), KVC_OK);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

static bool version_hook(struct fake *fake, const struct wire_packet *request)
{
    if (request->type != WIRE_HELLO)
        return false;
    fake_error(fake, request, KVC_E_VERSION, "version", "older than this one speaks");
    return true;
}

// There is no client to ask when there is none.
START_TEST(connect_says_why)
{
    struct fake *fake = fake_start(version_hook);
    kvc_options options = {.socket = tmpdir_file("nobody")};
    kvc_client *client;
    char why[200] = "", little[4] = "";

    ck_assert_int_eq(kvc_connect_why(&options, &client, why, sizeof(why)), KVC_E_DISCONNECTED);
    ck_assert_ptr_nonnull(strstr(why, options.socket));
    ck_assert_int_eq(kvc_connect_why(&options, &client, little, sizeof(little)),
                     KVC_E_DISCONNECTED);
    ck_assert_uint_eq(strlen(little), 3);
    ck_assert_int_eq(kvc_connect_why(&options, &client, NULL, 7), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_connect_why(&options, NULL, why, sizeof(why)), KVC_E_INVALID);
    ck_assert_str_eq(why, "client: NULL");
    options.socket = fake->socket;
    ck_assert_int_eq(kvc_connect_why(&options, &client, why, sizeof(why)), KVC_E_VERSION);
    ck_assert_str_eq(why, "version: older than this one speaks");
    options.role = (kvc_role)9;
    ck_assert_int_eq(kvc_connect_why(&options, &client, why, sizeof(why)), KVC_E_INVALID);
    ck_assert_str_eq(why, "role: no such role");
    fake_stop(fake);
}
END_TEST

// The daemon's page comes, and this process has no number for it: that is not the daemon's fault.
START_TEST(F29_no_number_left_for_a_descriptor)
{
    struct fake *fake = fake_start(NULL);
    const kvc_options options = {.socket = fake->socket, .connect_ms = wait_patient_ms(5000)};
    struct rlimit limit, saved;
    kvc_client *client;
    char why[200];
    int next = dup(0);

    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &saved), 0);
    limit = saved;
    limit.rlim_cur = (rlim_t)next + 1; // for the socket
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(kvc_connect_why(&options, &client, why, sizeof(why)), KVC_E_NO_FDS);
    ck_assert_ptr_nonnull(strstr(why, "descriptors were lost"));
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &saved), 0);
    client = fake_connect(fake, KVC_ROLE_WORKER);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

// A daemon that says that there is more, and stays where it is: with a row or without one.
static bool list_hook(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__ListReply reply = KVCACHE__LIST_REPLY__INIT;
    Kvcache__ListRow row = KVCACHE__LIST_ROW__INIT, *rows[1] = {&row};
    char *text = "one";

    if (request->type != WIRE_LIST)
        return false;
    row.n_values = reply.n_columns = 1;
    row.values = reply.columns = &text;
    reply.n_rows = fake->shared->mode[0] == 1;
    reply.rows = rows;
    reply.more = true;
    reply.after = 7;
    fake_reply(fake, request, &reply.base);
    return true;
}

START_TEST(F39_lists_come_to_an_end)
{
    struct fake *fake = fake_start(list_hook);

    for (int kind = 0; kind < 2; kind++) {
        kvc_client *client = fake_connect(fake, KVC_ROLE_OPERATOR);
        struct admin_list list;

        fake->shared->mode[0] = kind;
        ck_assert_int_eq(admin_list(client, "clients", 7, 1, &list), KVC_E_PROTOCOL);
        kvc_close(client);
        client = fake_connect(fake, KVC_ROLE_OPERATOR);
        ck_assert_int_eq(admin_list(client, "clients", 6, 1, &list), KVC_OK);
        ck_assert(list.more);
        kvc_close(client);
    }
    fake_stop(fake);
}
END_TEST

CHECK_MAIN_LOOPS("client/hello", CHECK_LIFE_S, {no_daemon_fails_fast, 0, 0},
                 {bad_options_are_refused, 0, 0}, {socket_comes_from_the_environment, 0, 0},
                 {hello_gives_what_the_daemon_said, 0, 0}, {roles_without_memory_get_no_page, 0, 0},
                 {bad_hello_is_refused, 0, HELLO_KINDS - 1},
                 {failed_reconnect_is_tried_again, 0, 0}, {connect_says_why, 0, 0},
                 {F29_no_number_left_for_a_descriptor, 0, 0}, {F39_lists_come_to_an_end, 0, 0})
