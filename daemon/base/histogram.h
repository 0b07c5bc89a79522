/*
 * Durations, counted by size: what a metric of that kind is made of. The bounds are the same for
 * all, from a microsecond to ten seconds and by steps of 2 or 2.5 (a quantile is no better known
 * than that), so that histograms can be compared.
 */
#ifndef KVC_BASE_HISTOGRAM_H
#define KVC_BASE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 22u

static const uint64_t histogram_bounds_us[HISTOGRAM_BOUNDS] = {
    1,    2,     5,     10,    20,     50,     100,    200,     500,     1000,    2000,
    5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000,
};

struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1u]; /* the last: above every bound; not cumulative */
    uint64_t sum_us;
};

static inline void histogram_add(struct histogram *h, uint64_t us)
{
    uint32_t i = 0;

    while (i < HISTOGRAM_BOUNDS && us > histogram_bounds_us[i])
        i++;
    h->counts[i]++;
    h->sum_us += us;
}

#endif
