// Who may do what: every request of every role, sockets with tenants, roles and namespaces, rules
// for users and groups, and what a reader that is not to be trusted gets.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/actor.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define WORKER    KVCACHE__ROLE__ROLE_WORKER
#define READER    KVCACHE__ROLE__ROLE_READER
#define SCHEDULER KVCACHE__ROLE__ROLE_SCHEDULER
#define OPERATOR  KVCACHE__ROLE__ROLE_OPERATOR

#define ARGS_MAX 24
#define KEYS     100u
#define N_KEYS   8u
#define WAIT_MS  5000
#define GROUP    12345u // of nobody on this machine

#define SKIP_UNLESS_ROOT()                                                                         \
    do {                                                                                           \
        if (geteuid() != 0)                                                                        \
            TEST_SKIP("needs root, to become another user");                                       \
    } while (0)

// Settings, each a --socket with a file name of the test's folder in front, or a --allow.
static struct daemon *start(const char *const settings[][2])
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

#define START(...) start((const char *const[][2]){__VA_ARGS__, {NULL, NULL}})

static kvc_status outcome_of_hello(const char *socket, Kvcache__Role role)
{
    const Kvcache__Hello hello = talk_a_hello(role);
    int sock = talk_connect(socket);
    kvc_status status = talk_outcome(sock, talk_send(sock, WIRE_HELLO, &hello.base));

    close(sock);
    return status;
}

static void expect_tenant(const char *socket, Kvcache__Role role, const char *tenant)
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
    struct daemon *d = START({"--socket", "a tenant=a"});
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

// Who may look says that he is an operator; then requests say whether he may do more.
static void expect_roles(const char *socket, const char *may)
{
    const struct {
        char who;
        Kvcache__Role role;
    } roles[] = {{'W', WORKER}, {'R', READER}, {'S', SCHEDULER}};
    Kvcache__Flush all = KVCACHE__FLUSH__INIT;
    int sock;

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        ck_assert_int_eq(outcome_of_hello(socket, roles[i].role),
                         strchr(may, roles[i].who) != NULL ? KVC_OK : KVC_E_DENIED);
    if (may[0] == '\0') {
        ck_assert_int_eq(outcome_of_hello(socket, OPERATOR), KVC_E_DENIED);
        return;
    }
    sock = talk_hello(socket, OPERATOR, NULL);
    all.all = true;
    ck_assert_int_eq(talk_outcome(sock, talk_send(sock, WIRE_FLUSH, &all.base)),
                     strchr(may, 'O') != NULL ? KVC_OK : KVC_E_DENIED);
    close(sock);
}

START_TEST(a_socket_says_what_its_sessions_may_be)
{
    struct daemon *d =
        START({"--socket", "w roles=worker"}, {"--socket", "r roles=reader"},
              {"--socket", "s roles=scheduler,reader"}, {"--socket", "o roles=operator"},
              {"--socket", "n roles=none"}, {"--socket", "t tenant=t"},
              {"--socket", "all tenant=t roles=worker,operator"});

    expect_roles(daemon_socket(d), "WRSO");
    expect_roles(tmpdir_file("w"), "WRS");
    expect_roles(tmpdir_file("r"), "R");
    expect_roles(tmpdir_file("s"), "RS");
    expect_roles(tmpdir_file("o"), "O");
    expect_roles(tmpdir_file("n"), "");
    expect_roles(tmpdir_file("t"), "WRS");
    expect_roles(tmpdir_file("all"), "WRSO");
    daemon_stop(d);
}
END_TEST

START_TEST(sockets_are_tenants)
{
    struct daemon *d =
        START({"--socket", "a tenant=a"}, {"--socket", "a2 tenant=a"}, {"--socket", "b tenant=b"});
    struct talk_worker a = talk_worker(tmpdir_file("a"), WORKER, 1), a2, b, own;
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__ListReply *listed;
    char uid[16];

    snprintf(uid, sizeof(uid), "uid:%u", geteuid());
    expect_tenant(tmpdir_file("a"), WORKER, "a");
    expect_tenant(tmpdir_file("b"), READER, "b");
    expect_tenant(daemon_socket(d), WORKER, uid);
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
    struct daemon *d = START({"--socket", "all tenant=t roles=worker"},
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
    d = START({"--socket", "one tenant=t namespaces=" DIGEST_1}, {"--socket", again});
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
    d = START({"--socket", setting});
    ck_assert_int_eq(stat(tmpdir_file("g"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0620);
    ck_assert_uint_eq(st.st_gid, group->gr_gid);
    daemon_stop(d);
    ck_assert_int_eq(access(tmpdir_file("g"), F_OK), -1);
    ck_assert_int_eq(access(tmpdir_file("g.lock"), F_OK), -1);
}
END_TEST

// Users with groups.

struct user {
    uid_t uid;
    gid_t gid, other; // a supplementary one
};

static void become(const struct user *user)
{
    const pid_t parent = getppid();

    ck_assert_int_eq(setgroups(user->other != 0, &user->other), 0);
    ck_assert_int_eq(setresgid(user->gid, user->gid, user->gid), 0);
    ck_assert_int_eq(setresuid(user->uid, user->uid, user->uid), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0); // or /proc/self is closed to it
    proc_die_with_parent(parent);
}

// In a process of that user.
static void expect_of(struct daemon *d, const char *file, const struct user *user, const char *may,
                      const char *tenant)
{
    const char *socket = file != NULL ? tmpdir_file(file) : daemon_socket(d);
    pid_t pid = proc_fork();

    if (pid == 0) {
        become(user);
        expect_roles(socket, may);
        if (may[0] != '\0')
            expect_tenant(socket, OPERATOR, tenant);
        _exit(0);
    }
    proc_wait_ok(pid, WAIT_MS);
}

START_TEST(the_first_rule_that_fits_counts)
{
    struct daemon *d;

    SKIP_UNLESS_ROOT();
    d = START({"--allow", "uid:5001 roles=none"},
              {"--allow", "gid:12345 tenant=team roles=worker,operator"},
              {"--allow", "uid:5002 roles=reader"}, {"--allow", "uid:5003 tenant=team"},
              {"--allow", "uid:0 roles=worker tenant=root"});
    expect_of(d, NULL, &(struct user){5001, GROUP, 0}, "", NULL);
    expect_of(d, NULL, &(struct user){5002, 5002, 0}, "R", "uid:5002");
    expect_of(d, NULL, &(struct user){5002, GROUP, 0}, "WRSO", "team");
    expect_of(d, NULL, &(struct user){5002, 5002, GROUP}, "WRSO", "team");
    expect_of(d, NULL, &(struct user){5003, 5003, 5004}, "WRS", "team");
    expect_of(d, NULL, &(struct user){5004, 5004, 0}, "", NULL); // none fits
    expect_roles(daemon_socket(d), "WRS");
    daemon_stop(d);
}
END_TEST

START_TEST(without_rules_everybody_is_himself)
{
    struct daemon *d;

    SKIP_UNLESS_ROOT();
    d = START({"--socket", "t tenant=t"});
    expect_of(d, NULL, &(struct user){5001, 5001, 0}, "WRS", "uid:5001");
    expect_of(d, "t", &(struct user){5001, 5001, 0}, "WRS", "t");
    daemon_stop(d);
}
END_TEST

START_TEST(rules_of_one_socket_and_the_roles_of_another)
{
    char here[512];
    struct daemon *d;

    SKIP_UNLESS_ROOT();
    snprintf(here, sizeof(here), "uid:5001 roles=worker,operator tenant=mine socket=%s",
             tmpdir_file("here"));
    d = START({"--socket", "here"}, {"--socket", "r tenant=t roles=reader"}, {"--allow", here},
              {"--allow", "uid:5001 roles=worker tenant=other"});
    expect_of(d, "here", &(struct user){5001, 5001, 0}, "WRSO", "mine");
    expect_of(d, NULL, &(struct user){5001, 5001, 0}, "WRS", "other");
    // The socket's tenant comes first, and its roles are the most.
    expect_of(d, "r", &(struct user){5001, 5001, 0}, "R", "t");
    // Root needs no rule.
    expect_roles(daemon_socket(d), "WRSO");
    daemon_stop(d);
}
END_TEST

static void write_rules(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void stays_until_cut(struct scene *s)
{
    int sock;

    become(&(const struct user){5001, 5001, 0});
    sock = talk_hello(s->socket, WORKER, NULL);
    actor_stop();
    ck_assert(talk_ended(sock));
    ck_assert_int_eq(outcome_of_hello(s->socket, WORKER), KVC_E_DENIED);
    ck_assert_int_eq(outcome_of_hello(s->socket, READER), KVC_OK);
    sock = talk_hello(s->socket, READER, NULL);
    actor_stop();
    talk_ping(sock); // what it is is still allowed
}

START_TEST(a_reload_cuts_what_is_not_allowed_any_more)
{
    const char *path = tmpdir_file("conf");
    struct actor other;
    struct daemon *d;
    int own;

    SKIP_UNLESS_ROOT();
    write_rules(path, "allow = uid:5001 tenant=t roles=worker\n");
    d = START({"--config", path});
    own = talk_hello(daemon_socket(d), WORKER, NULL);
    other = actor_start(stays_until_cut, daemon_socket(d));
    actor_until_stop(&other);
    daemon_log_expect(d, "is not allowed any more");
    write_rules(path, "allow = uid:5001 tenant=t roles=reader\n");
    kill(daemon_pid(d), SIGHUP);
    wait_for(daemon_log_count(d, "configuration reloaded") == 1, WAIT_MS);
    actor_continue(&other);
    actor_until_stop(&other);
    // A file that is wrong changes nothing.
    daemon_log_expect(d, "configuration not reloaded");
    write_rules(path, "allow = uid:5001 tenant=t roles=nothing\n");
    kill(daemon_pid(d), SIGHUP);
    wait_for(daemon_log_count(d, "configuration not reloaded") == 1, WAIT_MS);
    actor_continue(&other);
    actor_end(&other);
    talk_ping(own);
    close(own);
    daemon_stop(d);
}
END_TEST

// A reader of the tenant, of another user, with what it knows of a worker.
static void tries_all_it_can(struct scene *s)
{
    Kvcache__Map map = KVCACHE__MAP__INIT;
    Kvcache__Abort abort_ = KVCACHE__ABORT__INIT;
    Kvcache__Release release = KVCACHE__RELEASE__INIT;
    int fds[KVC_WIRE_FDS_MAX];
    Kvcache__MapReply *mapped;
    struct talk_worker w;
    uint32_t n_fds;
    char path[48];

    become(&(const struct user){5001, 5001, 0});
    ck_assert_int_eq(outcome_of_hello(s->socket, WORKER), KVC_E_DENIED);
    ck_assert_int_eq(outcome_of_hello(s->socket, SCHEDULER), KVC_E_DENIED);
    w = talk_worker_unmapped(s->socket, READER, 1);
    mapped = talk_reply(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), WIRE_MAP,
                        &kvcache__map_reply__descriptor, fds, &n_fds);
    talk_free(mapped);
    ck_assert_uint_gt(n_fds, 0);
    for (uint32_t i = 0; i < n_fds; i++) {
        ck_assert_ptr_eq(
            mmap(NULL, KVC_EXTENT_BYTES_MIN, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0),
            MAP_FAILED);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[i]);
        ck_assert_int_eq(open(path, O_RDWR | O_CLOEXEC), -1);
        ck_assert_int_eq(errno, EACCES);
        close(fds[i]);
    }
    ck_assert_uint_eq(talk_probe(&w, KEYS, N_KEYS), N_KEYS);
    ck_assert_int_eq(talk_outcome(w.sock, talk_send_save(&w, 5 * KEYS, N_KEYS, false)),
                     KVC_E_DENIED);
    ck_assert_int_eq(talk_outcome(w.sock, talk_send(w.sock, WIRE_FLUSH, NULL)), KVC_E_DENIED);
    ck_assert_int_eq(talk_outcome(w.sock, talk_send(w.sock, WIRE_PIN, NULL)), KVC_E_DENIED);
    abort_.save = s->told->values[0];
    abort_.never_all = true;
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_ABORT, &abort_.base), KVC_E_UNKNOWN, "save");
    release.lease = s->told->values[1];
    ck_assert_int_eq(talk_outcome(w.sock, talk_send(w.sock, WIRE_RELEASE, &release.base)),
                     KVC_E_DENIED);
    talk_worker_close(&w);
}

START_TEST(a_hostile_reader_changes_nothing)
{
    Kvcache__LookupReply *lease;
    Kvcache__SaveReply *save;
    struct talk_worker w;
    struct actor reader;
    struct daemon *d;

    SKIP_UNLESS_ROOT();
    d = START({"--socket", "t tenant=t"}, {"--allow", "uid:5001 roles=reader"});
    w = talk_worker(tmpdir_file("t"), WORKER, 1);
    talk_publish(&w, KEYS, N_KEYS);
    lease = talk_lookup(&w, KEYS, N_KEYS);
    save = talk_save(&w, 2 * KEYS, N_KEYS, false);
    reader = actor_start(tries_all_it_can, tmpdir_file("t"));
    reader.told->values[0] = save->save;
    reader.told->values[1] = lease->lease;
    actor_end(&reader);
    talk_prove_all(&w, save);
    wait_for(talk_probe(&w, 2 * KEYS, N_KEYS) == N_KEYS, WAIT_MS);
    ck_assert_uint_eq(talk_probe(&w, KEYS, N_KEYS), N_KEYS);
    talk_free(lease);
    talk_free(save);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(settings_that_tell_of_tenants_are_for_operators)
{
    struct daemon *d = START({"--socket", "a tenant=a"}, {"--socket", "b tenant=secret"});
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
           a_socket_has_its_mode_and_group, the_first_rule_that_fits_counts,
           without_rules_everybody_is_himself, rules_of_one_socket_and_the_roles_of_another,
           a_reload_cuts_what_is_not_allowed_any_more, a_hostile_reader_changes_nothing,
           settings_that_tell_of_tenants_are_for_operators)
