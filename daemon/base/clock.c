#include "daemon/base/clock.h"

#include <stdbool.h>
#include <time.h>

#include "daemon/base/fault.h"

static uint64_t real_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_S_US + (uint64_t)ts.tv_nsec / 1000;
}

#ifndef KVC_DEBUG
uint64_t clock_now_us(void)
{
    return real_now_us();
}
#else
static bool stopped;

uint64_t clock_now_us(void)
{
    // An hour, so that nothing that is computed backwards from now is below zero.
    return (stopped ? 3600 * CLOCK_S_US : real_now_us()) + fault_clock_offset_us();
}

void clock_stop(void)
{
    stopped = true;
}

void clock_advance(uint64_t us)
{
    fault_clock_move_us(us);
}
#endif
