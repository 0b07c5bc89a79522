/*
 * What a command is about: a namespace and some of its keys, as people write them.
 */
#ifndef KVC_CTL_TARGET_H
#define KVC_CTL_TARGET_H

#include <stdbool.h>

#include "client/ctl/ctl.h"

struct target {
    const char *namespace_; /* as given: digest, the start of one, or a name; NULL: not given */
    const char *keys_file;
    uint8_t digest[KVC_NAMESPACE_BYTES];
    uint8_t *keys; /* NULL: none given */
    uint32_t n_keys;
};

/*
 * Reads keys: words of 32 hex digits, given as arguments and in the file ("-": standard input).
 * Says on standard error what is wrong; CTL_USAGE. target_free in any case.
 */
int target_read_keys(const struct ctl *ctl, struct target *target, int argc, char **argv);
/* Finds the one namespace that is meant among those that the daemon knows. */
int target_find_namespace(const struct ctl *ctl, kvc_client *client, struct target *target);
void target_free(struct target *target);

#endif
