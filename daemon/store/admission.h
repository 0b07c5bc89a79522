/*
 * The request of a save while it is admitted: its entries and keys, and what each key is to the
 * store. Checking and reading it (admission.c) change nothing; admit.c does.
 */
#ifndef KVC_STORE_ADMISSION_H
#define KVC_STORE_ADMISSION_H

#include "daemon/store/owner.h"
#include "daemon/store/room.h"
#include "daemon/store/save.h"

/* States of keys during admission, besides those of enum store_key. */
#define KEY_MISSING 254u
#define KEY_SHARED  253u /* an earlier entry of this call is assigned its slot */

struct admission_entry {
    uint32_t part, epoch;
    uint32_t first, end; /* keys of the admission */
    uint32_t next;       /* the first that may still be MISSING; of other rules: behind the last */
    uint32_t needed;     /* blocks that the part's rule asks for; UINT32_MAX: all */
    uint32_t wanted;     /* keys that wait for room, as told to the class */
    bool closed;         /* no key of it gets room any more */
    bool over;           /* of room_take */
    struct partition *partition;
    uint64_t block_bytes;
    /* Of saves by slices: */
    uint32_t n_slices;                     /* of the first call */
    uint32_t slots_end;                    /* where its part of save::slots ends */
    uint64_t claimed[KVC_SLICES_MAX / 64]; /* that a call has brought, or will */
};

/* What is known of a key besides its state. */
union admission_place {
    struct save_slot slot;       /* ASSIGNED */
    uint32_t beside[TIER_COUNT]; /* HIT: of keep_hold_aside */
};

struct admission {
    uint32_t n_entries, n_keys;
    bool waiting;  /* counted in store::waiting_saves */
    bool fresh;    /* what is missing has just been looked for, and no two entries can share it */
    bool unlisted; /* its keys that are assigned are not in the index: store_save_list */
    struct room_place reach; /* of who saves */
    struct admission_entry *entries;
    uint8_t *keys;
    uint8_t *states;
    uint32_t *ids;  /* blocks of hits; also ASSIGNED */
    uint32_t *tags; /* of the keys, in the index of blocks */
    union admission_place *places;
};

/* What can be refused is refused here, before any change. */
kvc_status admission_check(const struct owner *owner, const struct store_save *req,
                           uint32_t *n_keys, struct refusal *why);

/* Reads a request and looks every key up. NULL: out of memory. One piece: mem_free frees it. */
struct admission *admission_create(const struct owner *owner, const struct store_save *req,
                                   uint32_t n_keys);

static inline const uint8_t *admission_key(const struct admission *admission, uint32_t i)
{
    return admission->keys + (size_t)i * KVC_KEY_BYTES;
}

#endif
