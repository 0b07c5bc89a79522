// What tests of a daemon with a GPU are made of: a daemon, and workers that each are a process
// forked before CUDA starts, since a process that forks cannot use it in the child.
//
// Whatever is not as it should be ends the process that sees it with status 1 and a line.
#ifndef KVC_TESTS_GPU_SCENE_H
#define KVC_TESTS_GPU_SCENE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "kernels/cuda_driver.h"

#define SCENE_WAIVED 77

#define SCENE_SLICES      48u
#define SCENE_SLICE_BYTES 4096u
#define SCENE_BLOCK_BYTES (SCENE_SLICES * SCENE_SLICE_BYTES) // 192 KiB
#define SCENE_MS          20000

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
// A call of the driver.
#define CUDA(worker, call) scene_check(worker, (worker)->driver.call, #call, __FILE__, __LINE__)
// A call of the library that has to succeed.
#define KVC(worker, call) scene_check_kvc((worker)->client, call, #call, __FILE__, __LINE__)

// A daemon of this test, on a socket of its own. Its log goes to standard error when it fails.
struct scene_daemon {
    pid_t pid;
    char socket[128], log[128];
};

// What a run has of its own.
const char *scene_folder(void);
const char *scene_program(void); // kvcached
uint64_t scene_seed(void);

void scene_daemon_start(struct scene_daemon *d, const char *const args[]);
// Runs one that is not to start; its exit status, and what it printed.
int scene_daemon_run(const char *const args[], char *output, size_t size);
// Whether it is ready; else it has ended with 1.
bool scene_daemon_try(struct scene_daemon *d, const char *const args[]);
void scene_daemon_stop(struct scene_daemon *d);
void scene_show_log(const struct scene_daemon *d); // its end, on standard error
void scene_log(const struct scene_daemon *d, char *text, size_t size);
// Waits until the host tier has its pages, and the GPU knows them.
void scene_populated(const struct scene_daemon *d);
struct admin_stats scene_stats(const struct scene_daemon *d);
// Waits until nothing fills, is open or is in quarantine.
void scene_settled(const struct scene_daemon *d);

// A worker's GPU, KV cache and client.
struct worker {
    struct cuda_driver driver;
    void *context, *stream;
    void *hold; // the kernel of worker_hold, once it was needed
    uint32_t n_blocks;
    bool mapped; // memory is made of pieces
    bool pinned; // it is the host's
    bool by_daemon;
    uint64_t memory; // n_blocks x SCENE_BLOCK_BYTES per slice, slice by slice
    uint8_t *mirror; // on the host
    kvc_client *client;
    kvc_part part;
    kvc_status registered;
    bool may_be_refused;
    kvc_lease lease;
};

struct worker_options {
    kvc_role role;
    uint32_t n_blocks;
    int ordinal;        // of its GPU
    uint32_t remote_ms; // other daemons are asked for what a lookup misses
    bool mapped;        // its KV cache is made of mapped pieces, which is what torch's segments are
    bool pinned;        // ... lies in pinned memory of the host
    bool by_daemon;     // the daemon copies
    bool may_be_refused; // what registering its part said stands in worker::registered
};

// In a process that has not used CUDA yet. Waives the test where there is no such GPU.
void worker_open_with(struct worker *w, const struct scene_daemon *d,
                      const struct worker_options *options);
// Its GPU and cache alone.
void worker_open_gpu(struct worker *w, const struct worker_options *options);
// Makes w->part one of another namespace, in the same memory.
void worker_register_as(struct worker *w, uint8_t name);
void worker_open(struct worker *w, const struct scene_daemon *d, kvc_role role, uint32_t n_blocks);
void worker_close(struct worker *w);
void worker_sync(struct worker *w);
// What is enqueued from now on waits for so long; on the driver without a GPU, for ever.
void worker_hold(struct worker *w, uint64_t us);

// What a key's block holds follows from the key and this run's seed.
void worker_fill(struct worker *w, uint32_t first_key, uint32_t n);
// The same as the work of the worker's stream, behind what is on it; the cache is poisoned before.
// prepare makes the bytes, enqueue puts the copy on the stream.
uint64_t worker_fill_prepare(struct worker *w, uint32_t first_key, uint32_t n);
void worker_fill_enqueue(struct worker *w, uint64_t prepared);
void worker_poison(struct worker *w);
// Blocks 0 .. n - 1 on the device hold keys first_key ..; how many of them do not.
uint32_t worker_wrong(struct worker *w, uint32_t first_key, uint32_t n);

// In how many slots of the GPU tier, of extents on the GPU of an ordinal or (-1) on any, lie bytes
// of those keys, whatever the daemon says of them.
uint32_t worker_in_tier(struct worker *w, uint32_t first_key, uint32_t n, int ordinal);

void scene_keys(uint32_t first_key, uint32_t n, uint8_t *keys);
uint64_t worker_save_enqueue(struct worker *w, uint32_t first_key, uint32_t n);
// Fills, saves, and waits until all are published.
void worker_put(struct worker *w, uint32_t first_key, uint32_t n);
// The same into a full tier, where room comes as fast as blocks are demoted.
// ... and keeps them from being evicted.
void worker_pin(struct worker *w, uint32_t first_key, uint32_t n);
// Into a full tier, where room comes as fast as blocks are demoted.
void worker_put_patiently(struct worker *w, uint32_t first_key, uint32_t n);
// So many sets of its n_blocks, which are then all there; how many of them came from the host tier.
uint32_t worker_put_sets(struct worker *w, uint32_t first_key, uint32_t sets);
uint32_t worker_lookup(struct worker *w, uint32_t first_key, uint32_t n);
// Loads all that is leased into blocks 0 ..; what was said at once, or became of it.
kvc_status worker_load(struct worker *w, uint8_t *valid);
// Poisons, looks up, loads, compares and releases: all n are there.
void worker_verify(struct worker *w, uint32_t first_key, uint32_t n);

// Saves and loads SCENE_TRY blocks by the daemon, from *(uint32_t *)arg on, which may fail at any
// of it; what says that it went well did.
#define SCENE_TRY 64u
void scene_play_try(const struct scene_daemon *d, void *arg);

// Whether an error says that the GPU, or room there, was at fault.
bool scene_is_of_the_device(kvc_status status);

// Its stream is captured meanwhile. It has 4 blocks or more.
void worker_capture_is_refused(struct worker *w);

// Runs play in a process of its own; its status as of waitpid.
typedef void scene_play(const struct scene_daemon *d, void *arg);
pid_t scene_fork(scene_play *play, const struct scene_daemon *d, void *arg);
int scene_wait(pid_t pid);
// ... which has to end with 0 (or is waived).
void scene_run(scene_play *play, const struct scene_daemon *d, void *arg);

uint64_t scene_now_us(void);
void scene_waive(const char *reason);
void scene_check(const struct worker *w, int error, const char *what, const char *file, int line);
void scene_check_kvc(kvc_client *client, kvc_status status, const char *what, const char *file,
                     int line);

// Figures of the daemon's process that must not grow: scene_baseline.c.
int scene_fds(const struct scene_daemon *d);
int scene_mappings(const struct scene_daemon *d); // all of them
int scene_files(const struct scene_daemon *d);    // those of files, devices among them

// Free memory of the first GPU, as a process of its own sees it, which stays until the test ends.
uint64_t scene_free_memory(void);
// Waits until the daemon has no more descriptors and mappings of files than before, and the GPU no
// less free memory. Memory of the daemon's own threads may come, but not with every worker.
struct scene_baseline {
    int fds, mappings, files;
    uint64_t free_memory;
    char maps[1 << 17]; // the daemon's list of them
};
struct scene_baseline scene_baseline(const struct scene_daemon *d);
void scene_returns_to(const struct scene_daemon *d, const struct scene_baseline *before);

struct scene_test {
    const char *name;
    void (*run)(void);
    unsigned limit_s; // 0: the usual
};
// Each test in a process of its own; prints PASS, FAIL or WAIVED with its reason.
int scene_main(int argc, char **argv, const struct scene_test *tests, size_t n);

#endif
