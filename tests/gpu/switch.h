// Switches of the driver without a GPU: what a real one does only when it fails. tests/gpu/fake
// says what they do. On any other driver the test is waived, but for those with a trap.
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
// Of the call "any" each is one, of pid 0 each process.
void switch_break_in(pid_t pid, const char *call, int skip, int error, bool stays);
void switch_break(const struct scene_daemon *d, const char *call, int skip, int error, bool stays);
// Whether it has not failed yet.
bool switch_is_set(const char *call);

// Starts a daemon one of whose contexts can be broken for good, by ordinal: by a kernel of
// tests/gpu/trap.c, or on the driver without a GPU by its next launch there.
void switch_daemon_with_trap(struct scene_daemon *d, const char *const args[]);
void switch_trap(const struct scene_daemon *d, int ordinal);

#endif
