// The daemon's heap. Every allocation may fail and then is NULL, which the caller turns into a
// status. Debug builds count what lives and have the fault site "mem.alloc": arming it with
// (k, 1) fails allocation number k, which is how sweeps over every k are made.
#ifndef KVC_DAEMON_BASE_MEM_H
#define KVC_DAEMON_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

// At the start of the process, before other threads.
void mem_start(void);

void *mem_alloc(size_t size) __attribute__((malloc, alloc_size(1)));
void *mem_zalloc(size_t size) __attribute__((malloc, alloc_size(1)));

// Zeroed, and NULL when n * size overflows.
void *mem_array(size_t n, size_t size) __attribute__((malloc, alloc_size(1, 2)));

// On failure NULL, and the old memory stays as it is.
void *mem_realloc(void *p, size_t size) __attribute__((alloc_size(2)));

char *mem_strdup(const char *s) __attribute__((malloc));

// NULL is fine.
void mem_free(void *p);

#ifdef KVC_DEBUG
uint64_t mem_live_count(void);
uint64_t mem_live_bytes(void);
#endif

#endif
