// Who may do what, by user and group: rules, what a reload does to who is there, and what a reader
// that is not to be trusted gets. Needs root, to become somebody else.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/lib/access.h"
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

#define KEYS    100u
#define N_KEYS  8u
#define WAIT_MS 5000
#define GROUP   12345u // of nobody on this machine

#define SKIP_UNLESS_ROOT()                                                                         \
    do {                                                                                           \
        if (geteuid() != 0)                                                                        \
            TEST_SKIP("needs root, to become another user");                                       \
    } while (0)

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
        access_expect_roles(socket, may);
        if (may[0] != '\0')
            access_expect_tenant(socket, OPERATOR, tenant);
        _exit(0);
    }
    proc_wait_ok(pid, WAIT_MS);
}

START_TEST(the_first_rule_that_fits_counts)
{
    struct daemon *d;

    SKIP_UNLESS_ROOT();
    d = ACCESS_START({"--allow", "uid:5001 roles=none"},
                     {"--allow", "gid:12345 tenant=team roles=worker,operator"},
                     {"--allow", "uid:5002 roles=reader"}, {"--allow", "uid:5003 tenant=team"},
                     {"--allow", "uid:0 roles=worker tenant=root"});
    expect_of(d, NULL, &(struct user){5001, GROUP, 0}, "", NULL);
    expect_of(d, NULL, &(struct user){5002, 5002, 0}, "R", "uid:5002");
    expect_of(d, NULL, &(struct user){5002, GROUP, 0}, "WRSO", "team");
    expect_of(d, NULL, &(struct user){5002, 5002, GROUP}, "WRSO", "team");
    expect_of(d, NULL, &(struct user){5003, 5003, 5004}, "WRS", "team");
    expect_of(d, NULL, &(struct user){5004, 5004, 0}, "", NULL); // none fits
    access_expect_roles(daemon_socket(d), "WRS");
    daemon_stop(d);
}
END_TEST

START_TEST(without_rules_everybody_is_himself)
{
    struct daemon *d;

    SKIP_UNLESS_ROOT();
    d = ACCESS_START({"--socket", "t tenant=t"});
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
    d = ACCESS_START({"--socket", "here"}, {"--socket", "r tenant=t roles=reader"},
                     {"--allow", here}, {"--allow", "uid:5001 roles=worker tenant=other"});
    expect_of(d, "here", &(struct user){5001, 5001, 0}, "WRSO", "mine");
    expect_of(d, NULL, &(struct user){5001, 5001, 0}, "WRS", "other");
    // The socket's tenant comes first, and its roles are the most.
    expect_of(d, "r", &(struct user){5001, 5001, 0}, "R", "t");
    // Root needs no rule.
    access_expect_roles(daemon_socket(d), "WRSO");
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
    ck_assert_int_eq(access_hello(s->socket, WORKER), KVC_E_DENIED);
    ck_assert_int_eq(access_hello(s->socket, READER), KVC_OK);
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
    d = ACCESS_START({"--config", path});
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

static void is_cut(struct scene *s)
{
    int sock;

    become(&(const struct user){5001, 5001, 0});
    sock = talk_hello(s->socket, WORKER, NULL);
    actor_stop();
    ck_assert(talk_ended(sock));
    ck_assert_int_eq(access_hello(s->socket, WORKER), KVC_E_DENIED);
}

START_TEST(a_rule_that_is_set_at_run_time_counts_at_once)
{
    Kvcache__Config config = KVCACHE__CONFIG__INIT;
    struct actor other;
    struct daemon *d;
    int own;

    SKIP_UNLESS_ROOT();
    d = ACCESS_START({"--allow", "*"});
    daemon_log_expect(d, "is not allowed any more");
    other = actor_start(is_cut, daemon_socket(d));
    actor_until_stop(&other);
    own = talk_hello(daemon_socket(d), OPERATOR, NULL);
    config.name = "allow";
    config.value = "uid:5002 socket=/nowhere";
    talk_expect_error(own, talk_send(own, WIRE_CONFIG, &config.base), KVC_E_INVALID, "value");
    config.value = "uid:5002";
    ck_assert_int_eq(talk_outcome(own, talk_send(own, WIRE_CONFIG, &config.base)), KVC_OK);
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
    ck_assert_int_eq(access_hello(s->socket, WORKER), KVC_E_DENIED);
    ck_assert_int_eq(access_hello(s->socket, SCHEDULER), KVC_E_DENIED);
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
    d = ACCESS_START({"--socket", "t tenant=t"}, {"--allow", "uid:5001 roles=reader"});
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

CHECK_MAIN("fault/access_users", CHECK_LIFE_S, the_first_rule_that_fits_counts,
           without_rules_everybody_is_himself, rules_of_one_socket_and_the_roles_of_another,
           a_reload_cuts_what_is_not_allowed_any_more,
           a_rule_that_is_set_at_run_time_counts_at_once, a_hostile_reader_changes_nothing)
