// wire_connect() to all kinds of listeners and of none.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/fd.h"
#include "proto/wire.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"

static int listen_at(const char *path, int type, int backlog)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
    memcpy(address.sun_path, path, strlen(path));
    ck_assert_int_eq(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    if (backlog >= 0)
        ck_assert_int_eq(listen(sock, backlog), 0);
    return sock;
}

static void expect_refused(const char *path, kvc_status status)
{
    const int before = fd_count_open();
    int sock = -77;

    ck_assert_str_eq(kvc_status_text(wire_connect(path, &sock)), kvc_status_text(status));
    ck_assert_int_eq(sock, -77);
    ck_assert_int_eq(fd_count_open(), before);
}

START_TEST(test_connects)
{
    const char *path = tmpdir_file("s");
    int listener = listen_at(path, SOCK_SEQPACKET, 8), sock, peer;
    struct wire_packet packet = {.type = WIRE_PING, .seq = 5};
    uint8_t buf[KVC_WIRE_PACKET_MAX];
    const char *why;

    ck_assert_int_eq(wire_connect(path, &sock), KVC_OK);
    ck_assert_int_eq(fcntl(sock, F_GETFD), FD_CLOEXEC);
    ck_assert(fcntl(sock, F_GETFL) & O_NONBLOCK);
    // Sending does not wait for accept().
    ck_assert_int_eq(wire_send(sock, &packet), WIRE_OK);
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(wire_recv(peer, buf, &packet, &why), WIRE_OK);
    ck_assert_uint_eq(packet.seq, 5);
    close(peer);
    close(sock);
    close(listener);
}
END_TEST

START_TEST(test_nobody_listens)
{
    const char *path = tmpdir_file("s");
    int sock, file;

    expect_refused(path, KVC_E_DISCONNECTED);
    expect_refused(tmpdir_file("no/folder"), KVC_E_DISCONNECTED);
    // A socket file that nobody stands behind, as a killed daemon leaves it.
    sock = listen_at(path, SOCK_SEQPACKET, 1);
    close(sock);
    expect_refused(path, KVC_E_DISCONNECTED);
    // Bound, but not listening.
    sock = listen_at(tmpdir_file("t"), SOCK_SEQPACKET, -1);
    expect_refused(tmpdir_file("t"), KVC_E_DISCONNECTED);
    close(sock);
    file = open(tmpdir_file("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(file);
    expect_refused(tmpdir_file("file"), KVC_E_DISCONNECTED);
    expect_refused(tmpdir_file("file/s"), KVC_E_DISCONNECTED);
}
END_TEST

START_TEST(test_another_kind_of_socket)
{
    const char *path = tmpdir_file("s");
    int listener = listen_at(path, SOCK_STREAM, 8);

    expect_refused(path, KVC_E_PROTOCOL);
    close(listener);
}
END_TEST

START_TEST(test_full_backlog)
{
    const char *path = tmpdir_file("s");
    int listener = listen_at(path, SOCK_SEQPACKET, 2), socks[16], n = 0;
    kvc_status status;

    while ((status = wire_connect(path, &socks[n])) == KVC_OK)
        ck_assert_int_lt(++n, 16);
    ck_assert_int_eq(status, KVC_E_BUSY);
    ck_assert_int_ge(n, 2);
    expect_refused(path, KVC_E_BUSY);
    // Room again.
    close(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    ck_assert_int_eq(wire_connect(path, &socks[n]), KVC_OK);
    for (int i = 0; i <= n; i++)
        close(socks[i]);
    close(listener);
}
END_TEST

START_TEST(test_length_of_the_path)
{
    char path[256];
    const size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    int listener, sock;

    expect_refused("", KVC_E_INVALID);
    memset(path, 'x', sizeof(path));
    path[most + 1] = '\0';
    expect_refused(path, KVC_E_INVALID);
    path[most] = '\0';
    expect_refused(path, KVC_E_DISCONNECTED);
    size_t folder = (size_t)snprintf(path, sizeof(path), "%s", tmpdir_file(""));
    ck_assert_uint_lt(folder, most);
    path[folder] = 'x';
    listener = listen_at(path, SOCK_SEQPACKET, 1);
    ck_assert_int_eq(wire_connect(path, &sock), KVC_OK);
    close(sock);
    close(listener);
}
END_TEST

START_TEST(test_without_permission)
{
    const char *path = tmpdir_file("s");
    int listener = listen_at(path, SOCK_SEQPACKET, 8);
    pid_t child;

    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(chmod(tmpdir_path(), 0755), 0);
    if (geteuid() != 0) {
        ck_assert_int_eq(chmod(path, 0), 0);
        expect_refused(path, KVC_E_DENIED);
    } else {
        child = proc_fork();
        if (child == 0) {
            int sock = -1;
            if (setgid(65534) != 0 || setuid(65534) != 0)
                _exit(2);
            _exit(wire_connect(path, &sock) == KVC_E_DENIED && sock == -1 ? 0 : 1);
        }
        proc_wait_ok(child, 2000);
    }
    close(listener);
}
END_TEST

START_TEST(test_out_of_descriptors)
{
    struct rlimit saved, limit;
    int sock = -77;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &saved), 0);
    limit = saved;
    limit.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    kvc_status status = wire_connect(tmpdir_file("s"), &sock);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &saved), 0);
    ck_assert_int_eq(status, KVC_E_NO_FDS);
    ck_assert_int_eq(sock, -77);
}
END_TEST

CHECK_MAIN("proto/connect", CHECK_UNIT_S, test_connects, test_nobody_listens,
           test_another_kind_of_socket, test_full_backlog, test_length_of_the_path,
           test_without_permission, test_out_of_descriptors)
