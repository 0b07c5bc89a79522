/*
 * Daemons on this machine that ask each other over TCP on loopback, and a worker of one of them,
 * whose blocks have bytes that follow from their keys. Whatever goes wrong ends the program.
 */
#ifndef KVC_TESTS_BENCH_HOSTS_H
#define KVC_TESTS_BENCH_HOSTS_H

#include <stdint.h>

#include "client/kvcache.h"

#define HOSTS 4

/* Where kvcached and kvcachectl are; build, if nothing is said. */
void hosts_programs(const char *folder);
/* Number i, which asks the first n of them but itself. mode: its --transfer. */
void hosts_start(int i, int n, const char *mode);
void hosts_stop(void);
/* The loops of the first two, each on a processor of its own, as the two of the reference: a busy
 * machine would put them on one every now and then. Other threads run where there is room. */
void hosts_part(void);

double hosts_now_ms(void);
/* Of processor time that all have used. */
double hosts_used_ms(void);
/* Numbers of `kvcachectl peers`, summed over the rows of daemons that this one asks. */
uint64_t hosts_sum(int i, const char *field);

#define WORKER_SLICES    64u /* of a block */
#define WORKER_BATCH     64u /* blocks that a worker has memory for */
#define WORKER_FETCH_MAX 1024u

struct worker {
    kvc_client *client;
    kvc_part part;
    uint32_t slice_bytes;
    uint8_t *memory;
    uint64_t requests;
};

/* Of daemon i; without UCX there is none, which ends the program well. */
void worker_open(struct worker *w, int i, uint32_t slice_bytes);
void worker_close(struct worker *w);

/* Blocks first .. first + n - 1. */
void worker_save(struct worker *w, uint32_t first, uint32_t n);
/* Milliseconds until all of them can be leased. */
double worker_fetch(struct worker *w, uint32_t first, uint32_t n);
/* What was fetched, compared; and then it is gone from here. */
void worker_verify(struct worker *w, uint32_t first, uint32_t n);

#endif
