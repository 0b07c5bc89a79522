/*
 * Inside of the CUDA device: what its files share. device.h is the door.
 *
 * All memory is of the primary contexts of the daemon's GPUs; one is current only inside of a call
 * (device_cuda_enter, device_cuda_leave), on whatever thread that is. Slabs can be used on all of
 * these GPUs.
 */
#ifndef KVC_DEVICE_CUDA_H
#define KVC_DEVICE_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/base/list.h"
#include "daemon/device/device.h"
#include "kernels/cuda_driver.h"

struct nvml;

struct cuda_gpu {
    void *context; /* NULL: not open */
    int ordinal;   /* of the driver, in this process */
    uint8_t uuid[KVC_UUID_BYTES];
    char name[64];
    bool has_kernels; /* pack can be used */
    struct pack_cuda pack;
    struct list openings; /* of legacy handles; cuda_loan.c, on the GPU's own thread */
    atomic_uint measured; /* thread blocks that are enough; 0: not measured */
    atomic_bool lost;     /* cuda_loss.c */
};

struct device_cuda {
    struct cuda_driver driver;
    struct nvml *nvml; /* NULL: this machine has none */
    bool legacy;       /* the GPUs' slab has handles and no descriptors */
    uint32_t n_gpus;
    struct cuda_gpu gpus[DEVICE_GPUS_MAX];
    atomic_uint thread_blocks; /* of copies by the daemon at most; 0: what was measured */
    pthread_mutex_t watch;     /* of the next two, also while it is called */
    device_lost_cb *lost;      /* NULL: nobody is to be told */
    void *lost_arg;
};

extern const struct device_ops device_cuda_gpu;
extern const struct device_ops device_cuda_legacy;
extern const struct device_ops device_cuda_host;
extern const struct device_lending device_cuda_lending;

/* What both kinds of slab begin with, so that a copy can ask for the device of either. */
struct device_cuda_slab {
    struct device_cuda *cuda;
    void *streams[DEVICE_GPUS_MAX]; /* of copies to this slab, on each GPU */
};

/*
 * KVC_OK, or the status of a call for a GPU that failed, which is logged, unless the GPU is lost,
 * or turns out to be.
 */
kvc_status device_cuda_check(struct device_cuda *cuda, uint32_t gpu, const char *what,
                             uint32_t extent, int error);

/* Makes its context current. A lost GPU's is not entered, so that no call is made there. */
kvc_status device_cuda_enter(struct device_cuda *cuda, uint32_t gpu);
/* That of any GPU that is not lost. */
kvc_status device_cuda_enter_any(struct device_cuda *cuda, uint32_t *gpu);
void device_cuda_leave(struct device_cuda *cuda);

/*
 * A call for a GPU has failed: if that was an error that stays, the GPU is lost from here on.
 * Returns whether it is. cuda_loss.c
 */
bool cuda_suspect(struct device_cuda *cuda, uint32_t gpu, int error);
bool cuda_is_lost(void *state, uint32_t gpu);
void cuda_watch(void *state, device_lost_cb *lost, void *arg);

/* Chooses the GPUs that are asked for and opens their contexts: cuda_choose.c. */
kvc_status device_cuda_choose(struct device_cuda *cuda, const struct device_cuda_choice *choice,
                              char why[DEVICE_WHY_MAX]);
void device_cuda_release(struct device_cuda *cuda); /* their contexts */

kvc_status device_cuda_make_streams(struct device_cuda_slab *slab);
void device_cuda_free_streams(struct device_cuda_slab *slab);

/* copy and settle of device_ops, for both kinds of slab. */
kvc_status device_cuda_copy(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                            uint64_t from_offset, uint64_t bytes, uint32_t *begun);
kvc_status device_cuda_settle(struct device_slab *to, uint32_t begun);
/* The GPU that an extent of a slab of GPU memory lies on. */
uint32_t device_cuda_gpu_of(const struct device_slab *slab, uint32_t extent);
/* For slabs of GPU memory, which is all there from the start, and goes as a whole. */
kvc_status device_cuda_nothing(struct device_slab *slab, uint32_t extent, uint64_t offset,
                               uint64_t bytes);

/* Makes bytes of a slab of host memory safe to touch. */
kvc_status device_cuda_host_ready(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                  uint64_t bytes);

/* Lanes of device_cuda_lending: cuda_lane.c. */
kvc_status cuda_lane_open(void *state, uint32_t gpu, device_done_cb *done, void *arg,
                          struct device_lane **lane);
kvc_status cuda_lane_job(struct device_lane *lane, const struct device_loan *loan, bool gather,
                         const struct pack_job *job, uint32_t first_cell, bool touches_host);
kvc_status cuda_lane_sum(struct device_lane *lane, const struct pack_layout *layout,
                         const struct pack_block *blocks, uint32_t n_blocks);
kvc_status cuda_lane_flush(struct device_lane *lane);
void cuda_lane_settle(struct device_lane *lane);
kvc_status cuda_lane_look(struct device_lane *lane);
const uint64_t *cuda_lane_cells(const struct device_lane *lane);
void cuda_lane_close(struct device_lane *lane);

/* Thread blocks of a copy: cuda_calibrate.c. */
void cuda_calibrate(void *state, uint32_t gpu);
void cuda_limit_thread_blocks(void *state, uint32_t thread_blocks);
uint32_t cuda_thread_blocks(void *state, uint32_t gpu);

/* The table of a loan: the same bytes here and on the device. */
const void *cuda_loan_table(const struct device_loan *loan, uint64_t *device_table);

#endif
