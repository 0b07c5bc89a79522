/*
 * Figures of this process, under the names that all clients of Prometheus give them. What /proc
 * does not say is left out.
 */
#ifndef KVC_METRICS_SELF_H
#define KVC_METRICS_SELF_H

#include <stdint.h>

#include "daemon/metrics/text.h"

/* Slots of descriptors that are counted one by one: so many take a millisecond at most. */
#define SELF_SLOTS_MAX 4096u

struct self {
    double started_s; /* since 1970; 0: not known */
};

/* When it started is asked once, or it would move whenever the clock is set. */
void self_open(struct self *self);
void self_write(const struct self *self, uint64_t cpu_us, struct text *text);

/* Of the first slots, those that are in use. */
uint64_t self_count_descriptors(uint64_t slots);

#endif
