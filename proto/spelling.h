/*
 * How far a mistyped name is from one that exists, for "did you mean".
 */
#ifndef KVC_PROTO_SPELLING_H
#define KVC_PROTO_SPELLING_H

#include <stdbool.h>
#include <stddef.h>

/* A longer known name is never near. */
#define SPELLING_NAME_MAX 31

/* Letters to insert, remove or change; 1 for the first words of a longer name. */
size_t spelling_distance(const char *given, const char *known);
/* Near enough to be what was meant. */
bool spelling_is_near(const char *given, const char *known);

#endif
