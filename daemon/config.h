/*
 * Settings of the daemon. One row of a table per option gives its name on the command line, its
 * unit and range, its default and its line in --help; whatever else reads settings goes through
 * config_set and so through the same rows.
 */
#ifndef KVC_DAEMON_CONFIG_H
#define KVC_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/base/log.h"

#define CONFIG_TEXT_MAX 256u
#define CONFIG_WHY_MAX  384u

struct config {
    char socket[CONFIG_TEXT_MAX];
    uint64_t socket_mode;
    uint64_t device; /* enum config_device */
    uint64_t gpu_bytes;
    uint64_t host_bytes;
    uint64_t log_level; /* enum log_level */
};

enum config_device { CONFIG_DEVICE_AUTO, CONFIG_DEVICE_HOST, CONFIG_DEVICE_CUDA };

/* Every option at its default. */
void config_init(struct config *config);

/* Sets one option from text. false: why (CONFIG_WHY_MAX bytes) says in one line what is wrong. */
bool config_set(struct config *config, const char *name, const char *value, char *why);

enum config_action { CONFIG_RUN, CONFIG_HELP, CONFIG_VERSION, CONFIG_BAD };

/* Reads the command line. CONFIG_BAD: why says what is wrong. */
enum config_action config_arguments(struct config *config, int argc, char *const argv[], char *why);

/* What no option shows by itself; false, and why. */
bool config_check(const struct config *config, char *why);

void config_help(FILE *out);

/* "256M" to bytes: digits and at most one of K, M, G, T (powers of 1024). false: it is no size. */
bool config_parse_size(const char *text, uint64_t *bytes);
/* The same backwards, exact: "256M", "1000". */
const char *config_format_size(uint64_t bytes, char text[24]);

#endif
