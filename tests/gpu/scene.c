#include "tests/gpu/scene.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGS_MAX 32
#define TEST_S   90

static char folder[64];   // of this run
static char program[512]; // kvcached
static uint64_t seed;

uint64_t scene_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

void scene_waive(const char *reason)
{
    printf("  %s\n", reason);
    fflush(stdout);
    exit(SCENE_WAIVED);
}

void scene_check(const struct worker *w, int error, const char *what, const char *file, int line)
{
    if (error == 0)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cuda_error_name(&w->driver, error));
    exit(1);
}

void scene_check_kvc(kvc_client *client, kvc_status status, const char *what, const char *file,
                     int line)
{
    if (status == KVC_OK)
        return;
    fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, what, kvc_text(status), kvc_error(client));
    exit(1);
}

// The daemon.

static void exec_daemon(const struct scene_daemon *d, const char *const args[])
{
    const char *argv[ARGS_MAX] = {program, "--socket",    d->socket, "--device",
                                  "cuda",  "--gpu-bytes", "256M",    "--host-bytes",
                                  "256M",  "--metrics",   "off"};
    size_t n = 11;
    int out = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    for (size_t i = 0; args != NULL && args[i] != NULL && n < ARGS_MAX - 1; i++)
        argv[n++] = args[i];
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(127);
    (void)close_range(3, ~0U, 0);
    execv(program, (char *const *)argv);
    _exit(127);
}

static void name_daemon(struct scene_daemon *d)
{
    static int number;

    number++;
    snprintf(d->socket, sizeof(d->socket), "%s/%d-%d.sock", folder, (int)getpid(), number);
    snprintf(d->log, sizeof(d->log), "%s/%d-%d.log", folder, (int)getpid(), number);
}

static void read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : 0;

    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

static void show_log(const struct scene_daemon *d)
{
    char text[4096];

    read_file(d->log, text, sizeof(text));
    fprintf(stderr, "%s", text);
}

void scene_daemon_start(struct scene_daemon *d, const char *const args[])
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    char text[8192];

    name_daemon(d);
    d->pid = fork();
    CHECK(d->pid >= 0);
    if (d->pid == 0)
        exec_daemon(d, args);
    for (;;) {
        read_file(d->log, text, sizeof(text));
        if (strstr(text, "ready version") != NULL)
            return;
        if (strstr(text, "device cuda: no CUDA driver") != NULL ||
            strstr(text, "device cuda: the CUDA driver finds no GPU") != NULL)
            scene_waive("no CUDA driver, or no GPU");
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid || scene_now_us() > until_us) {
            show_log(d);
            exit(1);
        }
        usleep(5000);
    }
}

int scene_daemon_run(const char *const args[], char *output, size_t size)
{
    struct scene_daemon d;
    int status;

    name_daemon(&d);
    d.pid = fork();
    CHECK(d.pid >= 0);
    if (d.pid == 0)
        exec_daemon(&d, args);
    CHECK(waitpid(d.pid, &status, 0) == d.pid);
    read_file(d.log, output, size);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void scene_daemon_stop(struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    int status = 0;

    CHECK(kill(d->pid, SIGTERM) == 0);
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        CHECK(scene_now_us() < until_us);
        usleep(2000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        show_log(d);
        exit(1);
    }
}

void scene_populated(const struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    char text[8192];

    for (;;) {
        read_file(d->log, text, sizeof(text));
        if (strstr(text, "memory is populated") != NULL)
            return;
        CHECK(scene_now_us() < until_us);
        usleep(10000);
    }
}

int scene_fds(const struct scene_daemon *d)
{
    char path[64];
    DIR *list;
    int n = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
    list = opendir(path);
    CHECK(list != NULL);
    while (readdir(list) != NULL)
        n++;
    closedir(list);
    return n;
}

static int count_mappings(const struct scene_daemon *d, bool files)
{
    char path[64], line[512];
    FILE *maps;
    int n = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)d->pid);
    maps = fopen(path, "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        n += !files || strchr(line, '/') != NULL;
    fclose(maps);
    return n;
}

int scene_mappings(const struct scene_daemon *d)
{
    return count_mappings(d, false);
}

int scene_files(const struct scene_daemon *d)
{
    return count_mappings(d, true);
}

struct admin_stats scene_stats(const struct scene_daemon *d)
{
    const kvc_options options = {.socket = d->socket, .role = KVC_ROLE_OPERATOR};
    struct admin_stats stats;
    kvc_client *client;

    CHECK(kvc_connect(&options, &client) == KVC_OK);
    CHECK(admin_stats(client, &stats) == KVC_OK);
    kvc_close(client);
    return stats;
}

void scene_settled(const struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

    for (;;) {
        const struct admin_stats stats = scene_stats(d);

        if (stats.filling_slots + stats.quarantined_slots + stats.open_loads + stats.leases == 0)
            return;
        if (scene_now_us() > until_us) {
            fprintf(stderr, "filling %llu, in quarantine %llu, loads %llu, leases %llu\n",
                    (unsigned long long)stats.filling_slots,
                    (unsigned long long)stats.quarantined_slots,
                    (unsigned long long)stats.open_loads, (unsigned long long)stats.leases);
            show_log(d);
            exit(1);
        }
        usleep(10000);
    }
}

static struct {
    int ask[2], answer[2];
    pid_t pid;
} meter;

static void run_meter(void)
{
    struct cuda_driver driver;
    char why[CUDA_WHY_MAX], byte;
    void *context;

    if (cuda_driver_open(&driver, why) != KVC_OK || driver.context_retain(&context, 0) != 0 ||
        driver.context_push(context) != 0)
        _exit(1);
    while (read(meter.ask[0], &byte, 1) == 1) {
        size_t figures[2] = {0, 0};

        if (driver.memory_info(&figures[0], &figures[1]) != 0 ||
            write(meter.answer[1], &figures[0], sizeof(figures[0])) != sizeof(figures[0]))
            break;
    }
    _exit(0);
}

uint64_t scene_free_memory(void)
{
    size_t free = 0;

    if (meter.pid == 0) {
        CHECK(pipe2(meter.ask, O_CLOEXEC) == 0 && pipe2(meter.answer, O_CLOEXEC) == 0);
        meter.pid = fork();
        CHECK(meter.pid >= 0);
        if (meter.pid == 0) {
            close(meter.ask[1]);
            run_meter();
        }
        close(meter.answer[1]);
    }
    CHECK(write(meter.ask[1], "x", 1) == 1);
    if (read(meter.answer[0], &free, sizeof(free)) != sizeof(free))
        scene_waive("no GPU whose memory can be asked for");
    return free;
}

struct scene_baseline scene_baseline(const struct scene_daemon *d)
{
    struct scene_baseline now = {.fds = scene_fds(d),
                                 .mappings = scene_mappings(d),
                                 .files = scene_files(d),
                                 .free_memory = scene_free_memory()};
    char path[64];
    FILE *maps;
    size_t n;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)d->pid);
    maps = fopen(path, "r");
    CHECK(maps != NULL);
    n = fread(now.maps, 1, sizeof(now.maps) - 1, maps);
    now.maps[n] = '\0';
    fclose(maps);
    return now;
}

// The lines of mappings that are there now and were not before.
static void show_new_mappings(const struct scene_baseline *before, const struct scene_baseline *now)
{
    for (const char *line = now->maps, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char text[512];

        snprintf(text, sizeof(text), "%.*s", (int)(end - line), line);
        if (strstr(before->maps, text) == NULL)
            fprintf(stderr, "new: %s\n", text);
    }
}

// The driver's own memory comes and goes by some KiB; arenas of threads are a few mappings each.
#define MEMORY_SLACK   (4u << 20) // less than the least that a worker brings
#define MAPPINGS_SLACK 48

void scene_returns_to(const struct scene_daemon *d, const struct scene_baseline *before)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    struct scene_baseline now;

    for (;;) {
        now = scene_baseline(d);
        if (now.fds <= before->fds && now.files <= before->files + 2 &&
            now.mappings <= before->mappings + MAPPINGS_SLACK &&
            now.free_memory + MEMORY_SLACK >= before->free_memory)
            return;
        if (scene_now_us() > until_us)
            break;
        usleep(5000);
    }
    fprintf(stderr,
            "descriptors %d after %d, mappings %d after %d, of files %d after %d, free memory %llu "
            "after %llu\n",
            now.fds, before->fds, now.mappings, before->mappings, now.files, before->files,
            (unsigned long long)now.free_memory, (unsigned long long)before->free_memory);
    show_new_mappings(before, &now);
    show_log(d);
    exit(1);
}

// Workers.

void worker_register_as(struct worker *w, uint8_t name)
{
    kvc_slice slices[SCENE_SLICES];
    kvc_part_desc desc = {
        .name = "scene",
        .block_tokens = 16,
        .slices = slices,
        .n_slices = SCENE_SLICES,
        .n_blocks = w->n_blocks,
        .copy = w->by_daemon ? KVC_COPY_DAEMON : KVC_COPY_WORKER,
    };

    memset(desc.namespace_digest, name, sizeof(desc.namespace_digest));
    for (uint32_t i = 0; i < SCENE_SLICES; i++)
        slices[i] = (kvc_slice){
            .base = (void *)(uintptr_t)(w->memory + (uint64_t)i * w->n_blocks * SCENE_SLICE_BYTES),
            .stride = SCENE_SLICE_BYTES,
            .bytes = SCENE_SLICE_BYTES,
        };
    w->registered = kvc_register(w->client, &desc, &w->part);
    if (w->may_be_refused)
        return;
    if (w->registered == KVC_E_UNSUPPORTED && !pack_cuda_built())
        scene_waive("the library was built without nvcc");
    else
        KVC(w, w->registered);
}

// Two MiB at a time, one behind the other. Lives as long as the process.
static uint64_t map_pieces(struct worker *w, int ordinal, uint64_t bytes)
{
    const uint64_t piece = 2 << 20;
    const struct cuda_allocation allocation = {
        .type = 1, .handle_types = CUDA_HANDLE_FD, .location = {1, ordinal}};
    const struct cuda_access access = {{1, ordinal}, CUDA_ACCESS_READWRITE};
    uint64_t memory, handle = 0;
    void *address = NULL;

    bytes = (bytes + piece - 1) / piece * piece;
    CUDA(w, vmm_reserve(&address, bytes, 0, 0, 0));
    memory = (uintptr_t)address;
    for (uint64_t at = 0; at < bytes; at += piece) {
        CUDA(w, vmm_create(&handle, piece, &allocation, 0));
        CUDA(w, vmm_map(memory + at, piece, 0, handle, 0));
        CUDA(w, vmm_release(handle));
        CUDA(w, vmm_access(memory + at, piece, &access, 1));
    }
    return memory;
}

static void open_gpu(struct worker *w, const struct worker_options *options)
{
    const uint64_t bytes = (uint64_t)w->n_blocks * SCENE_BLOCK_BYTES;
    char why[CUDA_WHY_MAX];
    int count = 0;

    if (cuda_driver_open(&w->driver, why) != KVC_OK)
        scene_waive(why);
    CUDA(w, device_count(&count));
    if (options->ordinal >= count)
        scene_waive("not so many GPUs");
    CUDA(w, context_retain(&w->context, options->ordinal));
    CUDA(w, context_push(w->context));
    CUDA(w, stream_create(&w->stream, CUDA_STREAM_NON_BLOCKING));
    w->mapped = options->mapped;
    if (w->mapped)
        w->memory = map_pieces(w, options->ordinal, bytes);
    else
        CUDA(w, memory_alloc(&w->memory, bytes));
    w->mirror = malloc(bytes);
    CHECK(w->mirror != NULL);
}

void worker_open_with(struct worker *w, const struct scene_daemon *d,
                      const struct worker_options *options)
{
    const kvc_options connect = {
        .socket = d->socket,
        .role = options->role,
        .connect_ms = SCENE_MS,
        .lookup_ms = SCENE_MS,
        .save_ms = SCENE_MS,
        .load_ms = SCENE_MS,
        .remote_ms = options->remote_ms,
    };
    kvc_status status;

    *w = (struct worker){.n_blocks = options->n_blocks,
                         .by_daemon = options->by_daemon,
                         .may_be_refused = options->may_be_refused};
    open_gpu(w, options);
    status = kvc_connect(&connect, &w->client);
    if (status != KVC_OK)
        fprintf(stderr, "cannot connect: %s\n", kvc_text(status));
    CHECK(status == KVC_OK && strcmp(kvc_device(w->client), "cuda") == 0);
    worker_register_as(w, 7);
}

void worker_open(struct worker *w, const struct scene_daemon *d, kvc_role role, uint32_t n_blocks)
{
    worker_open_with(w, d, &(struct worker_options){.role = role, .n_blocks = n_blocks});
}

void worker_close(struct worker *w)
{
    kvc_close(w->client);
    if (!w->mapped)
        CUDA(w, memory_free(w->memory));
    CUDA(w, stream_destroy(w->stream));
    free(w->mirror);
}

// Spins until so many nanoseconds have passed.
static const char hold_code[] = ".version 7.0\n"
                                ".target sm_80\n"
                                ".address_size 64\n"
                                ".visible .entry hold(.param .u64 ns)\n"
                                "{\n"
                                "  .reg .u64 %rd<4>;\n"
                                "  .reg .pred %p<2>;\n"
                                "  ld.param.u64 %rd1, [ns];\n"
                                "  mov.u64 %rd2, %globaltimer;\n"
                                "  add.u64 %rd1, %rd2, %rd1;\n"
                                "again:\n"
                                "  mov.u64 %rd3, %globaltimer;\n"
                                "  setp.lt.u64 %p1, %rd3, %rd1;\n"
                                "  @%p1 bra again;\n"
                                "  ret;\n"
                                "}\n";

void worker_hold(struct worker *w, uint64_t us)
{
    int *fake = dlsym(w->driver.library, "kvc_fake_hold");
    uint64_t ns = us * 1000u;
    void *module, *parameters[] = {&ns};

    if (fake != NULL) {
        *fake = 1;
        return;
    }
    if (w->hold == NULL) {
        if (w->driver.module_load(&module, hold_code) != 0)
            scene_waive("the driver compiles no PTX");
        CUDA(w, module_function(&w->hold, module, "hold"));
    }
    CUDA(w, launch(w->hold, 1, 1, 1, 1, 1, 1, 0, w->stream, parameters, NULL));
}

void worker_sync(struct worker *w)
{
    CUDA(w, stream_synchronize(w->stream));
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static void fill_slice(uint8_t *at, uint32_t key, uint32_t slice)
{
    uint64_t state = mix(seed ^ ((uint64_t)key << 32 | slice));
    uint64_t *words = (uint64_t *)(void *)at;

    for (uint32_t i = 0; i < SCENE_SLICE_BYTES / 8; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
}

static uint8_t *slice_of(const struct worker *w, uint32_t block, uint32_t slice)
{
    return w->mirror + ((uint64_t)slice * w->n_blocks + block) * SCENE_SLICE_BYTES;
}

static void to_device(struct worker *w)
{
    CUDA(w, copy_async(w->memory, (uintptr_t)w->mirror, (size_t)w->n_blocks * SCENE_BLOCK_BYTES,
                       w->stream));
    worker_sync(w);
}

void worker_fill(struct worker *w, uint32_t first_key, uint32_t n)
{
    for (uint32_t b = 0; b < n; b++)
        for (uint32_t s = 0; s < SCENE_SLICES; s++)
            fill_slice(slice_of(w, b, s), first_key + b, s);
    to_device(w);
}

uint64_t worker_fill_prepare(struct worker *w, uint32_t first_key, uint32_t n)
{
    const size_t bytes = (size_t)w->n_blocks * SCENE_BLOCK_BYTES;
    uint64_t prepared = 0;

    worker_fill(w, first_key, n);
    CUDA(w, memory_alloc(&prepared, bytes));
    CUDA(w, copy_async(prepared, w->memory, bytes, w->stream));
    worker_poison(w);
    return prepared;
}

void worker_fill_enqueue(struct worker *w, uint64_t prepared)
{
    CUDA(w, copy_async(w->memory, prepared, (size_t)w->n_blocks * SCENE_BLOCK_BYTES, w->stream));
}

void worker_poison(struct worker *w)
{
    CUDA(w, set_async(w->memory, 0xee, (size_t)w->n_blocks * SCENE_BLOCK_BYTES, w->stream));
    worker_sync(w);
}

uint32_t worker_wrong(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t wanted[SCENE_SLICE_BYTES] __attribute__((aligned(8)));
    uint32_t wrong = 0;

    CUDA(w, copy_async((uintptr_t)w->mirror, w->memory, (size_t)w->n_blocks * SCENE_BLOCK_BYTES,
                       w->stream));
    worker_sync(w);
    for (uint32_t b = 0; b < n; b++) {
        bool same = true;

        for (uint32_t s = 0; s < SCENE_SLICES && same; s++) {
            fill_slice(wanted, first_key + b, s);
            same = memcmp(wanted, slice_of(w, b, s), SCENE_SLICE_BYTES) == 0;
        }
        wrong += !same;
    }
    return wrong;
}

void scene_keys(uint32_t first_key, uint32_t n, uint8_t *keys)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t words[2] = {mix(first_key + i + 1), first_key + i};

        memcpy(keys + (size_t)i * KVC_KEY_BYTES, words, sizeof(words));
    }
}

uint64_t worker_save_enqueue(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    uint32_t blocks[KVC_KEYS_MAX];
    const kvc_save_entry entry = {.part = w->part, .keys = keys, .blocks = blocks, .n_keys = n};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1, .stream = w->stream};
    uint64_t save = 0;

    scene_keys(first_key, n, keys);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = i;
    KVC(w, kvc_save(w->client, &args, &save));
    return save;
}

void worker_put(struct worker *w, uint32_t first_key, uint32_t n)
{
    kvc_outcome outcome = {0};
    uint64_t save;

    worker_fill(w, first_key, n);
    save = worker_save_enqueue(w, first_key, n);
    KVC(w, kvc_wait(w->client, save, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == n);
}

void worker_pin(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    uint32_t pinned = 0;

    scene_keys(first_key, n, keys);
    KVC(w, kvc_pin(w->client, w->part, keys, n, 600, &pinned));
    CHECK(pinned == n);
}

uint32_t worker_lookup(struct worker *w, uint32_t first_key, uint32_t n)
{
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];

    scene_keys(first_key, n, keys);
    KVC(w, kvc_lookup(w->client, 0, &w->part, 1, keys, n, 0, &w->lease));
    return w->lease.blocks;
}

kvc_status worker_load(struct worker *w, uint8_t *valid)
{
    uint32_t blocks[KVC_KEYS_MAX];
    uint64_t load = 0;
    const kvc_load_args args = {
        .lease = w->lease.id,
        .part = w->part,
        .count = w->lease.blocks,
        .blocks = blocks,
        .stream = w->stream,
        .load = &load,
    };

    for (uint32_t i = 0; i < w->lease.blocks; i++)
        blocks[i] = i;
    KVC(w, kvc_load(w->client, &args));
    return kvc_load_result(w->client, load, SCENE_MS, valid);
}

void worker_verify(struct worker *w, uint32_t first_key, uint32_t n)
{
    worker_poison(w);
    CHECK(worker_lookup(w, first_key, n) == n);
    KVC(w, worker_load(w, NULL));
    CHECK(worker_wrong(w, first_key, n) == 0);
    KVC(w, kvc_release(w->client, w->lease.id));
}

// Processes.

pid_t scene_fork(scene_play *play, const struct scene_daemon *d, void *arg)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    play(d, arg);
    exit(0);
}

int scene_wait(pid_t pid)
{
    int status;

    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

void scene_run(scene_play *play, const struct scene_daemon *d, void *arg)
{
    int status = scene_wait(scene_fork(play, d, arg));

    if (WIFEXITED(status) && WEXITSTATUS(status) == SCENE_WAIVED)
        exit(SCENE_WAIVED);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        show_log(d);
        exit(1);
    }
}

static int run_test(const struct scene_test *test)
{
    pid_t pid;
    int status;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        alarm(test->limit_s != 0 ? test->limit_s : TEST_S);
        test->run();
        exit(0);
    }
    status = scene_wait(pid);
    kill(-pid, SIGKILL); // whatever is left of it
    if (WIFEXITED(status) && WEXITSTATUS(status) == SCENE_WAIVED) {
        printf("WAIVED %s\n", test->name);
        return SCENE_WAIVED;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        printf("PASS %s\n", test->name);
        return 0;
    }
    printf("FAIL %s\n", test->name);
    return 1;
}

// What scripts/run-tests reads, of tests that ran.
static void tell(const struct scene_test *test, int rc)
{
    const char *path = getenv("CK_TAP_LOG_FILE_NAME");
    FILE *tap = path != NULL ? fopen(path, "ae") : NULL;

    if (tap == NULL)
        return;
    // Who sums up counts a test that skips itself by this line (scripts/run-tests).
    if (rc == SCENE_WAIVED)
        printf("SKIP gpu: %s\n", test->name);
    fprintf(tap, "%sok 1 - gpu: %s\n", rc == 0 || rc == SCENE_WAIVED ? "" : "not ", test->name);
    fprintf(tap, "1..1\n");
    fclose(tap);
}

static void find_program(void)
{
    const char *build = getenv("KVC_TEST_BUILD");
    ssize_t n;
    char *at;

    if (build != NULL) {
        snprintf(program, sizeof(program), "%s/kvcached", build);
        return;
    }
    n = readlink("/proc/self/exe", program, sizeof(program) - sizeof("/kvcached"));
    CHECK(n > 0);
    program[n] = '\0';
    at = strstr(program, "/tests/");
    CHECK(at != NULL);
    strcpy(at, "/kvcached");
}

int scene_main(int argc, char **argv, const struct scene_test *tests, size_t n)
{
    int failed = 0, waived = 0, passed = 0;
    char clean[128];

    find_program();
    snprintf(folder, sizeof(folder), "/tmp/kvc-gpu-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    seed = mix(scene_now_us() ^ (uint64_t)getpid() << 32);
    for (size_t i = 0; i < n; i++) {
        int rc;

        if (argc > 1 && strstr(tests[i].name, argv[1]) == NULL)
            continue;
        rc = run_test(&tests[i]);
        tell(&tests[i], rc);
        failed += rc != 0 && rc != SCENE_WAIVED;
        waived += rc == SCENE_WAIVED;
        passed += rc == 0;
    }
    printf("%d passed, %d failed, %d waived\n", passed, failed, waived);
    snprintf(clean, sizeof(clean), "rm -rf %s", folder);
    (void)!system(clean);
    if (failed > 0)
        return 1;
    return passed == 0 && waived > 0 ? SCENE_WAIVED : 0;
}
