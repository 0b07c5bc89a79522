/*
 * The pace of a worker: it sleeps after each stretch of work as long as its share asks for, so that
 * many workers together load a machine evenly, and not to the full. Whatever else it waits for
 * counts as work: what others do for it is part of the load.
 */
#ifndef KVC_CTL_PACE_H
#define KVC_CTL_PACE_H

#include <stdint.h>

struct pace {
    uint32_t percent; /* of the time that it works; 0 or 100: all of it */
    uint64_t since_ns;
};

void pace_begin(struct pace *pace, uint32_t percent);
/* Between any two pieces of work. */
void pace_step(struct pace *pace);

#endif
