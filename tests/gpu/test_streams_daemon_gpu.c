// More streams of one client than it tells apart: those that share counters, and a gate for the
// daemon's copies, do not get in each other's way. All of them save at once, and load at once.
//
//   test_streams_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>

#include "proto/limits.h"
#include "tests/gpu/scene.h"

#define STREAMS (KVC_PAGE_GATES + 8u)
#define EACH    40u // blocks
#define ALL     (STREAMS * EACH)
#define ROUNDS  3u
#define HOLD_US 5000u

struct streams {
    struct worker w;
    void *at[STREAMS];
    uint64_t ids[STREAMS]; // of saves, of loads
};

// What is enqueued on them begins at once, when all is.
static void hold_all(struct streams *s)
{
    void *own = s->w.stream;

    if (dlsym(s->w.driver.library, "kvc_fake_hold") != NULL)
        return; // there it would be for ever
    for (uint32_t i = 0; i < STREAMS; i++) {
        s->w.stream = s->at[i];
        worker_hold(&s->w, HOLD_US);
    }
    s->w.stream = own;
}

static void save_on_all(struct streams *s, uint32_t first)
{
    struct worker *w = &s->w;
    kvc_outcome outcome;

    hold_all(s);
    for (uint32_t i = 0; i < STREAMS; i++) {
        uint8_t keys[EACH * KVC_KEY_BYTES];
        uint32_t blocks[EACH];
        const kvc_save_entry entry = {
            .part = w->part, .keys = keys, .blocks = blocks, .n_keys = EACH};
        const kvc_save_args args = {.entries = &entry, .n_entries = 1, .stream = s->at[i]};

        scene_keys(first + i * EACH, EACH, keys);
        for (uint32_t b = 0; b < EACH; b++)
            blocks[b] = i * EACH + b;
        KVC(w, kvc_save(w->client, &args, &s->ids[i]));
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        KVC(w, kvc_wait(w->client, s->ids[i], SCENE_MS, &outcome));
        CHECK(outcome.status == KVC_OK && outcome.published == EACH);
    }
}

static void load_on_all(struct streams *s, uint32_t first)
{
    struct worker *w = &s->w;

    worker_poison(w);
    CHECK(worker_lookup(w, first, ALL) == ALL);
    hold_all(s);
    for (uint32_t i = 0; i < STREAMS; i++) {
        uint32_t blocks[EACH];
        const kvc_load_args args = {
            .lease = w->lease.id,
            .part = w->part,
            .first = i * EACH,
            .count = EACH,
            .blocks = blocks,
            .stream = s->at[STREAMS - 1 - i], // in another order than they were saved in
            .load = &s->ids[i],
        };

        for (uint32_t b = 0; b < EACH; b++)
            blocks[b] = i * EACH + b;
        KVC(w, kvc_load(w->client, &args));
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        KVC(w, kvc_load_result(w->client, s->ids[i], SCENE_MS, NULL));
    CHECK(worker_wrong(w, first, ALL) == 0);
    KVC(w, kvc_release(w->client, w->lease.id));
}

static void play_streams(const struct scene_daemon *d, void *arg)
{
    const bool *by_daemon = arg;
    struct streams s;

    worker_open_with(&s.w, d,
                     &(struct worker_options){
                         .role = KVC_ROLE_WORKER, .n_blocks = ALL, .by_daemon = *by_daemon});
    for (uint32_t i = 0; i < STREAMS; i++)
        CUDA(&s.w, stream_create(&s.at[i], CUDA_STREAM_NON_BLOCKING));
    for (uint32_t r = 0; r < ROUNDS; r++) {
        worker_fill(&s.w, 1 + r * ALL, ALL);
        save_on_all(&s, 1 + r * ALL);
        load_on_all(&s, 1 + r * ALL);
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        CUDA(&s.w, stream_destroy(s.at[i]));
    worker_close(&s.w);
}

static void run(bool by_daemon)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "1G", "--host-bytes", "0", NULL});
    scene_run(play_streams, &d, &by_daemon);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void many_streams(void)
{
    run(false);
}

static void many_streams_by_daemon(void)
{
    run(true);
}

static const struct scene_test tests[] = {
    {"more streams than are told apart", many_streams, 0},
    {"more streams than have gates, by the daemon", many_streams_by_daemon, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
