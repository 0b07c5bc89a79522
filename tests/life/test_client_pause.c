// The hook that kill tests stop a worker by: where the process stops, and what is there then.
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/pause.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/prompt.h"
#include "tests/lib/wait.h"

static struct daemon *d;

static int await_stop(pid_t child)
{
    int status = 0;

    wait_for(waitpid(child, &status, WNOHANG | WUNTRACED) == child, 5000);
    return status;
}

struct stop_point {
    const char *name;
    unsigned pass;
    uint32_t published; // of what the child saved, when it is killed there
};
static const struct stop_point stop_points[] = {
    {"save.before_chunk", 1, 0},
    {"save.before_word", 1, 0},
    {"save.before_chunk", 2, 64},
    {"save.before_word", 2, 64},
    {"load.before_copy", 2, PROMPT_BLOCKS},
    {"load.before_word", 1, PROMPT_BLOCKS},
};

// The hook of the kill tests itself: where the process stops, and what is there then.
START_TEST(process_stops_where_it_was_told)
{
    const struct stop_point *point = &stop_points[_i];
    const bool load = strncmp(point->name, "load", 4) == 0;
    struct prompt w = {0}, c = {0};
    kvc_lease lease;
    uint32_t blocks = 0;
    uint64_t id;
    pid_t child;
    int status;

    d = daemon_start(NULL);
    ck_assert(prompt_open(&w, d, 1));
    if (load) {
        ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
        ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    }
    child = proc_fork();
    if (child == 0) {
        if (!prompt_open(&c, d, 1))
            _exit(1);
        pause_arm(point->name, point->pass);
        if (load)
            _exit(prompt_is_whole(&c) ? 2 : 3);
        _exit(prompt_save_all(&c, NULL) == KVC_OK ? 2 : 3);
    }
    status = await_stop(child);
    ck_assert_msg(WIFSTOPPED(status), "it ended with %d", WEXITSTATUS(status));
    if (load)
        ck_assert_uint_eq(prompt_figures(&w).open_loads, 1);
    wait_for(kvc_probe(w.client, &w.part, 1, w.keys, PROMPT_BLOCKS, &blocks) == KVC_OK &&
                 blocks == point->published,
             5000);
    proc_kill(child);
    wait_for(prompt_owes_nothing(&w), 5000);
    ck_assert_uint_eq(prompt_lookup(&w, &lease), point->published);
    ck_assert(prompt_comes(&w, lease.id, point->published));
    ck_assert_int_eq(kvc_release(w.client, lease.id), KVC_OK);
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// Who goes on after a stop loses nothing.
START_TEST(process_goes_on_after_a_stop)
{
    struct prompt w = {0}, c = {0};
    uint32_t blocks = 0;
    pid_t child;

    d = daemon_start(NULL);
    child = proc_fork();
    if (child == 0) {
        uint64_t id;
        kvc_outcome outcome;

        if (!prompt_open(&c, d, 1))
            _exit(1);
        pause_arm("save.before_word", 2);
        _exit(prompt_save_all(&c, &id) == KVC_OK &&
                      kvc_wait(c.client, id, wait_patient_ms(5000), &outcome) == KVC_OK &&
                      outcome.published == PROMPT_BLOCKS
                  ? 0
                  : 2);
    }
    ck_assert(WIFSTOPPED(await_stop(child)));
    ck_assert(prompt_open(&w, d, 1));
    wait_for(kvc_probe(w.client, &w.part, 1, w.keys, PROMPT_BLOCKS, &blocks) == KVC_OK &&
                 blocks == 64,
             5000);
    kill(child, SIGCONT);
    proc_wait_ok(child, 5000);
    ck_assert(prompt_is_whole(&w));
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("client/pause", CHECK_LIFE_S,
                 {process_stops_where_it_was_told, 0,
                  sizeof(stop_points) / sizeof(stop_points[0]) - 1},
                 {process_goes_on_after_a_stop, 0, 0})
