/*
 * Owners: the store's side of sessions. Who it is, what it has mapped and registered, and what it
 * still owes proof for; it goes when its connection has ended and nothing is owed.
 */
#ifndef KVC_STORE_OWNER_H
#define KVC_STORE_OWNER_H

#include "daemon/store/state.h"
#include "daemon/store/page.h"

struct owner {
    struct store *store;
    struct list link;    /* store::owners or store::freed */
    struct list leaving; /* store::leaving: it has ended, and some of its saves have not */
    uint64_t id;
    uint8_t secret[KVC_SECRET_BYTES];
    struct owner_identity identity;
    uint32_t session; /* in the table */
    bool ended;
    void *user;
    struct page *page; /* NULL: none */
    /* A bit an extent. */
    uint64_t *mapped[TIER_COUNT]; /* it may be told locations there */
    uint64_t *held[TIER_COUNT];   /* it may have mapped it, acknowledged or not */
    uint64_t *told[TIER_COUNT];   /* of held: it is to unmap it */
    uint64_t *untold[TIER_COUNT]; /* of told: the notice is due */
    uint64_t *near;        /* of the gpu tier: on its own GPU; NULL: it makes no difference */
    uint64_t *near_mapped; /* of them: mapped */
    uint32_t n_told;
    bool withdrawn, granted; /* notices are due */
    bool overdue;            /* it was told long ago and has not answered */
    uint32_t parts[KVC_PARTS_MAX];
    uint32_t n_parts;
    uint64_t had_parts[TABLE_PARTS / 64]; /* a bit a part: it has registered it, perhaps no more */
    uint32_t n_saves, n_leases;
    uint32_t lease_blocks; /* that its leases have room for, all parts together */
    struct list saves, leases, loads;
    struct handles requests; /* leases by the client's own name of their lookup */
};

bool owner_has_part(const struct owner *owner, uint32_t part);

/* Blocks in front of a boundary that the part's rule asks for; UINT32_MAX: all of them. */
uint32_t part_needed(const struct store *store, uint32_t part);

/*
 * What every request on a part checks first: the owner has registered it, and its epoch is the
 * namespace's. KVC_E_UNKNOWN or KVC_E_STALE, with the fields "part" and "epoch" of list[i], or of
 * the request itself when list is NULL.
 */
kvc_status owner_check_part(const struct owner *owner, uint32_t part, uint32_t epoch,
                            const char *list, uint32_t i, struct refusal *why);

/* The next turn of ending what owners that have ended have left: SAVE_DROPS blocks. */
void owner_tick(struct store *store);

/* Moves an ended owner that owes nothing to those that are to be freed. */
void owner_settle(struct owner *owner);

/* Frees it with everything that it has, whatever state that is in. */
void owner_destroy(struct owner *owner);

/* Constant in time, whatever differs. */
bool owner_equal_bytes(const uint8_t *a, const uint8_t *b, size_t n);

#endif
