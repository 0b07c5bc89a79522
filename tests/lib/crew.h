// An engine as several processes: each member of a crew is a process of its own that runs the
// functions that the test sends to it, one after the other, with what the test gives them. Members
// keep their static variables to themselves, as an engine's processes do; between them goes only
// what the test carries.
//
//     struct member *m = crew_hire("worker 0");
//     struct ask ask = {.n = 3};
//     crew_call(m, save_blocks, &ask);     // in the member, which may change ask
//     crew_start(m, ...); crew_start(other, ...); crew_finish(m); crew_finish(other);
//     crew_dismiss(m);
//
// A member dies with the test. What it asserts and does not hold fails the test.
#ifndef KVC_TESTS_LIB_CREW_H
#define KVC_TESTS_LIB_CREW_H

#include <stddef.h>
#include <sys/types.h>

#define CREW_ARG_MAX 8192u

struct member;

// arg is a copy in the member; what it then holds goes back into the caller's.
typedef void crew_fn(void *arg);

struct member *crew_hire(const char *name);

void crew_start_sized(struct member *m, crew_fn *fn, void *arg, size_t size);
// Waits until what was started has returned.
void crew_finish(struct member *m);
#define crew_start(m, fn, arg) crew_start_sized(m, fn, arg, sizeof(*(arg)))
#define crew_call(m, fn, arg)  (crew_start(m, fn, arg), crew_finish(m))

// It has nothing to do, and exits in order.
void crew_dismiss(struct member *m);
// kill -9, and reaped.
void crew_kill(struct member *m);

#endif
