// A redis-server of the test's, on loopback or another address, which keeps nothing on disk and
// dies with the test.
#ifndef KVC_TESTS_LIB_REDIS_H
#define KVC_TESTS_LIB_REDIS_H

#include <stdbool.h>

// Answers when this returns; false: there is none on this machine.
bool redis_start(int port);
bool redis_start_at(const char *address, int port);
void redis_kill(void);
// It keeps its connections, and says nothing.
void redis_freeze(void);
void redis_thaw(void);

#endif
