/*
 * The verifier: checksums of what lies in slots, on libuv's pool, for whoever walks over the store.
 * Host memory is read where it is; memory of a GPU is copied piece by piece to a page-locked place
 * of the verifier's own, as a demotion is.
 *
 * Fault sites: "verifier.copy" fails a copy from a GPU; "verifier.late" holds a batch back for a
 * millisecond each time that it fires.
 */
#ifndef KVC_TIER_VERIFIER_H
#define KVC_TIER_VERIFIER_H

#include <uv.h>

#include "daemon/tier/tier.h"

#define VERIFIER_BATCH 64u

struct verifier;

struct verifier_slot {
    enum tier_kind tier;
    uint64_t offset; /* bytes from the tier's start */
    /* The layout of its block, whose arrays stay until done. */
    const uint32_t *slice_bytes;
    uint32_t n_slices;
    uint64_t checksum; /* that it should have */
    kvc_status status; /* filled: KVC_OK, KVC_E_CHECKSUM, or why it could not be read */
};

/* Called once, on the loop, never from inside verifier_start. */
typedef void verifier_done_cb(void *arg);

/* The tiers and the device stay until verifier_destroy. */
kvc_status verifier_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                           const struct device *device, struct verifier **verifier);

/* One batch at a time, of up to VERIFIER_BATCH slots, which are the caller's until done. */
void verifier_start(struct verifier *verifier, struct verifier_slot *slots, uint32_t n,
                    verifier_done_cb *done, void *arg);
bool verifier_is_busy(const struct verifier *verifier);

/* When it is not busy. NULL is fine. */
void verifier_destroy(struct verifier *verifier);

#endif
