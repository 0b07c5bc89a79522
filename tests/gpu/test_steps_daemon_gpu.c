// Each call of the driver fails once, whichever it is: in a worker, from its connecting to its end,
// and in a daemon that starts. Nothing is wrong or left over after it, and the next try goes well.
// Only the driver without a GPU fails on demand (tests/gpu/fake); elsewhere those are waived.
//
//   test_steps_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

#define BLOCKS    8u
#define NOT_FIRED 10 // exit status

static const char *const small[] = {"--gpu-bytes", "32M", "--host-bytes", "64M", NULL};
static const int errors[] = {1 /* invalid value */, 2 /* out of memory */, 999 /* unknown */};

enum stage { CONNECT, REGISTER, SAVE, LOAD, CLOSE, STAGES };

struct step {
    enum stage stage; // in which a call fails
    int skip, error;
    bool by_daemon, mapped;
    uint32_t first; // key
    bool fired;
};

static int alive(const struct worker *w)
{
    int (*count)(void);

    *(void **)&count = dlsym(w->driver.library, "kvc_fake_alive");
    return count();
}

static void arm(const struct step *s, enum stage stage)
{
    if (s->stage == stage)
        switch_break_in(getpid(), "any", s->skip, s->error, false);
}

static void disarm(struct step *s, enum stage stage)
{
    if (s->stage != stage)
        return;
    s->fired = !switch_is_set("any");
    switch_off("break-any");
}

static kvc_status connect_worker(const struct scene_daemon *d, struct worker *w)
{
    const kvc_options options = {
        .socket = d->socket,
        .role = KVC_ROLE_WORKER,
        .connect_ms = SCENE_MS,
        .lookup_ms = SCENE_MS,
        .save_ms = SCENE_MS,
        .load_ms = SCENE_MS,
    };

    return kvc_connect(&options, &w->client);
}

static kvc_status save(struct worker *w, uint32_t first, kvc_outcome *outcome)
{
    uint8_t keys[BLOCKS * KVC_KEY_BYTES];
    uint32_t blocks[BLOCKS];
    const kvc_save_entry entry = {
        .part = w->part, .keys = keys, .blocks = blocks, .n_keys = BLOCKS};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1, .stream = w->stream};
    uint64_t id = 0;
    kvc_status status;

    scene_keys(first, BLOCKS, keys);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    status = kvc_save(w->client, &args, &id);
    return id != 0 ? kvc_wait(w->client, id, SCENE_MS, outcome) : status;
}

// What is there is loaded and right, or loading it fails.
static kvc_status load(struct worker *w, struct step *s, uint32_t *n)
{
    uint8_t keys[BLOCKS * KVC_KEY_BYTES];
    kvc_status status;

    scene_keys(s->first, BLOCKS, keys);
    worker_poison(w);
    arm(s, LOAD);
    status = kvc_lookup(w->client, 0, &w->part, 1, keys, BLOCKS, 0, &w->lease);
    *n = status == KVC_OK ? w->lease.blocks : 0;
    if (*n > 0)
        status = worker_load(w, NULL);
    disarm(s, LOAD);
    if (*n > 0) {
        CHECK(status != KVC_OK || worker_wrong(w, s->first, *n) == 0);
        KVC(w, kvc_release(w->client, w->lease.id));
    }
    return status;
}

// Saves until all is there: into a full tier room comes as fast as blocks are demoted. An extent
// that could not be mapped was left out, and is asked for again by who registers again.
static void save_patiently(struct worker *w, uint32_t first)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    kvc_outcome outcome;

    for (;;) {
        const uint32_t n = worker_lookup(w, first, BLOCKS);

        if (n > 0)
            KVC(w, kvc_release(w->client, w->lease.id));
        if (n == BLOCKS)
            return;
        CHECK(scene_now_us() < until_us);
        usleep(5000);
        worker_register_as(w, 7);
        KVC(w, w->registered);
        KVC(w, save(w, first, &outcome));
    }
}

static void save_and_load(struct worker *w, struct step *s)
{
    kvc_outcome outcome = {0};
    kvc_status status;
    uint32_t n = 0;

    arm(s, SAVE);
    status = save(w, s->first, &outcome);
    disarm(s, SAVE);
    if (s->stage != SAVE) {
        KVC(w, status);
        KVC(w, outcome.status);
    }
    CHECK(status == KVC_OK || scene_is_of_the_device(status));
    save_patiently(w, s->first);
    status = load(w, s, &n);
    CHECK(status == KVC_OK || (s->stage == LOAD && scene_is_of_the_device(status)));
    if (status != KVC_OK) {
        s->stage = STAGES;
        status = load(w, s, &n);
    }
    CHECK(status == KVC_OK && n == BLOCKS);
}

static void play_step(const struct scene_daemon *d, void *arg)
{
    struct step *s = arg;
    struct worker w = {.n_blocks = BLOCKS, .by_daemon = s->by_daemon, .may_be_refused = true};
    const bool closes = s->stage == CLOSE;
    kvc_status status;
    int before;

    worker_open_gpu(&w, &(struct worker_options){.n_blocks = BLOCKS, .mapped = s->mapped});
    worker_fill(&w, s->first, BLOCKS);
    before = alive(&w);

    arm(s, CONNECT);
    status = connect_worker(d, &w);
    disarm(s, CONNECT);
    if (status != KVC_OK) {
        CHECK(s->fired && scene_is_of_the_device(status) && alive(&w) == before);
        CHECK(connect_worker(d, &w) == KVC_OK);
    }
    arm(s, REGISTER);
    worker_register_as(&w, 7);
    disarm(s, REGISTER);
    if (w.registered != KVC_OK) {
        CHECK(s->fired);
        worker_register_as(&w, 7);
        CHECK(w.registered == KVC_OK);
    }
    save_and_load(&w, s);
    arm(s, CLOSE);
    kvc_close(w.client);
    disarm(s, CLOSE);
    CHECK(closes || alive(&w) == before); // who gives back and is refused can do no more
    exit(s->fired ? 0 : NOT_FIRED);
}

// Call by call, until a stage makes no more.
static uint32_t fail_in(const struct scene_daemon *d, struct step s)
{
    const int step = getenv("KVC_TEST_LONG") != NULL ? 1 : 11;
    uint32_t runs = 0;

    for (int k = 0;; k += step, runs++) {
        int status;

        s.skip = k;
        s.error = errors[(k / step + (int)s.stage) % 3];
        s.fired = false;
        s.first = (uint32_t)(1000 + (k + 1000 * (int)s.stage) * (int)BLOCKS);
        status = scene_wait(scene_fork(play_step, d, &s));
        switch_off("break-any");
        if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FIRED)
            return runs;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "call %d of stage %d, error %d\n", k, (int)s.stage, s.error);
            scene_show_log(d);
            exit(1);
        }
    }
}

static void each_call_of_a_worker(bool by_daemon, bool mapped)
{
    struct scene_baseline before;
    struct scene_daemon d;

    switch_check();
    scene_daemon_start(&d, small);
    scene_populated(&d);
    (void)fail_in(&d, (struct step){.stage = LOAD, .by_daemon = by_daemon, .mapped = mapped});
    before = scene_baseline(&d);
    for (int stage = CONNECT; stage < STAGES; stage++)
        CHECK(fail_in(&d, (struct step){.stage = (enum stage)stage,
                                        .by_daemon = by_daemon,
                                        .mapped = mapped}) > 0);
    scene_settled(&d);
    scene_returns_to(&d, &before);
    CHECK(scene_stats(&d).lost_gpus == 0);
    scene_daemon_stop(&d);
}

// F21
static void each_call_of_a_worker_that_copies(void)
{
    each_call_of_a_worker(false, false);
}

static void each_call_of_a_worker_that_lends(void)
{
    each_call_of_a_worker(true, false);
    each_call_of_a_worker(true, true);
}

static void play_whole(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_put(&w, 1, BLOCKS);
    worker_verify(&w, 1, BLOCKS);
    worker_close(&w);
}

// F21: it says why it does not start, or works.
static void each_call_of_a_daemon_that_starts(void)
{
    static const char *const args[] = {"--gpu-bytes", "16M", "--host-bytes", "16M", NULL};
    const int step = getenv("KVC_TEST_LONG") != NULL ? 1 : 13;
    bool fired = true;

    switch_check();
    for (int k = 0; fired; k += step) {
        struct scene_daemon d;

        switch_break_in(0, "any", k, errors[k / step % 3], false);
        if (scene_daemon_try(&d, args)) {
            scene_populated(&d);
            fired = !switch_is_set("any");
            switch_off("break-any");
            scene_run(play_whole, &d, NULL);
            scene_daemon_stop(&d);
        } else {
            char text[4096];

            CHECK(!switch_is_set("any"));
            scene_log(&d, text, sizeof(text));
            CHECK(strstr(text, "cannot start: ") != NULL);
        }
    }
}

static void play_unmarked(const struct scene_daemon *d, void *arg)
{
    kvc_outcome outcome = {0};
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_fill(&w, 100, BLOCKS);
    switch_break_in(getpid(), "event_record", 0, errors[1], false);
    CHECK(save(&w, 100, &outcome) == KVC_OK && outcome.published == BLOCKS);
    CHECK(!switch_is_set("event_record"));
    CHECK(worker_lookup(&w, 100, BLOCKS) == BLOCKS);
    worker_poison(&w);
    switch_break_in(getpid(), "event_record", 0, errors[1], false);
    KVC(&w, worker_load(&w, NULL));
    CHECK(!switch_is_set("event_record") && worker_wrong(&w, 100, BLOCKS) == 0);
    worker_close(&w);
}

static void play_unmarked_lent(const struct scene_daemon *d, void *arg)
{
    kvc_outcome outcome = {0};
    struct worker w;

    (void)arg;
    worker_open_with(
        &w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = BLOCKS, .by_daemon = true});
    worker_fill(&w, 200, BLOCKS);
    switch_break_in(d->pid, "event_record", 0, errors[1], false);
    switch_break_in(d->pid, "stream_synchronize", 0, errors[1], false);
    CHECK(save(&w, 200, &outcome) == KVC_OK && outcome.published == BLOCKS);
    CHECK(!switch_is_set("event_record") && !switch_is_set("stream_synchronize"));
    worker_verify(&w, 200, BLOCKS);
    worker_close(&w);
}

// F21: what no event stands behind is waited for at once, and has not failed.
static void an_end_that_cannot_be_marked(void)
{
    struct scene_daemon d;

    switch_check();
    scene_daemon_start(&d, small);
    scene_populated(&d);
    scene_run(play_unmarked, &d, NULL);
    scene_run(play_unmarked_lent, &d, NULL);
    scene_daemon_stop(&d);
}

// All that a worker does, while its thread captures another stream in the strictest way.
static void use_beside(const struct scene_daemon *d, struct worker *w)
{
    struct worker other = {.n_blocks = BLOCKS, .memory = w->memory};
    struct step s = {.stage = STAGES, .first = 100};
    kvc_outcome outcome = {0};

    CHECK(save(w, s.first, &outcome) == KVC_OK && outcome.published == BLOCKS);
    CHECK(worker_lookup(w, s.first, BLOCKS) == BLOCKS);
    KVC(w, worker_load(w, NULL));
    KVC(w, kvc_release(w->client, w->lease.id));
    CHECK(connect_worker(d, &other) == KVC_OK);
    worker_register_as(&other, 9);
    KVC(&other, kvc_unregister(other.client, other.part));
    kvc_close(other.client);
}

// What saves and loads do when nothing is new to them: they enqueue, allocate nothing, and wait for
// nothing.
static void play_enqueues(const struct scene_daemon *d, void *arg)
{
    uint32_t blocks[BLOCKS];
    struct worker w;
    kvc_load_args args;
    uint64_t id = 0;
    kvc_outcome outcome;
    int *capturing;
    char note[64];

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    capturing = dlsym(w.driver.library, "kvc_fake_capturing");
    worker_put(&w, 1, BLOCKS);
    worker_verify(&w, 1, BLOCKS);
    for (uint32_t i = 0; i < 4; i++) {
        worker_fill(&w, 100 * (i + 1), BLOCKS);
        *capturing = 2; // whatever ends a capture is refused, and noted
        id = worker_save_enqueue(&w, 100 * (i + 1), BLOCKS);
        KVC(&w, kvc_wait(w.client, id, SCENE_MS, &outcome));
        CHECK(worker_lookup(&w, 100 * (i + 1), BLOCKS) == BLOCKS);
        for (uint32_t b = 0; b < BLOCKS; b++)
            blocks[b] = b;
        args = (kvc_load_args){.lease = w.lease.id,
                               .part = w.part,
                               .count = BLOCKS,
                               .blocks = blocks,
                               .stream = w.stream,
                               .load = &id};
        KVC(&w, kvc_load(w.client, &args));
        *capturing = 0;
        KVC(&w, kvc_load_result(w.client, id, SCENE_MS, NULL));
        CHECK(worker_wrong(&w, 100 * (i + 1), BLOCKS) == 0);
    }
    snprintf(note, sizeof(note), "capture-broken-%d", (int)getpid());
    CHECK(!switch_is_on(note));
    worker_close(&w);
}

static void saves_and_loads_only_enqueue(void)
{
    struct scene_daemon d;

    switch_check();
    scene_daemon_start(&d, NULL);
    scene_run(play_enqueues, &d, NULL);
    scene_daemon_stop(&d);
}

static void play_beside_a_capture(const struct scene_daemon *d, void *arg)
{
    int (*begin)(void *, int), (*end)(void *, void **), *capturing;
    void *captured = NULL, *graph = NULL;
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_fill(&w, 100, BLOCKS);
    *(void **)&begin = dlsym(w.driver.library, "cuStreamBeginCapture_v2");
    *(void **)&end = dlsym(w.driver.library, "cuStreamEndCapture");
    capturing = dlsym(w.driver.library, "kvc_fake_capturing");
    CUDA(&w, stream_create(&captured, CUDA_STREAM_NON_BLOCKING));
    if (capturing != NULL)
        *capturing = 1;
    else
        CHECK(begin(captured, 0 /* of all threads */) == 0);
    use_beside(d, &w);
    if (capturing != NULL)
        *capturing = 0;
    else
        CHECK(end(captured, &graph) == 0 && graph != NULL);
    CHECK(worker_wrong(&w, 100, BLOCKS) == 0);
    if (capturing != NULL) {
        char note[64];

        snprintf(note, sizeof(note), "capture-broken-%d", (int)getpid());
        CHECK(!switch_is_on(note));
    }
    worker_close(&w);
}

static void beside_a_capture(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_beside_a_capture, &d, NULL);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"F21 each call of a worker that copies fails once", each_call_of_a_worker_that_copies, 150},
    {"F21 each call of a worker that lends fails once", each_call_of_a_worker_that_lends, 300},
    {"F21 each call of a daemon that starts fails once", each_call_of_a_daemon_that_starts, 150},
    {"F21 an end that cannot be marked", an_end_that_cannot_be_marked, 0},
    {"saves and loads only enqueue", saves_and_loads_only_enqueue, 0},
    {"a capture goes on beside saves and loads", beside_a_capture, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
