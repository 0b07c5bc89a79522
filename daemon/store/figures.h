/*
 * Figures: what the store has, has done, and how long that took, for who looks and changes nothing.
 * Everything here is as of the call.
 */
#ifndef KVC_STORE_FIGURES_H
#define KVC_STORE_FIGURES_H

#include "daemon/base/histogram.h"
#include "daemon/store/store.h"

/* Figures tell namespaces of so many first rows of the table apart; those behind are one. */
#define STORE_NAMED_NAMESPACES 32u

struct store_namespace_usage {
    uint64_t used[TIER_COUNT]; /* bytes of slots, whatever state they are in */
    /* Of its family: what all its namespaces use, and may use before they give room first. */
    uint64_t family[TIER_COUNT], share[TIER_COUNT];
    uint64_t hits[TIER_COUNT]; /* as those of store_stats */
    uint64_t leased;           /* blocks */
    struct store_quota quota;
};
/* Of a namespace of the table, by its index. */
void store_namespace_usage(const struct store *store, uint32_t namespace_,
                           struct store_namespace_usage *usage);

/* A failed save whose slots wait for proof. */
struct store_quarantine {
    struct owner *owner;
    uint64_t save, bytes, age_us;
    uint32_t part; /* of its first slot */
    uint32_t slots;
    kvc_status status; /* why it failed */
};
/*
 * Of the STORE_QUARANTINE_MAX that have been there for the longest time, the one with the lowest
 * number above `after`; false: there is none.
 */
#define STORE_QUARANTINE_MAX 1024u
bool store_next_quarantine(const struct store *store, uint64_t after,
                           struct store_quarantine *quarantine);

struct store_stats {
    struct slots_count tier[TIER_COUNT];
    uint64_t hits[TIER_COUNT], bytes_saved[TIER_COUNT], bytes_loaded[TIER_COUNT];
    uint64_t forgotten_hits[TIER_COUNT];      /* of forgotten namespaces that were not told apart */
    uint64_t tier_evictions[TIER_COUNT];      /* for whatever reason: these two, or to make room */
    uint64_t clean_evictions[TIER_COUNT];     /* of copies; another tier still has the block */
    uint64_t dependent_evictions[TIER_COUNT]; /* with another, without which they are of no use */
    uint64_t blocks;                          /* published */
    uint64_t owners, leases, open_loads, filling_slots, quarantined_slots, pinned_blocks;
    uint64_t moving_blocks;   /* now, between tiers */
    uint64_t limited_lookups; /* that a quota of leases has cut */
    /* Of bytes_saved and bytes_loaded: by owners without a user, which are the daemon's own. */
    uint64_t own_bytes_saved[TIER_COUNT], own_bytes_loaded[TIER_COUNT];
    uint64_t bytes_moved[TIER_COUNT]; /* of blocks that were copied to it from the other */
    uint64_t misses, evictions, demotions, failed_demotions, promotions;
    uint64_t saves, aborted_saves, published_blocks, skipped_blocks;
    uint64_t stale_completions, checksum_failures;
    uint64_t admitted_blocks, admitted_at_once;
    uint64_t resized_extents, moved_extents; /* to another slot size, to another tenant */
    uint64_t kept_extents;                   /* that were to change and had to stay */
    uint64_t lost_extents, waiting_extents;  /* now: without memory; to be unmapped by sessions */
    uint64_t oldest_op_us, quarantine_oldest_us;
    uint64_t metadata_bytes;
};
void store_stats(const struct store *store, struct store_stats *stats);
/* Of those, the hits by tier and then the misses, alone. */
void store_count_hits(const struct store *store, uint64_t counts[TIER_COUNT + 1]);

/*
 * How long it took, copies and proof included, of what came to its end: from the call until all was
 * published; from the answer until the word had arrived or the daemon had copied; and copies
 * between the tiers, with their wait for others.
 */
struct store_durations {
    struct histogram saves, loads, demotions, promotions;
};
const struct store_durations *store_durations(const struct store *store);

#endif
