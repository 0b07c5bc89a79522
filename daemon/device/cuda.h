/*
 * Inside of the CUDA device: what its files share. device.h is the door.
 *
 * All memory is of the primary context of one GPU, which is current only inside of a call
 * (device_cuda_enter, device_cuda_leave), on whatever thread that is.
 */
#ifndef KVC_DEVICE_CUDA_H
#define KVC_DEVICE_CUDA_H

#include "daemon/device/device.h"
#include "kernels/cuda_driver.h"

struct nvml;

struct device_cuda {
    struct cuda_driver driver;
    struct nvml *nvml; /* NULL: this machine has none */
    void *context;
    int ordinal;
    uint8_t uuid[KVC_UUID_BYTES];
    char name[64];
};

extern const struct device_ops device_cuda_gpu;
extern const struct device_ops device_cuda_host;

/* What both kinds of slab begin with, so that a copy can ask for the device of either. */
struct device_cuda_slab {
    struct device_cuda *cuda;
    void *stream; /* of copies to this slab */
};

/* KVC_OK, or the status of a call of the driver that failed, which is logged. */
kvc_status device_cuda_check(const struct device_cuda *cuda, const char *what, uint32_t extent,
                             int error);

kvc_status device_cuda_enter(struct device_cuda *cuda);
void device_cuda_leave(struct device_cuda *cuda);

/* copy and settle of device_ops, for both kinds of slab. */
kvc_status device_cuda_copy(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                            uint64_t from_offset, uint64_t bytes);
kvc_status device_cuda_settle(struct device_slab *to);

/* Makes bytes of a slab of host memory safe to touch. */
kvc_status device_cuda_host_ready(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                  uint64_t bytes);

#endif
