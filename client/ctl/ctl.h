/*
 * kvcachectl: looks into kvcached and replays traces through it. client/ctl/ may include client/,
 * proto/ and jansson, nothing of the daemon. A command is one file with one function of the type
 * below; main.c has the table of them.
 */
#ifndef KVC_CTL_CTL_H
#define KVC_CTL_CTL_H

#include <stdbool.h>

#include "client/kvcache.h"

enum { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2 };

struct ctl {
    const char *program;
    const char *socket; /* NULL: the library's default */
    bool json;
};

/* argv[0] is the command's name. Returns the exit status. */
typedef int ctl_command(struct ctl *ctl, int argc, char **argv);

ctl_command status_command, ping_command, clients_command, replay_command, bench_command,
    config_command, peers_command, flush_command, pin_command, unpin_command, quota_command,
    namespaces_command, layouts_command, leases_command, blocks_command, log_level_command,
    events_command, drain_command, verify_command, top_command, extents_command;

/*
 * Takes --json, --socket and --help for a command without options of its own (help says what it
 * does, json what it prints; option.h has the tables of the others). false: end with *exit_status.
 */
struct shape;
bool ctl_parse(struct ctl *ctl, int argc, char **argv, const char *help, const struct shape *json,
               int *exit_status);

/* Connects as operator; on failure says so on standard error and returns NULL. */
kvc_client *ctl_connect(const struct ctl *ctl);
/* Reports a failed call the same way; returns CTL_FAILED. */
int ctl_fail(const struct ctl *ctl, kvc_client *client, const char *what, kvc_status status);
/* Reports an unusable command line; returns CTL_USAGE. */
int ctl_usage(const struct ctl *ctl, const char *what, const char *value);

#endif
