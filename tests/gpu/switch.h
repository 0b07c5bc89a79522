// Switches of the driver without a GPU: what a real one does only when it fails. tests/gpu/fake
// says what they do. On any other driver the test is waived.
#ifndef KVC_TESTS_GPU_SWITCH_H
#define KVC_TESTS_GPU_SWITCH_H

#include "tests/gpu/scene.h"

// Waives the test where there are none.
void switch_check(void);

void switch_on(const char *name);
void switch_off(const char *name);
bool switch_is_on(const char *name);

// The call of the daemon that comes after so many of that name (of kernels/cuda_driver.h) fails;
// stays: and all calls of that context after it.
void switch_break(const struct scene_daemon *d, const char *call, int skip, int error, bool stays);
// Whether it has not failed yet.
bool switch_is_set(const char *call);

#endif
