#include "tests/lib/access.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/tmpdir.h"

#define ARGS_MAX 24

#define WORKER    KVCACHE__ROLE__ROLE_WORKER
#define READER    KVCACHE__ROLE__ROLE_READER
#define SCHEDULER KVCACHE__ROLE__ROLE_SCHEDULER
#define OPERATOR  KVCACHE__ROLE__ROLE_OPERATOR

struct daemon *access_start(const char *const settings[][2])
{
    static char texts[ARGS_MAX][512];
    const char *args[ARGS_MAX] = {"--socket-mode", "0666"};
    size_t n = 2;

    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    for (size_t i = 0; settings[i][0] != NULL; i++) {
        const bool is_socket = strcmp(settings[i][0], "--socket") == 0;

        ck_assert_uint_lt(n, ARGS_MAX - 2);
        snprintf(texts[i], sizeof(texts[i]), "%s%s%s", is_socket ? tmpdir_path() : "",
                 is_socket ? "/" : "", settings[i][1]);
        args[n++] = settings[i][0];
        args[n++] = texts[i];
    }
    return daemon_start(args);
}

kvc_status access_hello(const char *socket, Kvcache__Role role)
{
    const Kvcache__Hello hello = talk_a_hello(role);
    int sock = talk_connect(socket);
    kvc_status status = talk_outcome(sock, talk_send(sock, WIRE_HELLO, &hello.base));

    close(sock);
    return status;
}

void access_expect_tenant(const char *socket, Kvcache__Role role, const char *tenant)
{
    const Kvcache__Hello hello = talk_a_hello(role);
    int sock = talk_connect(socket), fds[KVC_WIRE_FDS_MAX];
    Kvcache__HelloReply *reply;
    uint32_t n_fds;

    reply = talk_reply(sock, talk_send(sock, WIRE_HELLO, &hello.base), WIRE_HELLO,
                       &kvcache__hello_reply__descriptor, fds, &n_fds);
    ck_assert_str_eq(reply->tenant, tenant);
    for (uint32_t i = 0; i < n_fds; i++)
        close(fds[i]);
    talk_free(reply);
    close(sock);
}

void access_expect_roles(const char *socket, const char *may)
{
    const struct {
        char who;
        Kvcache__Role role;
    } roles[] = {{'W', WORKER}, {'R', READER}, {'S', SCHEDULER}};
    Kvcache__Flush all = KVCACHE__FLUSH__INIT;
    int sock;

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        ck_assert_int_eq(access_hello(socket, roles[i].role),
                         strchr(may, roles[i].who) != NULL ? KVC_OK : KVC_E_DENIED);
    if (may[0] == '\0') {
        ck_assert_int_eq(access_hello(socket, OPERATOR), KVC_E_DENIED);
        return;
    }
    sock = talk_hello(socket, OPERATOR, NULL);
    all.all = true;
    ck_assert_int_eq(talk_outcome(sock, talk_send(sock, WIRE_FLUSH, &all.base)),
                     strchr(may, 'O') != NULL ? KVC_OK : KVC_E_DENIED);
    close(sock);
}
