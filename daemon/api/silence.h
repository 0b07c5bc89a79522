/*
 * Who connects and says nothing takes descriptors that others need, so a connection without a HELLO
 * is cut after KVC_HELLO_MS. One timer for all; it runs while there is such a connection.
 */
#ifndef KVC_API_SILENCE_H
#define KVC_API_SILENCE_H

#include <uv.h>

#include "proto/status.h"

struct api;
struct silence;

kvc_status silence_create(uv_loop_t *loop, struct api *api, struct silence **silence);
/* A session was made that has not said HELLO. */
void silence_begins(struct silence *silence);
/* NULL is fine. */
void silence_close(struct silence *silence);

#endif
