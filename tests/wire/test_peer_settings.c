/* What a daemon with peers is told: secrets that fit or do not, and what it cannot follow. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/port.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define MS 5000

static struct pair p;
static struct engine a, b;

static const char *secret_file(const char *name, const char *text)
{
    const char *path = tmpdir_file(name);
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    chmod(path, 0600);
    return path;
}

START_TEST(peers_with_the_same_secret)
{
    const char *const args[] = {"--peer-secret-file",
                                secret_file("one", "a secret of some length\n"), NULL};

    pair_open(&p, 2, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 100);
    engine_verify_all(&b, 100, 100);
    engine_close(&a);
    engine_close(&b);
    pair_end(&p);
}
END_TEST

START_TEST(peers_with_other_secrets)
{
    static const char *const with[] = {"another secret, as long", NULL};
    char one[32];
    struct daemon *d, *e;

    p.ports[0] = port_take();
    snprintf(one, sizeof(one), "127.0.0.1:%d", p.ports[0]);
    d = daemon_start((const char *[]){"--peer-listen", one, "--peer-secret-file",
                                      secret_file("one", "a secret of some length"), NULL});
    e = daemon_start(_i == 0 ? (const char *[]){"--peers", one, "--peer-secret-file",
                                                secret_file("two", with[0]), NULL}
                             : (const char *[]){"--peers", one, NULL});
    wait_for(daemon_log_count(e, _i == 0 ? "it says: " : "peer lost") > 0 ||
                 daemon_log_count(e, "it has a secret, this daemon has none") > 0,
             MS);
    ck_assert_int_eq(daemon_log_count(e, "peer open"), 0);
    ck_assert_int_eq(daemon_log_count(d, "peer asks name"), 0);
    daemon_stop(e);
    daemon_stop(d);
}
END_TEST

/* Settings of peers that cannot be followed: the daemon says which, and leaves nothing. */
START_TEST(settings_that_are_wrong)
{
    static const struct {
        const char *args[5], *says;
        bool read; /* found when settings are read: nothing was begun */
    } rows[] = {
        {{"--peers", "nonsense", NULL}, "peers: \"nonsense\" is not host:port", true},
        {{"--peers", "127.0.0.1:99999", NULL}, "is not host:port", true},
        {{"--peer-listen", "1.2.3:7", NULL}, "peer-listen: \"1.2.3\" is no address", false},
        {{"--peer-listen", "203.0.113.1:7000", NULL}, "peer-listen: 203.0.113.1:7000", false},
        {{"--peers", "127.0.0.1:9", "--peer-secret-file", "/etc/passwd", NULL},
         "by others than its owner",
         false},
        {{"--peers", "127.0.0.1:9", "--peer-secret-file", "/nonexistent", NULL},
         "/nonexistent: ",
         false},
        {{"--peers", "127.0.0.1:9", "--peer-tenant", "uid:x", NULL}, "peer-tenant: ", true},
        {{"--peers", "127.0.0.1:9 tenant=uid:x", NULL}, "peers: \"uid:x\" is not uid:N", true},
        {{"--peers", "tenant=a, 127.0.0.1:9", NULL},
         "peers: \"tenant=a\" stands behind no peer",
         true},
        {{"--peers", "127.0.0.1:9 tenant=a 127.0.0.1:10 tenant=b", NULL},
         "is of two tenants",
         true},
        {{"--peers", "127.0.0.1:9", "--directory", "127.0.0.1:9", NULL},
         "needs peer-listen",
         false},
        {{"--peers", "127.0.0.1:9", "--ucx", "/nonexistent.so", NULL},
         "there is no /nonexistent.so",
         false},
    };
    static char output[8192];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_int_eq(daemon_run(rows[i].args, output, sizeof(output)), 1);
        ck_assert_msg(strstr(output, rows[i].says) != NULL, "%zu: %s", i, output);
        ck_assert_msg(rows[i].read || strstr(output, daemon_last_words()) != NULL, "%zu: %s", i,
                      output);
    }
}
END_TEST

/* Without the library, or memory for it, a daemon that is to have peers does not start. */
START_TEST(what_peers_need_is_not_there)
{
    static const char *const sites[] = {"ucx.load", "ucx.register", "peer.slab"};
    static char output[8192];
    const char *const args[] = {"--peers", "127.0.0.1:9", NULL};
    uint64_t fired;

    ck_assert_ptr_null(daemon_start_armed(args, sites[_i], 0, 1, &fired, output, sizeof(output)));
    ck_assert_uint_eq(fired, 1);
}
END_TEST

CHECK_MAIN_LOOPS("peer/settings", CHECK_LIFE_S, {peers_with_the_same_secret, 0, 0},
                 {peers_with_other_secrets, 0, 1}, {settings_that_are_wrong, 0, 0},
                 {what_peers_need_is_not_there, 0, 2})
