#include "client/ctl/pace.h"

#include <time.h>

#define STRETCH_NS 1000000u
#define SECOND_NS  1000000000u

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

void pace_begin(struct pace *pace, uint32_t percent)
{
    *pace = (struct pace){.percent = percent, .since_ns = now_ns()};
}

void pace_step(struct pace *pace)
{
    uint64_t worked, sleep;
    struct timespec until;

    if (pace->percent == 0 || pace->percent >= 100)
        return;
    worked = now_ns() - pace->since_ns;
    if (worked < STRETCH_NS)
        return;
    sleep = worked * (100 - pace->percent) / pace->percent;
    until = (struct timespec){.tv_sec = (time_t)(sleep / SECOND_NS),
                              .tv_nsec = (long)(sleep % SECOND_NS)};
    nanosleep(&until, NULL);
    pace->since_ns = now_ns();
}
