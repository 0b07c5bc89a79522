// The text that Prometheus reads: the rules of its format, and what Prometheus's own checker asks
// for besides.
#ifndef KVC_TESTS_LIB_EXPOSITION_H
#define KVC_TESTS_LIB_EXPOSITION_H

#include <stdint.h>

// Fails the test for what is wrong, also in promtool's eyes where it is installed; how many metrics
// there are.
uint32_t exposition_check(const char *text);

#endif
