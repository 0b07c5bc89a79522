/* The inside of the copier, for the files copier*.c only. */
#ifndef KVC_TIER_COPIER_INTERNAL_H
#define KVC_TIER_COPIER_INTERNAL_H

#include <stdatomic.h>

#include "daemon/tier/copier.h"

/*
 * A job in flight. Written by the loop while it is idle, by the pool's thread while it runs. On a
 * GPU a go has two ends, in any order: that it was launched, and that the driver said that it has
 * ended.
 */
struct lane {
    uv_work_t work;
    struct copier *copier;
    struct copier_job *job; /* NULL: idle */
    uint32_t n_slices;      /* that this go copies; 0: all of the job */
    uint64_t bytes;         /* that it has copied */

    struct device_lane *on_gpu; /* NULL: the pool copies */
    uint32_t gpu;
    bool pending;        /* the driver will say, or has said, that it has ended */
    bool launched;       /* the pool is done with it */
    atomic_bool arrived; /* the driver has said it */
    uint64_t since_us;
    bool looking; /* the pool asks the driver what has become of it */
    uv_work_t look;
    kvc_status seen;
};

struct copier {
    uv_loop_t *loop;
    const struct device *device; /* NULL: no GPUs */
    struct tier *tiers[TIER_COUNT];
    uint32_t n_lanes;
    struct lane lanes[COPIER_LANES * DEVICE_GPUS_MAX];
    struct list turns; /* queues that have jobs, in the order of their turns */
    uint32_t count;
    uint64_t bytes;

    /* With GPUs. */
    uv_async_t arrived;
    uv_timer_t overdue;
    uint32_t handles;
};

/* How many slices of a block are copied. */
uint32_t copier_slices_of(const struct copier_block *block);

/* On the pool: copier_copy.c. */
void copier_copy(uv_work_t *work);
/* Sums of earlier goes of the same block are there already. */
void copier_add_cells(struct copier_job *job, uint32_t first, const uint64_t *cells, uint32_t n);

/* A go has ended; its lane takes what is next, and then its job is told. */
void copier_end_go(struct lane *lane);
void copier_start_lanes(struct copier *copier);

/* What the driver says, or does not: copier_gpu.c. */
kvc_status copier_gpu_open(struct copier *copier);
void copier_gpu_watch(struct copier *copier); /* a go begins */
void copier_gpu_close(struct copier *copier); /* frees it, later */

#endif
