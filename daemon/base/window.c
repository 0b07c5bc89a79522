#include "daemon/base/window.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/clock.h"

void window_note(struct window *w, uint64_t now_us, const uint64_t totals[WINDOW_COUNTERS])
{
    const uint64_t now = now_us / CLOCK_S_US;
    uint32_t *bucket = w->buckets[now % WINDOW_SECONDS];

    if (now - w->second >= WINDOW_SECONDS)
        memset(w->buckets, 0, sizeof(w->buckets));
    else
        for (uint64_t s = w->second + 1; s <= now; s++)
            memset(w->buckets[s % WINDOW_SECONDS], 0, sizeof(w->buckets[0]));
    w->second = now;
    for (uint32_t i = 0; i < WINDOW_COUNTERS; i++) {
        bucket[i] += (uint32_t)(totals[i] - w->totals[i]);
        w->totals[i] = totals[i];
    }
}

void window_sum(const struct window *w, uint64_t now_us, uint32_t seconds,
                uint64_t sums[WINDOW_COUNTERS])
{
    const uint64_t now = now_us / CLOCK_S_US;

    assert(seconds >= 1 && seconds <= WINDOW_SECONDS);
    memset(sums, 0, WINDOW_COUNTERS * sizeof(sums[0]));
    /* Buckets behind the newest are of a round before. */
    for (uint64_t s = now + 1 > seconds ? now + 1 - seconds : 0; s <= w->second; s++)
        for (uint32_t i = 0; i < WINDOW_COUNTERS; i++)
            sums[i] += w->buckets[s % WINDOW_SECONDS][i];
}
