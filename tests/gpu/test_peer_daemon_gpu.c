// Blocks that another daemon has only in its GPU's memory: they come by its host memory, into host
// memory here; or, where UCX was built with CUDA and its transports say so, from GPU to GPU. Every
// byte that is loaded is compared.
//
//   test_peer_daemon_gpu [word]    only the tests whose name has the word
//
// KVC_UCX names the libucp of such a UCX.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

#define BLOCKS   200u
#define ANYWHERE UINT32_MAX

#define ASKERS 4 // with two batches each more than there is room for on the way

static struct scene_daemon source, askers[ASKERS];

struct play {
    uint32_t first_key, n;
    uint32_t on_gpu; // so many of those that have come are there then, or more; 0: none
    int ordinal;     // of the GPU of who waits; not the first: there
};

static void play_put(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, p->n);
    worker_put(&w, p->first_key, p->n);
    CHECK(worker_lookup(&w, p->first_key, p->n) == p->n && w.lease.gpu == p->n);
    KVC(&w, kvc_release(w.client, w.lease.id));
    worker_close(&w);
}

// Until the daemons are linked, nobody is asked.
static void play_fetch(const struct scene_daemon *d, void *arg)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    const struct play *p = arg;
    uint32_t blocks = 0;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = p->n,
                                              .remote_ms = SCENE_MS,
                                              .ordinal = p->ordinal});
    while (blocks < p->n) {
        CHECK(scene_now_us() < until_us);
        CHECK(worker_lookup(&w, p->first_key, p->n) == 0);
        KVC(&w, kvc_remote(w.client, w.lease.fetch, SCENE_MS, &blocks));
        CHECK(blocks == 0 || blocks == p->n);
        usleep(10000);
    }
    worker_verify(&w, p->first_key, p->n);
    CHECK(worker_lookup(&w, p->first_key, p->n) == p->n);
    CHECK(w.lease.gpu + w.lease.host >= p->n);
    CHECK(p->on_gpu == ANYWHERE || (p->on_gpu == 0 ? w.lease.gpu == 0 : w.lease.gpu >= p->on_gpu));
    if (p->ordinal > 0)
        CHECK(worker_in_tier(&w, p->first_key, p->n, p->ordinal) >= p->on_gpu);
    KVC(&w, kvc_release(w.client, w.lease.id));
    worker_close(&w);
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
          getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

struct setting {
    const char *transfer, *memory, *gpu_bytes; /* the latter of askers */
};

static void begin_with(const struct setting *setting, int n)
{
    const char *ucx = getenv("KVC_UCX") != NULL ? getenv("KVC_UCX") : "libucp.so.0";
    char address[32], output[2048];

    snprintf(address, sizeof(address), "127.0.0.1:%d", free_port());
    (void)scene_daemon_run((const char *[]){"--peer-listen", "nowhere:1", "--ucx", ucx, NULL},
                           output, sizeof(output));
    if (strstr(output, "UCX") != NULL || strstr(output, "built without") != NULL)
        scene_waive("no UCX");
    scene_daemon_start(&source, (const char *[]){"--peer-listen", address, "--ucx", ucx,
                                                 "--transfer", setting->transfer, "--gpu-memory",
                                                 setting->memory, "--gpus", "all", "--gpu-bytes",
                                                 "64M", "--host-bytes", "64M", NULL});
    for (int i = 0; i < n; i++)
        scene_daemon_start(&askers[i],
                           (const char *[]){"--peers", address, "--ucx", ucx, "--transfer",
                                            setting->transfer, "--gpu-memory", setting->memory,
                                            "--gpus", "all", "--gpu-bytes", setting->gpu_bytes,
                                            "--host-bytes", "128M", NULL});
}

static void begin(const char *transfer, int n)
{
    begin_with(&(struct setting){transfer, "auto", "64M"}, n);
}

static void end(int n)
{
    scene_settled(&source);
    for (int i = 0; i < n; i++) {
        scene_settled(&askers[i]);
        scene_daemon_stop(&askers[i]);
    }
    scene_daemon_stop(&source);
}

static void fetched(const char *transfer)
{
    struct play p = {1000, BLOCKS, 0, 0};

    begin(transfer, 1);
    scene_run(play_put, &source, &p);
    scene_run(play_fetch, &askers[0], &p);
    end(1);
}

static void exactly(void)
{
    fetched("exact");
}

static void by_views(void)
{
    fetched("views");
}

static void need_stand_in(void)
{
    const char *ucx = getenv("KVC_UCX");

    if (ucx == NULL || strstr(ucx, "libucp-gpu") == NULL)
        scene_waive("this UCX is a real one");
}

// By what UCX maps of other processes, which it does only if it is asked to.
static void begin_mapped(const char *memory, const char *gpu_bytes)
{
    char log[8192];

    if (getenv("KVC_UCX") == NULL)
        scene_waive("KVC_UCX names no UCX with CUDA");
    setenv("UCX_TLS", "tcp,cuda_copy,cuda_ipc", 1);
    begin_with(&(struct setting){"auto", memory, gpu_bytes}, 1);
    scene_log(&source, log, sizeof(log));
    if (strstr(log, "memory of GPUs is registered") == NULL)
        scene_waive("this UCX reaches no GPU");
}

static void mapped(const char *memory, const char *gpu_bytes, uint32_t on_gpu)
{
    struct play p = {1000, BLOCKS, on_gpu, 0};

    begin_mapped(memory, gpu_bytes);
    scene_run(play_put, &source, &p);
    scene_run(play_fetch, &askers[0], &p);
    end(1);
}

static void from_gpu_to_gpu(void)
{
    mapped("legacy", "64M", BLOCKS);
}

// What does not fit into the GPU's memory comes into the host's.
static void into_a_small_gpu(void)
{
    mapped("legacy", "16M", 1);
}

// Near to who waits for it, where there are several.
static void into_the_gpu_of_who_waits(void)
{
    struct play p = {1000, BLOCKS, BLOCKS, 1};

    need_stand_in(); // real ones do not map what a worker can look at as it lies
    setenv("KVC_FAKE_CUDA_GPUS", "2", 1);
    begin_mapped("vmm", "64M");
    scene_run(play_put, &source, &p);
    scene_run(play_fetch, &askers[0], &p);
    end(1);
}

// The end of the kernel that sums what has come cannot be marked, so it is waited for: nothing of
// the slots is read behind the answer.
static void sums_whose_end_cannot_be_marked(void)
{
    struct play p = {1000, BLOCKS, BLOCKS, 0};
    char log[8192];

    need_stand_in();
    begin_mapped("legacy", "64M");
    scene_run(play_put, &source, &p);
    switch_break(&askers[0], "event_record", 0, 2 /* out of memory */, false);
    scene_run(play_fetch, &askers[0], &p);
    CHECK(!switch_is_set("event_record"));
    scene_log(&askers[0], log, sizeof(log));
    CHECK(strstr(log, "checksums failed") == NULL);
    end(1);
}

// What cannot be mapped here goes as it does without such transports.
static void apart(void)
{
    need_stand_in();
    setenv("KVC_FAKE_UCX_APART", "1", 1);
    mapped("legacy", "64M", 0);
}

// Not every UCX maps memory that has descriptors; where it does not, it goes as without.
static void with_descriptors(void)
{
    mapped("vmm", "64M", ANYWHERE);
}

static void by_many(void)
{
    struct play p = {1000, BLOCKS, 0, 0};
    pid_t pids[ASKERS];

    begin("exact", ASKERS);
    scene_run(play_put, &source, &p);
    for (int i = 0; i < ASKERS; i++)
        pids[i] = scene_fork(play_fetch, &askers[i], &p);
    for (int i = 0; i < ASKERS; i++)
        CHECK(scene_wait(pids[i]) == 0);
    end(ASKERS);
}

static const struct scene_test tests[] = {
    {"what a GPU has comes exactly", exactly, 0},
    {"what a GPU has comes by views", by_views, 0},
    {"four ask at once", by_many, 0},
    {"from GPU to GPU", from_gpu_to_gpu, 0},
    {"into a GPU that has little room", into_a_small_gpu, 0},
    {"into the GPU of who waits", into_the_gpu_of_who_waits, 0},
    {"sums whose end cannot be marked", sums_whose_end_cannot_be_marked, 0},
    {"GPU memory with descriptors", with_descriptors, 0},
    {"GPU memory that is not to be mapped", apart, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
