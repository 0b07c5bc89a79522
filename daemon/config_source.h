/*
 * Where settings come from: a file, the environment, the command line, in the order in which the
 * later one wins.
 */
#ifndef KVC_DAEMON_CONFIG_SOURCE_H
#define KVC_DAEMON_CONFIG_SOURCE_H

#include "daemon/config.h"

/* Read when it is there and no --config names another. */
#define CONFIG_FILE_DEFAULT "/etc/kvcached/kvcached.conf"

struct config_source {
    int argc;
    char *const *argv;
    char *const *environment;
};

enum config_action {
    CONFIG_RUN,
    CONFIG_HELP,
    CONFIG_VERSION,
    CONFIG_CHECKED,
    CONFIG_WRONG,
    CONFIG_BAD
};

/*
 * Makes a configuration of everything that source names; called again for a reload. CONFIG_CHECKED
 * and CONFIG_WRONG: --check-config named a file and it is right, or not; CONFIG_BAD: what was to be
 * used is not. With both why says what is wrong, where.
 */
enum config_action config_load(struct config *config, const struct config_source *source,
                               char *why);

/* One file: `name = value` lines, # and ; comments, at most one section, [kvcached]. */
bool config_read_file(struct config *config, const char *path, char *why);

#endif
