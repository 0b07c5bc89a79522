// ucx_perftest (Debian: ucx-utils), two of them over TCP on loopback, each on a processor of its
// own.
#ifndef KVC_TESTS_BENCH_PERFTEST_H
#define KVC_TESTS_BENCH_PERFTEST_H

#include <stdint.h>

// Bytes a second, one way, in messages of so many bytes; it sends one buffer over and over. 0: it
// is not there.
double perftest_rate(uint64_t bytes);

#endif
