/*
 * What counters have grown by in the last seconds, for a few counters that are noted together: a
 * ring of one bucket a second. Nothing has to run for it: buckets that time has passed are emptied
 * when the next growth is noted, and left out when they are summed up.
 */
#ifndef KVC_BASE_WINDOW_H
#define KVC_BASE_WINDOW_H

#include <stdint.h>

#define WINDOW_COUNTERS 4u
#define WINDOW_SECONDS  900u /* the longest */

/* Zeroed: counters at 0. */
struct window {
    uint64_t second; /* of the newest bucket, on clock_us */
    uint64_t totals[WINDOW_COUNTERS];
    uint32_t buckets[WINDOW_SECONDS][WINDOW_COUNTERS];
};

/* The counters stand at totals now, which never get smaller; nor does the time. */
void window_note(struct window *window, uint64_t now_us, const uint64_t totals[WINDOW_COUNTERS]);

/* What they have grown by in the last seconds (1 to WINDOW_SECONDS), the one that runs included. */
void window_sum(const struct window *window, uint64_t now_us, uint32_t seconds,
                uint64_t sums[WINDOW_COUNTERS]);

#endif
