// Every place of the daemon that has a fault switch fails here at least once, and the test proves
// that it did. A failure is a typed error or a miss, one line in the log, and nothing else.
#include <stdio.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define NEW   1000u
#define N_NEW 100u

static void expect_fired(const struct stage *s, const char *site, uint64_t times)
{
    ck_assert_msg(daemon_fault_fired(s->daemon, site) >= times, "%s fired %llu times", site,
                  (unsigned long long)daemon_fault_fired(s->daemon, site));
    daemon_fault_off(s->daemon, site);
}

// A connection that cannot be served ends, and the next one is served.
START_TEST(site_connection_poll)
{
    struct stage s;
    int sock;

    stage_open(&s, NULL);
    daemon_log_expect(s.daemon, "connection not served");
    daemon_fault_arm(s.daemon, "connection.poll", 0, 1);
    sock = talk_connect(s.socket);
    ck_assert(talk_ended(sock));
    close(sock);
    expect_fired(&s, "connection.poll", 1);
    close(talk_hello(s.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// Without descriptors who connects waits, and is served when there are some.
START_TEST(site_listener_accept)
{
    struct stage s;
    int sock;

    stage_open(&s, NULL);
    daemon_log_expect(s.daemon, "accept paused");
    daemon_fault_arm(s.daemon, "listener.accept", 0, 3);
    sock = talk_hello(s.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    expect_fired(&s, "listener.accept", 3);
    ck_assert_int_eq(daemon_log_count(s.daemon, "accept paused"), 1);
    ck_assert_int_eq(daemon_log_count(s.daemon, "accept resumed"), 1);
    close(sock);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

START_TEST(site_process_peerpidfd)
{
    struct stage s;

    stage_open(&s, NULL);
    daemon_fault_arm(s.daemon, "process.peerpidfd", 0, 1);
    close(talk_hello(s.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    expect_fired(&s, "process.peerpidfd", 1);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// Making a session's page; each is told, and the connection may try again.
static const char *const page_sites[] = {"fd.memfd", "fd.truncate", "fd.seal", "fd.map", "fd.dup"};

START_TEST(sites_of_a_completion_page)
{
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;
    const char *site = page_sites[_i];
    struct stage s;
    int sock;

    stage_open(&s, NULL);
    daemon_log_allow(s.daemon, "no completion page");
    sock = talk_connect(s.socket);
    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_READER;
    daemon_fault_arm(s.daemon, site, 0, 1);
    ck_assert_int_ne(talk_outcome(sock, talk_send(sock, WIRE_HELLO, &hello.base)), KVC_OK);
    expect_fired(&s, site, 1);
    close(sock);
    close(talk_hello(s.socket, KVCACHE__ROLE__ROLE_READER, NULL));
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// A descriptor of an extent, for a worker and for a reader: none of them comes, and the next MAP
// brings them all.
START_TEST(sites_of_an_extents_descriptor)
{
    const char *site = _i == 0 ? "fd.dup" : "fd.reopen";
    const Kvcache__Role role = _i == 0 ? KVCACHE__ROLE__ROLE_WORKER : KVCACHE__ROLE__ROLE_READER;
    Kvcache__Map map = KVCACHE__MAP__INIT;
    struct talk_worker w;
    struct stage s;

    stage_open(&s, NULL);
    daemon_log_expect(s.daemon, "cannot export");
    w = talk_worker_unmapped(s.socket, role, STAGE_RAW_NS);
    daemon_fault_arm(s.daemon, site, 2, 1);
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), KVC_E_NO_FDS, NULL);
    expect_fired(&s, site, 1);
    ck_assert_int_eq(talk_outcome(w.sock, talk_send(w.sock, WIRE_MAP, &map.base)), KVC_OK);
    talk_worker_close(&w);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// No word for a save: nothing of it can be proved, so nothing of it is assigned.
START_TEST(site_store_word)
{
    uint8_t states[N_NEW];
    uint64_t save = 0;
    kvc_status status;
    struct stage s;

    stage_open(&s, NULL);
    daemon_fault_arm(s.daemon, "store.word", 0, 1000);
    status = engine_try_save(&s.witness, NEW, N_NEW, states, &save);
    expect_fired(&s, "store.word", 1);
    if (status == KVC_OK) {
        ck_assert_uint_eq(save, 0);
        for (uint32_t i = 0; i < N_NEW; i++)
            ck_assert_uint_eq(states[i], KVC_KEY_SKIPPED);
    } else {
        ck_assert_int_eq(status, KVC_E_BUSY);
    }
    stage_check(&s);
    ck_assert_uint_eq(engine_lookup(&s.witness, STAGE_WITNESS_KEYS, 4), 4);
    daemon_fault_arm(s.daemon, "store.word", 0, 1);
    ck_assert_int_eq(engine_try_load(&s.witness), KVC_E_BUSY);
    expect_fired(&s, "store.word", 1);
    ck_assert(!engine_holds(&s.witness, STAGE_WITNESS_KEYS, 1));
    engine_load(&s.witness);
    engine_release(&s.witness);
    engine_put(&s.witness, NEW, N_NEW);
    stage_close(&s);
}
END_TEST

// No slot in the middle of a save: what was assigned before stays assigned, the rest is skipped.
START_TEST(site_slots_take)
{
    uint8_t states[N_NEW];
    uint32_t saved = 0;
    struct stage s;

    stage_open(&s, NULL);
    daemon_fault_arm(s.daemon, "slots.take", 10, 1000000);
    ck_assert_int_eq(engine_try_save(&s.witness, NEW, N_NEW, states, NULL), KVC_OK);
    expect_fired(&s, "slots.take", 1);
    while (saved < N_NEW && states[saved] == KVC_KEY_SAVED)
        saved++;
    ck_assert_uint_eq(saved, 10);
    for (uint32_t i = saved; i < N_NEW; i++)
        ck_assert_uint_eq(states[i], KVC_KEY_SKIPPED);
    wait_for(engine_probe(&s.witness, NEW, N_NEW) == saved, ENGINE_MS);
    engine_put(&s.witness, NEW + saved, N_NEW - saved);
    engine_verify(&s.witness, NEW, N_NEW);
    // Room was looked for, in vain: what was the coldest may have gone for it.
    s.crowded = true;
    stage_close(&s);
}
END_TEST

// More new blocks than the gpu tier has room for, so that some must move to the host tier: those
// that come next. How many copies that takes, and when, is the daemon's affair.
static void overfill(struct stage *s, uint32_t *next)
{
    for (uint32_t i = 0; i < 8; i++, *next += 100)
        (void)engine_put_some(&s->witness, *next, 100);
}

static void overfill_until_fired(struct stage *s, uint32_t *next, const char *site, uint64_t times)
{
    wait_for((overfill(s, next), daemon_fault_fired(s->daemon, site) >= times), ENGINE_MS);
}

static void overfill_until_demoted(struct stage *s, uint32_t *next)
{
    wait_for((overfill(s, next), stage_stats(s).demotions > 0), ENGINE_MS);
}

// S19: a demotion that fails changes nothing, and the block is where it was.
START_TEST(S19_site_mover_copy)
{
    uint32_t next = NEW, first;
    struct stage s;

    stage_open(&s, NULL);
    daemon_log_expect(s.daemon, "copy failed");
    daemon_fault_arm(s.daemon, "mover.copy", 0, 5);
    overfill_until_fired(&s, &next, "mover.copy", 5);
    wait_for(stage_stats(&s).failed_demotions >= 1, ENGINE_MS);
    stage_check(&s);
    expect_fired(&s, "mover.copy", 5);
    first = next;
    overfill_until_demoted(&s, &next);
    // Whatever is there is right, wherever it is by now.
    for (; first < next; first += 100) {
        uint32_t there = engine_probe(&s.witness, first, 100);

        if (there > 0)
            engine_verify(&s.witness, first, there);
    }
    s.crowded = true;
    stage_close(&s);
}
END_TEST

// A copy that takes its time holds up nobody: others are served, and room is short for a while.
START_TEST(site_mover_late)
{
    uint32_t next = NEW;
    struct stage s;

    stage_open(&s, NULL);
    daemon_fault_arm(s.daemon, "mover.late", 0, 200);
    overfill_until_fired(&s, &next, "mover.late", 1);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(kvc_ping(s.witness.client), KVC_OK);
    overfill_until_fired(&s, &next, "mover.late", 200);
    overfill_until_demoted(&s, &next);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

// In the background, while it serves already: it serves on with what has its pages. The rest is
// used by nobody, since a worker that touched it would die.
START_TEST(site_device_populate)
{
    static const char *const small[] = {"--gpu-bytes", "8M", "--host-bytes", "8M", NULL};
    struct engine e;
    char output[512];
    struct daemon *d;
    uint64_t fired;

    d = daemon_start_armed(small, "device.populate", 1, 1, &fired, output, sizeof(output));
    ck_assert_ptr_nonnull(d);
    daemon_log_expect(d, "no memory");
    wait_for(daemon_fault_fired(d, "device.populate") == 1, ENGINE_MS);
    engine_open(&e, daemon_socket(d));
    wait_for((kvc_dispatch(e.client), engine_stats(e.client).lost_extents) == 7, ENGINE_MS);
    engine_put(&e, NEW, N_NEW);
    engine_verify(&e, NEW, N_NEW);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(site_device_old_kernel)
{
    static const char *const small[] = {"--gpu-bytes", "8M", "--host-bytes", "8M", NULL};
    struct engine e;
    char output[512];
    struct daemon *d;
    uint64_t fired;

    d = daemon_start_armed(small, "device.old_kernel", 0, 1000, &fired, output, sizeof(output));
    ck_assert_ptr_nonnull(d);
    wait_for(daemon_log_count(d, "memory is populated") == 1, ENGINE_MS);
    ck_assert_uint_gt(daemon_fault_fired(d, "device.old_kernel"), 0);
    engine_open(&e, daemon_socket(d));
    engine_put(&e, NEW, N_NEW);
    engine_verify(&e, NEW, N_NEW);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

// No failure, but hashing that is the same each time; everything works with it.
START_TEST(site_block_seed)
{
    static const char *const small[] = {"--gpu-bytes", "8M", "--host-bytes", "8M", NULL};
    struct engine e;
    char output[512];
    struct daemon *d;
    uint64_t fired;

    d = daemon_start_armed(small, "block.seed", 0, 1, &fired, output, sizeof(output));
    ck_assert_ptr_nonnull(d);
    ck_assert_uint_eq(fired, 1);
    engine_open(&e, daemon_socket(d));
    engine_put(&e, NEW, N_NEW);
    engine_verify(&e, NEW, N_NEW);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

static uint64_t epoch_of_a_start(void)
{
    static const char *const small[] = {"--gpu-bytes", "4M", "--host-bytes", "4M", NULL};
    char output[512];
    struct engine e;
    struct daemon *d;
    uint64_t fired, epoch;

    d = daemon_start_armed(small, "server.clock", 0, 1, &fired, output, sizeof(output));
    ck_assert_ptr_nonnull(d);
    ck_assert_uint_eq(fired, 1);
    engine_open(&e, daemon_socket(d));
    epoch = kvc_boot_epoch(e.client);
    engine_close(&e);
    daemon_stop(d);
    return epoch;
}

// A clock that stands still, or is set back, makes no two daemons the same. Once in a million.
START_TEST(site_server_clock)
{
    ck_assert_uint_ne(epoch_of_a_start(), epoch_of_a_start());
}
END_TEST

// What is needed to start: it does not, and says why once.
static const char *const start_sites[] = {
    "endpoint.socket", "device.reserve",  "device.map",    "fd.memfd",      "fd.truncate",
    "fd.seal",         "fd.map",          "mem.alloc",     "endpoint.lock", "endpoint.bind",
    "server.loop",     "listener.listen", "listener.poll", "watch.add",     "closer.thread",
};

static bool starts(const char *site, uint32_t k)
{
    static const char *const small[] = {"--gpu-bytes", "4M", "--host-bytes", "4M", NULL};
    char output[2048];
    uint64_t fired;
    struct daemon *d = daemon_start_armed(small, site, k, 1, &fired, output, sizeof(output));

    if (d == NULL) {
        ck_assert_msg(fired == 1, "%s: refused to start for another reason: %s", site, output);
        return false;
    }
    daemon_fault_off(d, "*");
    daemon_log_allow(d, "out of memory"); // an allocation that serving makes
    daemon_log_allow(d, "no completion page");
    daemon_stop(d);
    return true;
}

// The k-th passage, for every k up to where it starts.
START_TEST(F29_what_is_needed_to_start_fails_once)
{
    uint32_t k = 0;

    while (k < 200 && !starts(start_sites[_i], k))
        k++;
    ck_assert_msg(k > 0, "%s was not reached", start_sites[_i]);
    ck_assert_uint_lt(k, 200);
}
END_TEST

// A new switch needs a test, here or elsewhere, that names it.
START_TEST(every_site_has_a_test)
{
    char site[64] = "";
    FILE *missing;

    if (access("daemon/base/fault.h", R_OK) < 0)
        TEST_SKIP("needs the sources, and the repository's root as the current folder");
    missing =
        popen("for site in $(grep -rhoE 'fault_fires\\(\"[^\"]+\"' daemon | cut -d'\"' -f2); do"
              " grep -rqF --include='*.c' \"\\\"$site\\\"\" tests || echo $site; done",
              "re");
    ck_assert_ptr_nonnull(missing);
    ck_assert_msg(fscanf(missing, "%63s", site) != 1, "%s is in no test", site);
    ck_assert_int_eq(pclose(missing), 0);
}
END_TEST

CHECK_MAIN_LOOPS("fault/sites", CHECK_LIFE_S, {site_server_clock, 0, 0},
                 {site_connection_poll, 0, 0}, {site_listener_accept, 0, 0},
                 {site_process_peerpidfd, 0, 0}, {sites_of_a_completion_page, 0, 4},
                 {sites_of_an_extents_descriptor, 0, 1}, {site_store_word, 0, 0},
                 {site_slots_take, 0, 0}, {S19_site_mover_copy, 0, 0}, {site_mover_late, 0, 0},
                 {site_device_populate, 0, 0}, {site_device_old_kernel, 0, 0},
                 {site_block_seed, 0, 0},
                 {F29_what_is_needed_to_start_fails_once, 0,
                  sizeof(start_sites) / sizeof(start_sites[0]) - 1},
                 {every_site_has_a_test, 0, 0})
