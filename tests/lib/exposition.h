// The text that Prometheus reads: the rules of its format, and what Prometheus's own checker asks
// for besides.
#ifndef KVC_TESTS_LIB_EXPOSITION_H
#define KVC_TESTS_LIB_EXPOSITION_H

#include <stdint.h>

// Fails the test for what is wrong; how many metrics there are.
uint32_t exposition_check(const char *text);

// The same by promtool, where it is installed.
void exposition_check_with_promtool(const char *text);

#endif
