// The memory of a worker's first GPU, for tests that run on the host device and again, unchanged,
// on a GPU: KVC_TEST_DEVICE=cuda, with a driver in sight. What is copied here is ordered on the
// null stream, as the calls of the library are that name no stream.
//
// The driver is started by the first call, and a process that forks afterwards cannot use it in the
// child.
#ifndef KVC_TESTS_LIB_GPU_H
#define KVC_TESTS_LIB_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Whether workers' memory lies on a GPU.
bool gpu_is_used(void);

uint8_t *gpu_alloc(size_t bytes);
void gpu_free(uint8_t *memory);
void gpu_write(uint8_t *to, const void *from, size_t bytes);
void gpu_read(void *to, const uint8_t *from, size_t bytes);

#endif
