// Memory that somebody else can take away under us: a page of a worker's memfd for which there is
// no memory, or that is broken, is SIGBUS to who touches it. Between guard_enter and guard_leave
// that becomes a failed copy: the handler puts memory of zeros in the place of the whole range,
// marks the range as lost, and the access goes on. Anywhere else SIGBUS ends the process as before.
#ifndef KVC_DAEMON_BASE_GUARD_H
#define KVC_DAEMON_BASE_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// A mapping, from and to page boundaries.
struct guard_range {
    uint8_t *start;
    uint64_t bytes;
    atomic_bool lost; // set before its bytes are other than what was mapped, and never reset
};

// Handles SIGBUS of the whole process, from now on. 0 or -errno.
int guard_install(void);

// The calling thread will touch these n ranges. It must not nest.
void guard_enter(struct guard_range *ranges, uint32_t n);
void guard_leave(void);

// Whether bytes that were read or written so far may have been other than the mapped ones, also
// because another thread lost them.
bool guard_is_lost(const struct guard_range *ranges, uint32_t n);

#endif
