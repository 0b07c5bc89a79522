#include "daemon/base/clock.h"

#include <time.h>

#include "daemon/base/fault.h"

uint64_t clock_now_us(void)
{
    struct timespec ts;
    uint64_t now;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    now = (uint64_t)ts.tv_sec * CLOCK_S_US + (uint64_t)ts.tv_nsec / 1000;
#ifdef KVC_DEBUG
    now += fault_clock_offset_us();
#endif
    return now;
}

#ifdef KVC_DEBUG
void clock_advance(uint64_t us)
{
    fault_clock_move_us(us);
}
#endif
