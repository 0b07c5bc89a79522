// Monotonic time in microseconds. In debug builds tests can move it forward; what sleeps in the
// kernel (timers of the loop) is not moved, so code that waits compares clock_now_us() at each
// tick.
#ifndef KVC_DAEMON_BASE_CLOCK_H
#define KVC_DAEMON_BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_MS_US 1000ULL
#define CLOCK_S_US  1000000ULL

uint64_t clock_now_us(void);

#ifdef KVC_DEBUG
void clock_advance(uint64_t us);

// From now on only clock_advance() moves the clock of this process, so that a run is the same each
// time.
void clock_stop(void);
#endif

#endif
