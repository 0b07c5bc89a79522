#include "tests/lib/wait.h"

#include <time.h>

#include "tests/lib/check_main.h"

#define PAUSE_FIRST_US 200
#define PAUSE_MOST_US  10000

static uint64_t real_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

uint32_t wait_patient_ms(int deadline_ms)
{
    return (uint32_t)(deadline_ms * CHECK_PATIENCE * check_time_multiplier());
}

struct wait_poll wait_start(int deadline_ms)
{
    return (struct wait_poll){
        .deadline_us = real_now_us() + wait_patient_ms(deadline_ms) * (uint64_t)1000,
        .pause_us = PAUSE_FIRST_US,
    };
}

bool wait_more(struct wait_poll *poll)
{
    struct timespec pause = {0, (long)poll->pause_us * 1000};

    if (real_now_us() >= poll->deadline_us)
        return false;
    nanosleep(&pause, NULL);
    if (poll->pause_us < PAUSE_MOST_US)
        poll->pause_us += poll->pause_us / 2;
    return true;
}
