// What a driver can do to a daemon: calls that hang, launches that fail, ends that are never told.
// Only the driver without a GPU does that on demand (tests/gpu/fake); elsewhere all are waived.
//
//   test_driver_daemon_gpu [word]    only the tests whose name has the word
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

#define BLOCKS 64u

static void all_off(void)
{
    static const char *const names[] = {"hang-open",  "hang-close", "hang-unmap",
                                        "lose-calls", "fail-query", "fail-launch"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        switch_off(names[i]);
}

struct play {
    bool mapped, by_daemon;
    uint32_t first_key;
    kvc_status outcome; // of the save
};

static void play(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    kvc_outcome outcome = {0};
    struct worker w;
    uint64_t save;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .mapped = p->mapped,
                                              .by_daemon = p->by_daemon});
    worker_fill(&w, p->first_key, BLOCKS);
    save = worker_save_enqueue(&w, p->first_key, BLOCKS);
    KVC(&w, kvc_wait(w.client, save, SCENE_MS, &outcome));
    CHECK(outcome.status == p->outcome);
    if (p->outcome == KVC_OK)
        worker_verify(&w, p->first_key, BLOCKS);
    else
        CHECK(worker_lookup(&w, p->first_key, BLOCKS) == 0);
    worker_close(&w);
}

static void run(const struct scene_daemon *d, bool by_daemon, uint32_t first_key,
                kvc_status outcome)
{
    struct play p = {.by_daemon = by_daemon, .first_key = first_key, .outcome = outcome};

    scene_run(play, d, &p);
}

static void wait_for_hang(const struct scene_daemon *d, bool hangs)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

    while ((scene_stats(d).hanging_gpus > 0) != hangs) {
        CHECK(scene_now_us() < until_us);
        usleep(20000);
    }
}

// What /healthz answers: the code of HTTP, and all of it in text.
static int ask_health(const struct scene_daemon *d, char *text, size_t size)
{
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *url;
    size_t got = 0;
    ssize_t n;
    int fd, code = 0;

    scene_log(d, text, size);
    url = strstr(text, "url=http://127.0.0.1:");
    if (url == NULL)
        scene_waive("built without libmicrohttpd");
    at.sin_port = htons((in_port_t)strtoul(url + strlen("url=http://127.0.0.1:"), NULL, 10));
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    CHECK(send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request));
    while (got < size - 1 && (n = recv(fd, text + got, size - 1 - got, 0)) > 0)
        got += (size_t)n;
    close(fd);
    text[got] = '\0';
    CHECK(sscanf(text, "HTTP/1.1 %d", &code) == 1);
    return code;
}

static void health_tells_of_a_driver_that_hangs(void)
{
    struct play p = {.by_daemon = true, .first_key = 1000};
    struct scene_daemon d;
    char text[8192];
    pid_t pid;

    all_off();
    scene_daemon_start(&d, (const char *[]){"--metrics", "127.0.0.1:0", NULL});
    CHECK(ask_health(&d, text, sizeof(text)) == 200);
    switch_on("hang-open");
    pid = scene_fork(play, &d, &p);
    wait_for_hang(&d, true);
    CHECK(ask_health(&d, text, sizeof(text)) == 503);
    CHECK(strstr(text, "wrong: GPUs whose driver does not come back: 1\n") != NULL);
    switch_off("hang-open");
    CHECK(scene_wait(pid) == 0);
    wait_for_hang(&d, false);
    CHECK(ask_health(&d, text, sizeof(text)) == 200);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void an_open_that_hangs(void)
{
    struct play p = {.by_daemon = true, .first_key = 1000};
    struct scene_daemon d;
    pid_t pid;

    all_off();
    scene_daemon_start(&d, NULL);
    switch_on("hang-open");
    pid = scene_fork(play, &d, &p);
    wait_for_hang(&d, true);
    CHECK(scene_stats(&d).driver_calls > 0 && scene_stats(&d).driver_call_us > 1000000);
    run(&d, false, 2000, KVC_OK);
    switch_off("hang-open");
    CHECK(scene_wait(pid) == 0);
    wait_for_hang(&d, false);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// What was being opened for it is closed again.
static void killed_while_its_memory_is_opened(void)
{
    struct play p = {.by_daemon = true, .first_key = 1000};
    struct scene_baseline before;
    struct scene_daemon d;

    all_off();
    scene_daemon_start(&d, NULL);
    scene_populated(&d);
    scene_run(play, &d, &p);
    scene_settled(&d);
    before = scene_baseline(&d);
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
        pid_t pid;

        switch_on("hang-open");
        pid = scene_fork(play, &d, &p);
        while (scene_stats(&d).driver_calls == 0) {
            CHECK(scene_now_us() < until_us);
            usleep(2000);
        }
        CHECK(kill(pid, SIGKILL) == 0);
        scene_wait(pid);
        usleep(20000);
        switch_off("hang-open");
        scene_returns_to(&d, &before);
    }
    run(&d, true, 2000, KVC_OK);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// Not even the end of the daemon waits for it.
static void a_close_that_hangs(void)
{
    struct scene_daemon d;

    all_off();
    scene_daemon_start(&d, NULL);
    switch_on("hang-close");
    run(&d, true, 1000, KVC_OK);
    run(&d, false, 1500, KVC_OK);
    wait_for_hang(&d, true);
    run(&d, false, 2000, KVC_OK);
    scene_settled(&d);
    scene_daemon_stop(&d);
    switch_off("hang-close");
}

// The memory of a session that has ended, by the thread that opens the next one's.
static void wait_for_unmapping(const struct scene_daemon *d, int files)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

    while (scene_files(d) > files && scene_now_us() < until_us)
        usleep(5000);
}

static void an_unmap_that_hangs(void)
{
    struct play p = {.mapped = true, .by_daemon = true, .first_key = 1000};
    struct scene_daemon d;
    struct scene_baseline before;
    int files;

    all_off();
    scene_daemon_start(&d, NULL);
    files = scene_files(&d);
    scene_run(play, &d, &p);
    scene_settled(&d);
    wait_for_unmapping(&d, files);
    before = scene_baseline(&d);
    p.first_key = 2000;
    switch_on("hang-unmap");
    scene_run(play, &d, &p); // whose own unmapping is of its addresses only
    switch_off("hang-unmap");
    scene_returns_to(&d, &before);
    scene_daemon_stop(&d);
}

// The end of a copy that nobody tells is found by asking.
static void ends_that_are_not_told(void)
{
    struct scene_daemon d;

    all_off();
    scene_daemon_start(&d, NULL);
    switch_on("lose-calls");
    run(&d, true, 1000, KVC_OK);
    switch_off("lose-calls");
    run(&d, true, 2000, KVC_OK);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// F20: a context that has failed: nothing of it is published, and workers go on by themselves.
static void a_context_that_fails(void)
{
    struct scene_daemon d;

    all_off();
    scene_daemon_start(&d, NULL);
    run(&d, true, 1000, KVC_OK);
    switch_on("lose-calls");
    switch_on("fail-query");
    run(&d, true, 2000, KVC_E_DEVICE); // nor is the event that it waits for of any use
    switch_off("fail-query");
    switch_off("lose-calls");
    switch_on("fail-launch");
    run(&d, true, 3000, KVC_E_DEVICE);
    switch_off("fail-launch");
    run(&d, false, 4000, KVC_OK);
    run(&d, true, 5000, KVC_OK);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"F4 an open that hangs", an_open_that_hangs, 0},
    {"health tells of a driver that hangs", health_tells_of_a_driver_that_hangs, 0},
    {"killed while its memory is opened", killed_while_its_memory_is_opened, 0},
    {"F4 a close that hangs", a_close_that_hangs, 0},
    {"an unmap that hangs for a while", an_unmap_that_hangs, 0},
    {"ends that are not told", ends_that_are_not_told, 0},
    {"F20 a context that fails", a_context_that_fails, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
