/*
 * The result of a replay, for people or as JSON.
 */
#ifndef KVC_CTL_REPORT_H
#define KVC_CTL_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/ctl/field.h"
#include "client/ctl/tally.h"

/* What had been done at a moment in between. */
struct report_part {
    uint64_t requests, blocks, hits; /* no request: there was no such moment */
};

struct report {
    struct tally *tally;
    struct report_part before; /* the second daemon was killed */
    uint64_t bad_lines;
    /* Of the daemon, during the replay; admitted: blocks, at_once: of those, without waiting. */
    uint64_t demotions, evictions, promotions, admitted, at_once;
    uint64_t killed_workers;
    double seconds;
    struct report_cpu {
        double all_s, system_s; /* of that in the kernel; NAN: unknown */
    } daemon, workers;
};

extern const struct shape report_shape;

void report_part_take(struct tally *tally, struct report_part *part);

uint64_t report_mismatches(const struct report *report);
void report_json(const struct report *report, FILE *to);
void report_text(const struct report *report, FILE *to);

void report_progress(struct tally *tally, uint64_t total, double seconds);

#endif
