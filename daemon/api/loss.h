/*
 * GPUs that fail for good. The device finds it out, on any thread; here, on the loop, the store
 * gives up what it has on them, and everything else goes on.
 */
#ifndef KVC_API_LOSS_H
#define KVC_API_LOSS_H

#include <stdint.h>

#include "proto/status.h"

struct api;
struct loss;

/* When the api has its store and tiers. A device without GPUs has no loss: NULL. */
kvc_status loss_create(struct api *api, struct loss **loss);
/* GPUs that are lost. NULL is fine. */
uint32_t loss_count(const struct loss *loss);
/* NULL is fine. */
void loss_close(struct loss *loss);

#endif
