/*
 * What the files of the store share: the store itself and what one request needs to know of a
 * part. Included by daemon/store/ only; everybody else goes through store.h.
 */
#ifndef KVC_STORE_STATE_H
#define KVC_STORE_STATE_H

#include "daemon/base/clock.h"
#include "daemon/base/list.h"
#include "daemon/store/block.h"
#include "daemon/store/expiry.h"
#include "daemon/store/figures.h"
#include "daemon/store/handles.h"
#include "daemon/store/policy.h"
#include "daemon/store/slots.h"
#include "daemon/store/table.h"

#define SLOT_STATES (SLOT_DOOMED + 1)

/* Eviction orders of a class; what a block's order[] says. */
enum order {
    ORDER_NONE,
    ORDER_DIRTY, /* gpu tier, no copy below it */
    ORDER_CLEAN, /* gpu tier, its copy is in the host tier too */
    ORDER_HOST,
    ORDER_COUNT
};

struct claim;
struct partition;
struct usage;

/* Blocks of one tenant and slot size: they compete for the same slots. */
struct tier_class {
    struct store *store;
    struct list link; /* store::classes */
    uint32_t tenant;
    uint64_t slot_bytes;
    struct list partitions; /* one a family */
    uint32_t n_partitions;
    struct expiry givers[2][ORDER_COUNT]; /* of partitions without and with a quota in the tier */
    uint64_t used[TIER_COUNT];            /* slots */
    uint64_t wanted;                      /* keys of saves that wait for room */
    uint32_t demoting;                    /* copies in flight */
    struct list wants;                    /* store::claimants */
    struct claim *claims[TIER_COUNT];     /* under way for it; NULL: none */
    struct claim *own_claims;             /* one a tier: what those point to */
    bool wanting[TIER_COUNT];             /* found no free slot since the latest look */
    uint64_t look[TIER_COUNT];            /* clock_us before which no extent is looked for */
};

/* What its families share out among themselves. */
struct tenant_usage {
    uint64_t quotas[TIER_COUNT]; /* bytes, of all that have one */
    uint32_t others[TIER_COUNT]; /* without one, that have a slot and are not idle */
};

struct store {
    struct store_config config;
    struct table *table;
    struct slots *slots[TIER_COUNT];
    struct table_slot *records[TIER_COUNT]; /* the table's, by slot number */
    struct blocks *blocks;
    struct list classes, unbalanced;
    struct list claims, claimants;
    bool tell;                     /* notices of extents are due */
    uint64_t *failing[TIER_COUNT]; /* a bit an extent: its memory is lost, as soon as it can be */
    uint32_t n_failing;
    uint64_t *failed[TIER_COUNT]; /* a bit an extent: nothing can be read from it (lost.c) */
    bool any_failed[TIER_COUNT];
    uint64_t failing_look;
    struct partition **partitions; /* by part; NULL: not registered since the start */
    struct usage **usages;         /* by namespace; likewise */
    struct list families;
    struct list used_families; /* that are not idle, by last use */
    struct tenant_usage tenants[TABLE_TENANTS];
    struct store_quota_rule *quota_rules;
    uint32_t n_quota_rules;
    uint32_t *family_next; /* by part: the next of its family, in a ring; itself: it is alone */

    struct list owners, freed; /* freed: owe nothing, owner_free is due */
    struct list leaving;       /* have ended, before all their saves */
    struct handles sessions, leases;
    uint32_t sessions_of[TABLE_TENANTS];
    struct expiry lease_ends;
    struct list ending;  /* leases whose blocks are not all released, oldest end first */
    uint64_t lost;       /* flushes of keys that leases had */
    bool looking;        /* not all leases were looked at for the latest */
    uint32_t releases;   /* blocks that may be released until the next tick */
    struct handles pins; /* by block */
    struct expiry pin_ends;
    uint64_t pinned_bytes; /* of pins that were not unpinned */
    struct save *unlisted;  /* store_save_list is due for it; NULL: for none */
    struct list saves;      /* copying, by deadline */
    struct list ended;      /* aborted and still owed words, oldest first */
    struct list reports;    /* ended, save_done is due */
    struct list words;      /* all that are waited for, by issue */
    struct list young, old; /* of them: by their latest look; by the time of their next */
    uint64_t young_due;
    struct list moves; /* in flight */
    uint64_t moving_bytes;
    uint64_t moves_paused; /* clock_us until which no copy is started after a failed one; 0: none */
    uint32_t moves_failed; /* in a row */
    uint32_t waiting_saves; /* that are short of room */
    bool room;              /* events.room is due */
    uint64_t stale;         /* blocks that were flushed and are not swept yet */
    uint32_t sweep;         /* block ids below have none of them */
    uint64_t last_use;      /* the latest that a record got; about clock_us */
    uint64_t hash_seed;
    uint64_t in_state[SLOT_STATES]; /* slots of both tiers, FREE ones not counted */
    uint64_t open_loads;
    uint64_t reading[TIER_COUNT]; /* copies that the daemon reads itself: store_walk_copies */
    struct store_durations durations;
    struct store_stats stats; /* the counters of it; levels are computed */
};

static inline struct partition *store_partition(const struct store *store,
                                                const struct block *block)
{
    return store->partitions[block->part];
}

static inline struct table_slot *store_record(const struct store *store, enum tier_kind tier,
                                              uint32_t slot)
{
    return &store->records[tier][slot];
}

/* The only way here to change a slot's state: it counts too. */
static inline void store_set_state(struct store *store, struct table_slot *record,
                                   enum slot_state state)
{
    store->in_state[record->state] -= record->state != SLOT_FREE;
    table_slot_set_state(record, state);
    store->in_state[state] += state != SLOT_FREE;
}

/* Whether a slot lies in memory that has failed. */
bool store_has_failed(const struct store *store, enum tier_kind tier, uint32_t slot);

/* Fills a refusal (NULL is fine) and gives its status back. */
kvc_status store_refuse(struct refusal *why, kvc_status status, const char *field,
                        const char *detail);
/* The same for a field of element i: "entries[i].keys". */
kvc_status store_refuse_at(struct refusal *why, kvc_status status, const char *list, uint32_t i,
                           const char *field, const char *detail);
/* An analyser of one file at a time does not see that they return what they are given. */
#ifdef KVC_LINT
#define store_refuse(why, status, ...)    ((store_refuse)(why, status, __VA_ARGS__), (status))
#define store_refuse_at(why, status, ...) ((store_refuse_at)(why, status, __VA_ARGS__), (status))
#endif

/* Tells who follows, if anybody does. */
static inline void store_note(const struct store *store, enum store_event_kind kind, uint32_t part,
                              enum tier_kind tier, const uint8_t *key, const uint8_t *parent)
{
    const struct store_event event = {kind, part, tier, key, parent};

    if (store->config.events.event)
        store->config.events.event(store->config.events.ctx, &event);
}

/* Ends every public call that may have changed what is free or clean. Some of it may be left. */
void store_settle(struct store *store);

#endif
