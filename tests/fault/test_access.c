// Who may do what: every request of every role, and sockets with tenants, roles and namespaces.
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/access.h"
#include "tests/lib/check_main.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"

#define WORKER    KVCACHE__ROLE__ROLE_WORKER
#define READER    KVCACHE__ROLE__ROLE_READER
#define SCHEDULER KVCACHE__ROLE__ROLE_SCHEDULER
#define OPERATOR  KVCACHE__ROLE__ROLE_OPERATOR

#define KEYS   100u
#define N_KEYS 8u

// Letters are sessions: worker, reader, scheduler, operator, and looker: an operator who may not.
static const struct {
    uint16_t type;
    const char *who;
    bool silent; // no reply, also not to say no
} table[] = {
    {WIRE_HELLO, "WRSOL", false},    {WIRE_REGISTER, "WRS", false},
    {WIRE_UNREGISTER, "WRS", false}, {WIRE_MAP, "WR", false},
    {WIRE_UNMAP, "WR", false},       {WIRE_REGION_BEGIN, "WR", false},
    {WIRE_REGION_PART, "WR", false}, {WIRE_REGION_END, "WR", false},
    {WIRE_REGION_DROP, "WR", false}, {WIRE_LOOKUP, "WRS", false},
    {WIRE_SAVE, "W", false},         {WIRE_ABORT, "WR", false},
    {WIRE_LOAD, "WR", false},        {WIRE_EXTEND, "WRS", false},
    {WIRE_RELEASE, "WRS", false},    {WIRE_ADOPT, "WRS", false},
    {WIRE_DRAINED, "WR", false},     {WIRE_SUSPEND, "WR", false},
    {WIRE_RESUME, "WR", false},      {WIRE_NUDGE, "WR", true},
    {WIRE_HINT, "WRSOL", false},     {WIRE_PIN, "WSO", false},
    {WIRE_FLUSH, "WSO", false},      {WIRE_STATS, "WRSOL", false},
    {WIRE_LIST, "WRSOL", false},     {WIRE_CONFIG, "O", false},
    {WIRE_WATCH, "WRSOL", false},    {WIRE_PING, "WRSOL", false},
    {WIRE_REPORT, "WR", true},       {WIRE_QUOTA, "O", false},
    {WIRE_REMOTE, "WRS", false},     {WIRE_VERIFY, "O", false},
    {WIRE_DRAIN, "O", false},
};

#define TYPES (sizeof(table) / sizeof(table[0]))

static uint64_t refused(int figures)
{
    Kvcache__StatsReply *stats = talk_stats(figures);
    uint64_t n = stats->refused_requests;

    talk_free(stats);
    return n;
}

// What is no DENIED may be any other complaint: the bodies are empty.
static void expect_each_type(int sock, int figures, char who)
{
    for (size_t i = 0; i < TYPES; i++) {
        const bool may = strchr(table[i].who, who) != NULL;
        const uint64_t before = refused(figures);
        const uint32_t seq = talk_send(sock, table[i].type, NULL);

        if (table[i].silent) {
            talk_ping(sock);
            if (table[i].type == WIRE_NUDGE || !may)
                ck_assert_msg((refused(figures) == before) == may, "%c: type %u", who,
                              table[i].type);
            continue;
        }
        ck_assert_msg((talk_outcome(sock, seq) != KVC_E_DENIED) == may, "%c: type %u", who,
                      table[i].type);
    }
}

START_TEST(every_request_of_every_role)
{
    struct daemon *d = ACCESS_START({"--socket", "a tenant=a"});
    const struct {
        char who;
        Kvcache__Role role;
        const char *socket;
    } sessions[] = {{'W', WORKER, daemon_socket(d)},
                    {'R', READER, daemon_socket(d)},
                    {'S', SCHEDULER, daemon_socket(d)},
                    {'O', OPERATOR, daemon_socket(d)},
                    {'L', OPERATOR, tmpdir_file("a")}};
    int figures = talk_hello(daemon_socket(d), OPERATOR, NULL);

    ck_assert_uint_eq(TYPES, WIRE_TYPE_MAX);
    for (size_t i = 0; i < sizeof(sessions) / sizeof(sessions[0]); i++) {
        int sock = talk_hello(sessions[i].socket, sessions[i].role, NULL);

        expect_each_type(sock, figures, sessions[i].who);
        close(sock);
    }
    close(figures);
    daemon_stop(d);
}
END_TEST

START_TEST(a_socket_says_what_its_sessions_may_be)
{
    struct daemon *d =
        ACCESS_START({"--socket", "w roles=worker"}, {"--socket", "r roles=reader"},
                     {"--socket", "s roles=scheduler,reader"}, {"--socket", "o roles=operator"},
                     {"--socket", "n roles=none"}, {"--socket", "t tenant=t"},
                     {"--socket", "all tenant=t roles=worker,operator"});

    access_expect_roles(daemon_socket(d), "WRSO");
    access_expect_roles(tmpdir_file("w"), "WRS");
    access_expect_roles(tmpdir_file("r"), "R");
    access_expect_roles(tmpdir_file("s"), "RS");
    access_expect_roles(tmpdir_file("o"), "O");
    access_expect_roles(tmpdir_file("n"), "");
    access_expect_roles(tmpdir_file("t"), "WRS");
    access_expect_roles(tmpdir_file("all"), "WRSO");
    daemon_stop(d);
}
END_TEST

START_TEST(sockets_are_tenants)
{
    struct daemon *d = ACCESS_START({"--socket", "a tenant=a"}, {"--socket", "a2 tenant=a"},
                                    {"--socket", "b tenant=b"});
    struct talk_worker a = talk_worker(tmpdir_file("a"), WORKER, 1), a2, b, own;
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__ListReply *listed;
    char uid[16];

    snprintf(uid, sizeof(uid), "uid:%u", geteuid());
    access_expect_tenant(tmpdir_file("a"), WORKER, "a");
    access_expect_tenant(tmpdir_file("b"), READER, "b");
    access_expect_tenant(daemon_socket(d), WORKER, uid);
    talk_publish(&a, KEYS, N_KEYS);
    a2 = talk_worker(tmpdir_file("a2"), WORKER, 1);
    b = talk_worker_unmapped(tmpdir_file("b"), WORKER, 1);
    own = talk_worker_unmapped(daemon_socket(d), WORKER, 1);
    ck_assert_uint_eq(talk_probe(&a2, KEYS, N_KEYS), N_KEYS);
    ck_assert_uint_eq(talk_probe(&b, KEYS, N_KEYS), 0);
    ck_assert_uint_eq(talk_probe(&own, KEYS, N_KEYS), 0);

    // Though all of them are one user, who is root here.
    for (int i = 0; i < 3; i++) {
        static const char *const what[] = {"clients", "namespaces", "extents"};

        list.what = (char *)what[i];
        listed = talk_ask(b.sock, WIRE_LIST, &list.base, &kvcache__list_reply__descriptor);
        for (size_t row = 0; row < listed->n_rows; row++)
            for (size_t v = 0; v < listed->rows[row]->n_values; v++)
                ck_assert_str_ne(listed->rows[row]->values[v], "a");
        talk_free(listed);
    }
    talk_worker_close(&a);
    talk_worker_close(&a2);
    talk_worker_close(&b);
    talk_worker_close(&own);
    daemon_stop(d);
}
END_TEST

static uint32_t send_register(int sock, uint8_t ns)
{
    Kvcache__Register message = KVCACHE__REGISTER__INIT;
    uint32_t slices[] = {TALK_SLICE_BYTES, TALK_SLICE_BYTES};
    uint8_t digest[KVC_NAMESPACE_BYTES];

    memset(digest, ns, sizeof(digest));
    message.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    message.block_tokens = 16;
    message.slice_bytes = slices;
    message.n_slice_bytes = 2;
    return talk_send(sock, WIRE_REGISTER, &message.base);
}

static size_t count_rows(int sock, const char *what)
{
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__ListReply *listed;
    size_t n;

    list.what = (char *)what;
    listed = talk_ask(sock, WIRE_LIST, &list.base, &kvcache__list_reply__descriptor);
    n = listed->n_rows;
    talk_free(listed);
    return n;
}

static size_t count_events(int sock)
{
    Kvcache__Watch watch = KVCACHE__WATCH__INIT;
    Kvcache__WatchReply *reply =
        talk_ask(sock, WIRE_WATCH, &watch.base, &kvcache__watch_reply__descriptor);
    size_t n = reply->n_sequences;

    talk_free(reply);
    return n;
}

#define DIGEST_1 "0101010101010101010101010101010101010101010101010101010101010101"
#define DIGEST_4 "0404040404040404040404040404040404040404040404040404040404040404"

// 2 exists in the tenant, 3 nowhere: who is limited cannot tell.
START_TEST(a_socket_with_namespaces_knows_no_other)
{
    struct daemon *d =
        ACCESS_START({"--socket", "all tenant=t roles=worker"},
                     {"--socket", "one tenant=t namespaces=" DIGEST_1}, {"--allow", "*"});
    struct talk_worker all[2], one;
    size_t events;

    for (uint8_t ns = 1; ns <= 2; ns++) {
        all[ns - 1] = talk_worker(tmpdir_file("all"), WORKER, ns);
        talk_publish(&all[ns - 1], KEYS, N_KEYS);
    }
    one = talk_worker(tmpdir_file("one"), WORKER, 1);
    ck_assert_uint_eq(talk_probe(&one, KEYS, N_KEYS), N_KEYS);
    for (uint8_t ns = 2; ns <= 3; ns++)
        talk_expect_error(one.sock, send_register(one.sock, ns), KVC_E_DENIED, "namespace_digest");
    ck_assert_uint_eq(count_rows(all[0].sock, "namespaces"), 2);
    ck_assert_uint_eq(count_rows(one.sock, "namespaces"), 1);
    ck_assert_uint_eq(count_rows(all[0].sock, "layouts"), 2);
    ck_assert_uint_eq(count_rows(one.sock, "layouts"), 1);
    ck_assert_uint_eq(count_rows(all[0].sock, "blocks"), 2 * N_KEYS);
    ck_assert_uint_eq(count_rows(one.sock, "blocks"), N_KEYS);
    events = count_events(all[0].sock);
    ck_assert_uint_eq(events, 2 * N_KEYS);
    ck_assert_uint_eq(count_events(one.sock), N_KEYS);

    // By the number of its part, which is easy to guess, neither.
    one.part = all[1].part;
    ck_assert_int_ne(talk_outcome(one.sock, talk_send_lookup(&one, KEYS, N_KEYS)), KVC_OK);
    for (int i = 0; i < 2; i++)
        talk_worker_close(&all[i]);
    talk_worker_close(&one);
    daemon_stop(d);
}
END_TEST

START_TEST(more_namespaces_of_a_socket_that_is_named_again)
{
    char again[512];
    struct daemon *d;
    int sock;

    snprintf(again, sizeof(again), "one namespaces=%s", DIGEST_4);
    d = ACCESS_START({"--socket", "one tenant=t namespaces=" DIGEST_1}, {"--socket", again});
    sock = talk_hello(tmpdir_file("one"), WORKER, NULL);
    ck_assert_int_eq(talk_outcome(sock, send_register(sock, 1)), KVC_OK);
    ck_assert_int_eq(talk_outcome(sock, send_register(sock, 2)), KVC_E_DENIED);
    ck_assert_int_eq(talk_outcome(sock, send_register(sock, 4)), KVC_OK);
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(a_socket_has_its_mode_and_group)
{
    const struct group *group = geteuid() == 0 ? getgrgid(1) : getgrgid(getegid());
    char setting[128];
    struct daemon *d;
    struct stat st;

    if (group == NULL)
        TEST_SKIP("no group with a name");
    snprintf(setting, sizeof(setting), "g mode=0620 group=%s", group->gr_name);
    d = ACCESS_START({"--socket", setting});
    ck_assert_int_eq(stat(tmpdir_file("g"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0620);
    ck_assert_uint_eq(st.st_gid, group->gr_gid);
    daemon_stop(d);
    ck_assert_int_eq(access(tmpdir_file("g"), F_OK), -1);
    ck_assert_int_eq(access(tmpdir_file("g.lock"), F_OK), -1);
}
END_TEST

START_TEST(settings_that_tell_of_tenants_are_for_operators)
{
    struct daemon *d = ACCESS_START({"--socket", "a tenant=a"}, {"--socket", "b tenant=secret"});
    Kvcache__List list = KVCACHE__LIST__INIT;
    bool seen[2] = {false, false};

    list.what = "config";
    for (int i = 0; i < 2; i++) {
        int sock = talk_hello(i == 0 ? tmpdir_file("a") : daemon_socket(d), OPERATOR, NULL);
        Kvcache__ListReply *listed =
            talk_ask(sock, WIRE_LIST, &list.base, &kvcache__list_reply__descriptor);

        for (size_t row = 0; row < listed->n_rows; row++)
            seen[i] = seen[i] || strstr(listed->rows[row]->values[1], "secret") != NULL;
        talk_free(listed);
        close(sock);
    }
    ck_assert(!seen[0]);
    ck_assert(seen[1]);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("fault/access", CHECK_LIFE_S, every_request_of_every_role,
           a_socket_says_what_its_sessions_may_be, sockets_are_tenants,
           a_socket_with_namespaces_knows_no_other, more_namespaces_of_a_socket_that_is_named_again,
           a_socket_has_its_mode_and_group, settings_that_tell_of_tenants_are_for_operators)
