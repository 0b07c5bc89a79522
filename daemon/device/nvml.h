/*
 * NVML, found at run time: which processes have a context on a GPU, and whether a GPU is divided
 * (MIG). Its calls may hang while a GPU fails.
 */
#ifndef KVC_DEVICE_NVML_H
#define KVC_DEVICE_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

struct nvml;

/* KVC_E_NO_DEVICE where there is no NVML. */
kvc_status nvml_open(struct nvml **nvml);
void nvml_close(struct nvml *nvml); /* NULL is fine */

/* Any thread. KVC_E_DEVICE when NVML cannot say. */
kvc_status nvml_lists_process(struct nvml *nvml, const uint8_t uuid[KVC_UUID_BYTES], int32_t pid,
                              bool *listed);
/* Whether a process uses the GPU by NVIDIA's multi-process server. */
bool nvml_is_under_mps(struct nvml *nvml, const uint8_t uuid[KVC_UUID_BYTES], int32_t pid);
bool nvml_is_divided(struct nvml *nvml, const uint8_t uuid[KVC_UUID_BYTES]);

#endif
