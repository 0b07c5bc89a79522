/*
 * What the workers of a replay count, in memory they share with the parent, so that a worker that
 * is killed loses nothing that it had counted.
 */
#ifndef KVC_CTL_TALLY_H
#define KVC_CTL_TALLY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum tally_operation { TALLY_LOOKUP, TALLY_SAVE, TALLY_LOAD, TALLY_OPERATIONS };

/* What a worker does with its time. */
enum tally_phase {
    TALLY_ASKING,     /* lookups */
    TALLY_LOADING,    /* loads, with their copies and checksums, and releases */
    TALLY_VERIFYING,  /* every byte of what was loaded */
    TALLY_GENERATING, /* what a model would compute */
    TALLY_SAVING,     /* saves, with their copies and checksums */
    TALLY_REST,
    TALLY_PHASES
};

/* Counters of one worker; only it writes them. */
struct tally_worker {
    _Atomic uint64_t next; /* its next request: where a worker that takes its place goes on */
    _Atomic uint64_t requests, blocks;
    _Atomic uint64_t hits[3]; /* gpu, host, peer */
    _Atomic uint64_t saved_blocks, skipped_blocks, pending_blocks, present_blocks;
    _Atomic uint64_t bytes_saved, bytes_loaded, verified_bytes, mismatches;
    _Atomic uint64_t late_saves; /* given up because the answer came too late */
    _Atomic uint64_t refused_loads, errors;
    _Atomic uint64_t samples[TALLY_OPERATIONS];
    _Atomic uint64_t elapsed_ns[TALLY_PHASES], processor_ns[TALLY_PHASES];
    _Atomic int failed; /* it ended by an error; message says which */
    char message[160];
};

struct tally {
    _Atomic int stop; /* workers end after the request in hand */
    uint32_t n_workers;
    size_t room; /* samples of an operation and worker */
    size_t bytes;
    struct tally_worker *workers;
    float *micros; /* [operation][worker][room] */
};

/* NULL without memory. The whole of it is shared with children forked later. */
struct tally *tally_create(uint32_t n_workers, size_t requests);
void tally_destroy(struct tally *tally);

void tally_sample(struct tally *tally, uint32_t worker, enum tally_operation op, double micros);
/* Quantile q (0..1) of all workers' samples in microseconds; 0 without any. */
double tally_quantile(struct tally *tally, enum tally_operation op, double q);

/* Sum of a counter over the workers. */
#define tally_sum(tally, field)                                                                    \
    __extension__({                                                                                \
        uint64_t sum_ = 0;                                                                         \
        for (uint32_t w_ = 0; w_ < (tally)->n_workers; w_++)                                       \
            sum_ += atomic_load(&(tally)->workers[w_].field);                                      \
        sum_;                                                                                      \
    })

#endif
