#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

struct command {
    const char *name, *help;
    ctl_command *run;
};

static int version_command(struct ctl *ctl, int argc, char **argv);

static const struct command commands[] = {
    {"status", "tiers, sessions, leases and what is in flight", status_command},
    {"ping", "measure a round trip to the daemon", ping_command},
    {"clients", "list connected sessions", clients_command},
    {"config", "list the settings; config set NAME VALUE changes one", config_command},
    {"namespaces", "list the namespaces that were registered", namespaces_command},
    {"flush", "drop everything, a namespace, or some keys (flush --help)", flush_command},
    {"pin", "keep blocks from being evicted for a time (pin --help)", pin_command},
    {"unpin", "end pins (unpin --help)", unpin_command},
    {"replay", "replay a trace through worker processes (replay --help)", replay_command},
    {"bench", "round trips beside a bare echo (bench --help)", bench_command},
    {"version", "print the version", version_command},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int version_command(struct ctl *ctl, int argc, char **argv)
{
    int exit_status;
    if (!ctl_parse(ctl, argc, argv, "Prints the version.", &exit_status))
        return exit_status;
    if (ctl->json)
        printf("{\"version\": \"%s\"}\n", kvc_version());
    else
        printf("kvcachectl %s\n", kvc_version());
    return CTL_OK;
}

bool ctl_parse(struct ctl *ctl, int argc, char **argv, const char *help, int *exit_status)
{
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 's':
            ctl->socket = optarg;
            break;
        case 'j':
            ctl->json = true;
            break;
        case 'h':
            printf("usage: kvcachectl %s [--socket PATH] [--json]\n%s\n", argv[0], help);
            *exit_status = CTL_OK;
            return false;
        default:
            *exit_status = CTL_USAGE;
            return false;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: %s takes no argument '%s'\n", ctl->program, argv[0], argv[optind]);
        *exit_status = CTL_USAGE;
        return false;
    }
    return true;
}

kvc_client *ctl_connect(const struct ctl *ctl)
{
    kvc_options options = {.socket = ctl->socket,
                           .name = "kvcachectl",
                           .role = KVC_ROLE_OPERATOR,
                           .connect_ms = 5000,
                           .lookup_ms = 5000};
    kvc_client *client;
    kvc_status status = kvc_connect(&options, &client);
    if (status == KVC_OK)
        return client;
    const char *path = ctl->socket ? ctl->socket : getenv("KVCACHE_SOCKET");
    fprintf(stderr, "%s: cannot connect to %s: %s\n", ctl->program,
            path && *path ? path : "the daemon", kvc_text(status));
    return NULL;
}

int ctl_fail(const struct ctl *ctl, kvc_client *client, const char *what, kvc_status status)
{
    const char *detail = client ? kvc_error(client) : "";
    fprintf(stderr, "%s: %s: %s%s%s\n", ctl->program, what, kvc_text(status), *detail ? ": " : "",
            detail);
    return CTL_FAILED;
}

int ctl_usage(const struct ctl *ctl, const char *what, const char *value)
{
    fprintf(stderr, "%s: %s, not '%s'\n", ctl->program, what, value);
    return CTL_USAGE;
}

static void usage(FILE *to)
{
    fputs("usage: kvcachectl [--socket PATH] [--json] COMMAND [options]\n\n", to);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\nThe socket is --socket, else $KVCACHE_SOCKET, else /run/kvcached/kvcached.sock.\n"
          "Exit status: 0 done, 1 asked and failed, 2 not understood.\n",
          to);
}

static int dispatch(struct ctl *ctl, int argc, char **argv)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[0]) == 0) {
            optind = 0; /* glibc: start anew, with the command as argv[0] */
            opterr = 1;
            return commands[i].run(ctl, argc, argv);
        }
    }
    fprintf(stderr, "%s: no command '%s' (kvcachectl --help lists them)\n", ctl->program, argv[0]);
    return CTL_USAGE;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    struct ctl ctl = {.program = "kvcachectl"};
    int option;
    while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        switch (option) {
        case 's':
            ctl.socket = optarg;
            break;
        case 'j':
            ctl.json = true;
            break;
        case 'h':
            usage(stdout);
            return CTL_OK;
        case 'v':
            return dispatch(&ctl, 1, (char *[]){"version", NULL});
        default:
            return CTL_USAGE;
        }
    }
    if (optind == argc) {
        usage(stderr);
        return CTL_USAGE;
    }
    int result = dispatch(&ctl, argc - optind, argv + optind);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("kvcachectl: standard output");
        return CTL_FAILED;
    }
    return result;
}
