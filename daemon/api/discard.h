/*
 * Memory files that are not needed any more. To unmap one waits for whoever maps, unmaps or
 * populates anything in this process, and the last to close one frees its memory: both take longer
 * than a turn of the loop may.
 */
#ifndef KVC_API_DISCARD_H
#define KVC_API_DISCARD_H

#include <stddef.h>
#include <uv.h>

/* In the background; with no memory for that, at once. */
void discard(uv_loop_t *loop, void *memory, size_t bytes, int fd);

#endif
