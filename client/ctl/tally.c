#include "client/ctl/tally.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static float *samples_of(struct tally *tally, uint32_t worker, enum tally_operation op)
{
    return tally->micros + ((size_t)op * tally->n_workers + worker) * tally->room;
}

struct tally *tally_create(uint32_t n_workers, size_t requests)
{
    /* A worker takes every n-th request; one that is killed repeats the one it was in. */
    size_t room = requests / n_workers + 1;
    size_t head = sizeof(struct tally) + n_workers * sizeof(struct tally_worker);
    head = (head + 63) & ~(size_t)63;
    size_t bytes = head + TALLY_OPERATIONS * n_workers * room * sizeof(float);
    struct tally *tally =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tally == MAP_FAILED)
        return NULL;
    tally->n_workers = n_workers;
    tally->room = room;
    tally->bytes = bytes;
    tally->workers = (struct tally_worker *)(tally + 1);
    tally->micros = (float *)((char *)tally + head);
    return tally;
}

void tally_destroy(struct tally *tally)
{
    if (tally)
        munmap(tally, tally->bytes);
}

void tally_sample(struct tally *tally, uint32_t worker, enum tally_operation op, double micros)
{
    uint64_t at = atomic_load(&tally->workers[worker].samples[op]);
    if (at >= tally->room)
        return;
    samples_of(tally, worker, op)[at] = (float)micros;
    atomic_store(&tally->workers[worker].samples[op], at + 1);
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double tally_quantile(struct tally *tally, enum tally_operation op, double q)
{
    uint64_t n = tally_sum(tally, samples[op]);
    float *all = n ? malloc(n * sizeof(*all)) : NULL;
    if (!all)
        return 0;
    uint64_t filled = 0;
    for (uint32_t w = 0; w < tally->n_workers; w++) {
        uint64_t own = atomic_load(&tally->workers[w].samples[op]);
        memcpy(all + filled, samples_of(tally, w, op), own * sizeof(*all));
        filled += own;
    }
    qsort(all, n, sizeof(*all), compare);
    double result = all[(uint64_t)(q * (double)(n - 1) + 0.5)];
    free(all);
    return result;
}
