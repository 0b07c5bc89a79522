/*
 * kvcachectl replay: a trace through real worker processes and a daemon, running or private.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/option.h"
#include "client/ctl/private.h"
#include "client/ctl/report.h"
#include "client/ctl/stats.h"
#include "client/ctl/tally.h"
#include "client/ctl/terminal.h"
#include "client/ctl/trace.h"
#include "client/ctl/worker.h"

#define WORKERS_MAX 256
#define REMOTE_MS   1000u /* peers may take this long */

struct replay {
    struct ctl *ctl; /* its socket is the private daemon's, if there is one */
    const char *file, *gpu_bytes, *host_bytes, *device, *directory;
    uint64_t limit, kill_every; /* requests; milliseconds between kills, 0: none */
    uint32_t workers, slices, slice_bytes, daemons;
    uint32_t pace;        /* of each worker, percent */
    uint32_t kill_daemon; /* after so many percent of the requests, 0: never */
    uint32_t copy;        /* kvc_copy */
    bool private, verify, skip_bad, demo;

    struct trace trace;
    struct private_daemon daemon, other; /* zeroed: there is none */
    struct tally *tally;
    pid_t pids[WORKERS_MAX];
    uint64_t killed;
    struct report_part before; /* the second daemon was killed */
    uint64_t seed;
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static const char *const copy_choices[] = {
    [KVC_COPY_WORKER] = "worker", [KVC_COPY_DAEMON] = "daemon", NULL};

#define FIELD(name) offsetof(struct replay, name)
static const struct option_row rows[] = {
    {"private", OPTION_FLAG, FIELD(private), NULL, "start a daemon of its own, gone afterwards", 0,
     0, NULL},
    {"gpu-bytes", OPTION_TEXT, FIELD(gpu_bytes), "SIZE", "its gpu tier [the daemon's default]", 0,
     0, NULL},
    {"host-bytes", OPTION_TEXT, FIELD(host_bytes), "SIZE", "its host tier [the daemon's default]",
     0, 0, NULL},
    {"device", OPTION_TEXT, FIELD(device), "NAME", "its device: auto, host or cuda [auto]", 0, 0,
     NULL},
    {"daemons", OPTION_UINT32, FIELD(daemons), "N",
     "private daemons that are each other's peers; workers are split between them [1]", 1, 2, NULL},
    {"directory", OPTION_TEXT, FIELD(directory), "HOST:PORT",
     "a Redis that runs, by which they know each other instead", 0, 0, NULL},
    {"kill-daemon", OPTION_UINT32, FIELD(kill_daemon), "PERCENT",
     "kill the second daemon after so many of its workers' requests; they go on without", 1, 99,
     NULL},
    {"workers", OPTION_UINT32, FIELD(workers), "N", "worker processes [2]", 1, WORKERS_MAX, NULL},
    {"limit", OPTION_UINT64, FIELD(limit), "N", "requests to replay [all]", 1, UINT32_MAX, NULL},
    {"slices", OPTION_UINT32, FIELD(slices), "N", "slices of a block [8]", 1, KVC_SLICES_MAX, NULL},
    {"slice-bytes", OPTION_UINT32, FIELD(slice_bytes), "N", "bytes of a slice [2048]", 1,
     KVC_SLICE_BYTES_MAX, NULL},
    {"copy", OPTION_CHOICE, FIELD(copy), "WHO", "who copies: worker or daemon [worker]", 0, 0,
     copy_choices},
    {"verify", OPTION_FLAG, FIELD(verify), NULL, "compare every loaded byte", 0, 0, NULL},
    {"skip-bad", OPTION_FLAG, FIELD(skip_bad), NULL, "count bad lines and go on", 0, 0, NULL},
    {"kill-every", OPTION_UINT64, FIELD(kill_every), "MS",
     "kill a worker this often, and start another in its place", 1, UINT32_MAX, NULL},
    {"pace", OPTION_UINT32, FIELD(pace), "PERCENT",
     "of the time a worker works, and sleeps the rest [100]", 1, 100, NULL},
    {"demo", OPTION_FLAG, FIELD(demo), NULL, NULL, 0, 0, NULL},
};

static const struct option_table table = {
    .json = &report_shape,
    .arguments = "FILE",
    .min_arguments = 1,
    .max_arguments = 1,
    .help = "Replays a trace (JSON lines with timestamp, input_length, output_length,\n"
            "hash_ids; \"-\" is standard input) through worker processes; timestamps are\n"
            "ignored.",
    OPTION_ROWS(rows)};

/* false: end with *exit_status. */
static bool parse(struct replay *replay, int argc, char **argv, int *exit_status)
{
    int n;

    if (!option_parse(replay->ctl, &table, argc, argv, replay, &n, exit_status))
        return false;
    replay->file = argv[1];
    if (replay->daemons == 1 && (replay->directory || replay->kill_daemon)) {
        *exit_status =
            ctl_usage(replay->ctl, "directory and kill-daemon need --daemons 2", replay->file);
        return false;
    }
    if (replay->kill_daemon && replay->kill_every) {
        *exit_status =
            ctl_usage(replay->ctl, "kill-daemon and kill-every exclude each other", replay->file);
        return false;
    }
    if (replay->private ||
        (replay->daemons == 1 && !replay->gpu_bytes && !replay->host_bytes && !replay->device))
        return true;
    *exit_status = ctl_usage(replay->ctl, "sizes, device and daemons need --private", replay->file);
    return false;
}

static bool is_of_other(const struct replay *replay, uint32_t worker)
{
    return replay->daemons == 2 && worker % 2 == 1;
}

static bool start_worker(struct replay *replay, uint32_t index)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        struct worker_options options = {.socket = is_of_other(replay, index) ? replay->other.socket
                                                                              : replay->ctl->socket,
                                         .remote_ms = replay->daemons == 2 ? REMOTE_MS : 0,
                                         .trace = &replay->trace,
                                         .tally = replay->tally,
                                         .index = index,
                                         .slices = replay->slices,
                                         .slice_bytes = replay->slice_bytes,
                                         .verify = replay->verify,
                                         .copy = (kvc_copy)replay->copy,
                                         .pace = replay->pace,
                                         .seed = replay->seed};
        _exit(worker_run(&options));
    }
    replay->pids[index] = pid;
    return true;
}

/* Takes in workers that ended; one that was killed is started again. Returns how many are left. */
static uint32_t collect(struct replay *replay)
{
    uint32_t left = 0;
    for (uint32_t w = 0; w < replay->workers; w++) {
        int status;
        if (replay->pids[w] > 0 && waitpid(replay->pids[w], &status, WNOHANG) == replay->pids[w]) {
            replay->pids[w] = 0;
            struct tally_worker *counts = &replay->tally->workers[w];
            if (WIFSIGNALED(status)) {
                bool again = replay->kill_every && WTERMSIG(status) == SIGKILL && !interrupt_came();
                if (!counts->message[0])
                    snprintf(counts->message, sizeof(counts->message), "killed by signal %d",
                             WTERMSIG(status));
                if (!again || !start_worker(replay, w))
                    atomic_store(&counts->failed, 1);
            }
        }
        left += replay->pids[w] > 0;
    }
    return left;
}

static void kill_one(struct replay *replay, unsigned *state)
{
    uint32_t victim = (uint32_t)rand_r(state) % replay->workers;
    if (replay->pids[victim] > 0 && kill(replay->pids[victim], SIGKILL) == 0)
        replay->killed++;
}

/* How far its own workers have come: those of the first daemon may be far ahead, or behind. */
static uint64_t other_percent(const struct replay *replay)
{
    uint64_t done = 0, all = 0;

    for (uint32_t w = 0; w < replay->workers; w++) {
        if (!is_of_other(replay, w))
            continue;
        done += atomic_load(&replay->tally->workers[w].next);
        all += replay->trace.n_requests;
    }
    return all > 0 ? done * 100 / all : 100;
}

/* The second daemon, once it is time. */
static void kill_daemon(struct replay *replay)
{
    if (!replay->kill_daemon || replay->before.requests ||
        other_percent(replay) < replay->kill_daemon)
        return;
    private_kill(&replay->other);
    report_part_take(replay->tally, &replay->before);
}

static void wait_for_workers(struct replay *replay)
{
    double start = now_seconds(), next_kill = start, next_line = start;
    bool terminal = isatty(STDERR_FILENO) && !replay->ctl->json;
    unsigned random = (unsigned)replay->seed;
    while (collect(replay)) {
        if (interrupt_came())
            atomic_store(&replay->tally->stop, 1);
        kill_daemon(replay);
        double now = now_seconds();
        if (terminal && now >= next_line) {
            report_progress(replay->tally, replay->trace.n_requests, now - start);
            next_line = now + 0.1;
        }
        if (replay->kill_every && !interrupt_came() && now >= next_kill) {
            if (now > start)
                kill_one(replay, &random);
            next_kill = now + (double)replay->kill_every * 1e-3;
        }
        struct timespec pause = {.tv_nsec = 2000000};
        nanosleep(&pause, NULL);
    }
    if (terminal)
        terminal_progress_end();
}

static bool say_failures(const struct replay *replay)
{
    bool failed = false;
    for (uint32_t w = 0; w < replay->workers; w++) {
        struct tally_worker *counts = &replay->tally->workers[w];
        if (!atomic_load(&counts->failed))
            continue;
        fprintf(stderr, "%s: worker %u: %s\n", replay->ctl->program, w, counts->message);
        failed = true;
    }
    return failed;
}

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

static int run(struct replay *replay)
{
    struct admin_stats before, after;
    if (!stats_fetch(replay->ctl, &before))
        return CTL_FAILED;
    double start = now_seconds();
    for (uint32_t w = 0; w < replay->workers; w++) {
        atomic_store(&replay->tally->workers[w].next, w);
        if (!start_worker(replay, w)) {
            fprintf(stderr, "%s: fork: %s\n", replay->ctl->program, strerror(errno));
            atomic_store(&replay->tally->stop, 1);
            wait_for_workers(replay);
            return CTL_FAILED;
        }
    }
    wait_for_workers(replay);
    double seconds = now_seconds() - start;
    bool failed = say_failures(replay);
    if (!stats_fetch(replay->ctl, &after))
        return CTL_FAILED;
    /* A daemon that was started again counts from 0. */
    if (after.boot_epoch != before.boot_epoch)
        before = (struct admin_stats){0};
    struct rusage children;
    getrusage(RUSAGE_CHILDREN, &children);
    double system_s = after.cpu_system_us == ADMIN_UNKNOWN
                          ? NAN
                          : (double)(after.cpu_system_us - before.cpu_system_us) * 1e-6;
    struct report report = {
        .tally = replay->tally,
        .bad_lines = replay->trace.bad_lines,
        .demotions = after.demotions - before.demotions,
        .promotions = after.promotions - before.promotions,
        .evictions = after.evictions - before.evictions,
        .admitted = after.admitted_blocks - before.admitted_blocks,
        .at_once = after.admitted_at_once - before.admitted_at_once,
        .killed_workers = replay->killed,
        .before = replay->before,
        .seconds = seconds,
        .daemon = {.all_s = (double)(after.cpu_us - before.cpu_us) * 1e-6, .system_s = system_s},
        .workers = {.all_s = seconds_of(children.ru_utime) + seconds_of(children.ru_stime),
                    .system_s = seconds_of(children.ru_stime)}};
    if (replay->ctl->json)
        report_json(&report, stdout);
    else
        report_text(&report, stdout);
    if (interrupt_came())
        fprintf(stderr, "%s: interrupted\n", replay->ctl->program);
    return failed || interrupt_came() || report_mismatches(&report) ? CTL_FAILED : CTL_OK;
}

static int run_and_stop(struct replay *replay)
{
    char error[256];
    if (replay->private) {
        struct private_peers peers[2];
        const bool two = replay->daemons == 2;
        if (two && !private_peers_choose(replay->directory, peers)) {
            fprintf(stderr, "%s: no ports for two daemons\n", replay->ctl->program);
            return CTL_FAILED;
        }
        if (!private_start(replay->device, replay->gpu_bytes, replay->host_bytes,
                           two ? &peers[0] : NULL, &replay->daemon, error, sizeof(error))) {
            fprintf(stderr, "%s: %s\n", replay->ctl->program, error);
            return CTL_FAILED;
        }
        if (two && !private_start(replay->device, replay->gpu_bytes, replay->host_bytes, &peers[1],
                                  &replay->other, error, sizeof(error))) {
            fprintf(stderr, "%s: %s\n", replay->ctl->program, error);
            private_stop(&replay->daemon);
            return CTL_FAILED;
        }
        replay->ctl->socket = replay->daemon.socket;
        if (!private_wait_populated(&replay->daemon) ||
            (two && !private_wait_populated(&replay->other)))
            fprintf(stderr, "%s: the daemon has not found all of its memory yet\n",
                    replay->ctl->program);
        if (two && !(private_wait_linked(&replay->daemon) && private_wait_linked(&replay->other)))
            fprintf(stderr, "%s: the two daemons have not found each other yet\n",
                    replay->ctl->program);
    }
    int result = interrupt_came() ? CTL_FAILED : run(replay);
    if (replay->daemons == 2 && !private_stop(&replay->other)) {
        fprintf(stderr, "%s: the second daemon did not stop in order\n", replay->ctl->program);
        result = CTL_FAILED;
    }
    if (!private_stop(&replay->daemon)) {
        fprintf(stderr, "%s: the private daemon did not stop in order\n", replay->ctl->program);
        result = CTL_FAILED;
    }
    if (replay->demo) {
        uint64_t blocks = tally_sum(replay->tally, blocks);
        uint64_t hits = tally_sum(replay->tally, hits[0]) + tally_sum(replay->tally, hits[1]);
        printf("demo: %s, %llu requests, %.1f %% of blocks hit, %llu bytes verified, %llu "
               "mismatches\n",
               result == CTL_OK ? "ok" : "failed",
               (unsigned long long)tally_sum(replay->tally, requests),
               blocks ? 100.0 * (double)hits / (double)blocks : 0.0,
               (unsigned long long)tally_sum(replay->tally, verified_bytes),
               (unsigned long long)tally_sum(replay->tally, mismatches));
    }
    return result;
}

int replay_command(struct ctl *ctl, int argc, char **argv)
{
    struct replay replay = {
        .ctl = ctl, .workers = 2, .slices = 8, .slice_bytes = 2048, .daemons = 1};
    int result;
    if (!parse(&replay, argc, argv, &result))
        return result;
    interrupt_catch();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    replay.seed = (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec + (uint64_t)getpid();

    char error[512];
    if (!trace_read(replay.file, replay.limit, replay.skip_bad, &replay.trace, error,
                    sizeof(error))) {
        fprintf(stderr, "%s: %s\n", ctl->program, error);
        return CTL_FAILED;
    }
    replay.tally = tally_create(replay.workers, replay.trace.n_requests);
    if (!replay.tally) {
        fprintf(stderr, "%s: out of memory\n", ctl->program);
        trace_free(&replay.trace);
        return CTL_FAILED;
    }
    result = run_and_stop(&replay);
    tally_destroy(replay.tally);
    trace_free(&replay.trace);
    return result;
}
