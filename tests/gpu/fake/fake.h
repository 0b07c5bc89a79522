// Inside of the CUDA driver without a GPU: what its files share. libcuda.c says what it is.
#ifndef KVC_TESTS_GPU_FAKE_H
#define KVC_TESTS_GPU_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda_driver.h"

#define INVALID   1
#define NOT_FOUND 500
#define EXPORT    __attribute__((visibility("default")))

#define FAKE_GPUS_MAX 8

#define FAKE_DECLARE(name, symbol, version, arguments) int fake_##name arguments;
CUDA_CALLS(FAKE_DECLARE)
#undef FAKE_DECLARE

// The GPU whose context is current in this thread; -1: none.
int fake_gpu(void);
bool fake_is_inherited(void);
// What a call says before it does anything, by its name: 0, or what fake_break has made of it.
int fake_fails(const char *function);
#define MAY_FAIL                                                                                   \
    do {                                                                                           \
        const int fails = fake_fails(__func__);                                                    \
        if (fails != 0)                                                                            \
            return fails;                                                                          \
    } while (0)
#define NEED_CONTEXT                                                                               \
    do {                                                                                           \
        if (fake_is_inherited())                                                                   \
            return CUDA_NOT_INITIALIZED;                                                           \
        if (fake_gpu() < 0)                                                                        \
            return CUDA_NO_CONTEXT;                                                                \
        MAY_FAIL;                                                                                  \
    } while (0)

// The GPU that has an ordinal in this process, and the other way round; -1: none.
int fake_gpu_at(int ordinal);
int fake_ordinal_of(int gpu);

// Whether a switch is on: a file of that name is in $KVC_FAKE_CUDA.
bool fake_switch(const char *name);
// Holds the calling thread up while the switch is on.
void fake_hang(const char *name);

// Memory of a GPU, by its addresses.
enum fake_kind {
    FAKE_ALLOCATED, // cuMemAlloc
    FAKE_RESERVED,  // addresses only
    FAKE_MAPPED,    // inside of a reserved range
    FAKE_OPENED,    // of another process
    FAKE_PINNED,    // cuMemHostAlloc
};
struct fake_range {
    uint64_t at, bytes;
    enum fake_kind kind;
    int gpu;
    int fd;         // its memory file
    uint64_t owner; // of opened ones: the pid there, and its descriptor
    uint32_t opens;
};
// A copy of the range of one of these kinds (bits) that holds an address; false: none does.
bool fake_find(uint64_t address, unsigned kinds, struct fake_range *range);
bool fake_add(const struct fake_range *range);
// Removes the range of this kind that begins there.
bool fake_drop(uint64_t at, enum fake_kind kind, struct fake_range *range);
// One more, or less, of what kvc_fake_alive counts beside ranges.
void fake_alive(int change);
// Counts an open of a range that is open already, or one less; the count after it. 0: there is
// none.
uint32_t fake_count_open(uint64_t owner, uint64_t *at, int change);

// Notes, in a file "NAME-PID" of $KVC_FAKE_CUDA, what this process should not have done.
// "bad-free", what is not there (any more) was freed, fails every test (scripts/fake-gpu).
void fake_note(const char *name);
// What was enqueued on a stream that others wait for: the legacy one, or one of each thread.
#define OWN_STREAM(stream)                                                                         \
    do {                                                                                           \
        if ((uintptr_t)(stream) <= 2)                                                              \
            fake_note("null-stream");                                                              \
    } while (0)

// The last launch of this thread has said that the next thing on its stream follows it.
extern __thread bool fake_more;

// A launch on a stream uses what others may use: whether it is behind their last use. anew: what is
// in this memory has not been used yet.
bool fake_share(uint64_t shared, const void *stream);
void fake_share_anew(uint64_t at, uint64_t bytes);

// Copies from host memory that wait, with $KVC_FAKE_CUDA_LATE, until something is behind them.
void fake_catch_up(void);

// Launches of this process never run, from when it is set on.
extern int kvc_fake_hold;

#endif
