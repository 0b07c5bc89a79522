/*
 * A verification: the checksums of all published blocks, some at a time, in the background and no
 * faster than it is told. It goes on without the session that has begun it.
 */
#ifndef KVC_API_VERIFY_H
#define KVC_API_VERIFY_H

#include <stdbool.h>

#include "proto/status.h"

struct api;
struct verify;

/* The api's tiers may be set later, but before one begins. */
kvc_status verify_create(struct api *api, struct verify **verify);
/* Nothing is looked at any more; what is being read ends. NULL is fine, here and below. */
void verify_stop(struct verify *verify);
bool verify_is_busy(const struct verify *verify); /* something is being read */
/* When it is not busy. */
void verify_close(struct verify *verify);

#endif
