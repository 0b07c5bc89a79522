/*
 * What a block of the replay holds: a function of its key, the slice and the offset, so that a
 * loaded byte can be checked without asking who wrote it.
 */
#ifndef KVC_CTL_CONTENT_H
#define KVC_CTL_CONTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

/* Writes, or compares, one slice of bytes bytes. */
void content_write(const uint8_t key[KVC_KEY_BYTES], uint32_t slice, void *to, size_t bytes);
bool content_matches(const uint8_t key[KVC_KEY_BYTES], uint32_t slice, const void *from,
                     size_t bytes);

#endif
