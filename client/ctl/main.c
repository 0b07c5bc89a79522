#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/option.h"
#include "proto/spelling.h"

struct command {
    const char *name, *help;
    ctl_command *run;
};

static int version_command(struct ctl *ctl, int argc, char **argv);

static const struct command commands[] = {
    {"status", "tiers, sessions, leases and what is in flight", status_command},
    {"top", "the same, live, and who does it", top_command},
    {"ping", "measure a round trip to the daemon", ping_command},
    {"clients", "list connected sessions", clients_command},
    {"config", "list the settings; config set NAME VALUE changes one", config_command},
    {"layouts", "list the layouts of blocks, by part", layouts_command},
    {"leases", "list what is leased, and by whom", leases_command},
    {"blocks", "list blocks: of a namespace, by their keys", blocks_command},
    {"log-level", "say how much is logged, or change it", log_level_command},
    {"namespaces", "list the namespaces that were registered", namespaces_command},
    {"peers", "list other daemons that are asked, or ask", peers_command},
    {"extents", "list how the tiers' memory is divided", extents_command},
    {"events", "follow what becomes of blocks", events_command},
    {"flush", "drop everything, a namespace, or some keys", flush_command},
    {"pin", "keep blocks from being evicted for a time", pin_command},
    {"unpin", "end pins", unpin_command},
    {"drain", "begin nothing new, and wait for what is under way", drain_command},
    {"verify", "compare all that is stored with its checksums", verify_command},
    {"quota", "set what a namespace may have before others come first", quota_command},
    {"replay", "replay a trace through worker processes", replay_command},
    {"bench", "round trips beside a bare echo", bench_command},
    {"version", "print the version", version_command},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct field version_fields[] = {
    {"version", FIELD_TEXT, FIELD_APART, "of this program"}};
static const struct shape version_shape = {"an object", SHAPE_FIELDS(version_fields)};

static int version_command(struct ctl *ctl, int argc, char **argv)
{
    int exit_status;
    if (!ctl_parse(ctl, argc, argv, "Prints the version.", &version_shape, &exit_status))
        return exit_status;
    if (ctl->json)
        printf("{\"version\": \"%s\"}\n", kvc_version());
    else
        printf("kvcachectl %s\n", kvc_version());
    return CTL_OK;
}

bool ctl_parse(struct ctl *ctl, int argc, char **argv, const char *help, const struct shape *json,
               int *exit_status)
{
    const struct option_table table = {.help = help, .json = json};
    int none;

    return option_parse(ctl, &table, argc, argv, NULL, &none, exit_status);
}

/* What to look into, by what is wrong; NULL: nothing in particular. */
static const char *hint(kvc_status status)
{
    switch (status) {
    case KVC_E_DISCONNECTED:
        return "is kvcached running, and does --socket say where?";
    case KVC_E_DEADLINE:
        return "the daemon is there: is it stopped, or very busy?";
    case KVC_E_DENIED:
        return "the group kvcache connects; root, the daemon's own user and whom the setting allow "
               "names (kvcached.conf(5)) are operators";
    case KVC_E_STOPPING:
        return "the daemon ends, or is drained (kvcachectl drain --undo)";
    case KVC_E_UNSUPPORTED:
        return "is the daemon of the version of this program (kvcachectl status)?";
    default:
        return NULL;
    }
}

static void print_hint(const struct ctl *ctl, kvc_status status)
{
    if (hint(status))
        fprintf(stderr, "%s: hint: %s\n", ctl->program, hint(status));
}

kvc_client *ctl_connect(const struct ctl *ctl)
{
    kvc_options options = {.socket = ctl->socket,
                           .name = "kvcachectl",
                           .role = KVC_ROLE_OPERATOR,
                           .connect_ms = 5000,
                           .lookup_ms = 5000};
    kvc_client *client;
    char why[512];
    kvc_status status = kvc_connect_why(&options, &client, why, sizeof(why));
    if (status == KVC_OK)
        return client;
    fprintf(stderr, "%s: cannot connect to the daemon: %s\n", ctl->program, why);
    print_hint(ctl, status);
    return NULL;
}

/* What a request calls a thing, and what it is on a command line: "" says its name itself. */
static const struct {
    const char *field, *option;
} fields[] = {
    {"value: ", ""},
    {"key_prefix: ", "--prefix: "},
    {"after: ", "--after: "},
    {"gpu_bytes: ", "--gpu: "},
    {"host_bytes: ", "--host: "},
    {"leases: ", "--leases: "},
};

/* A value that only the daemon can judge. */
static bool fail_of_option(const struct ctl *ctl, const char *detail)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const size_t length = strlen(fields[i].field);

        if (strncmp(detail, fields[i].field, length) == 0) {
            fprintf(stderr, "%s: %s%s\n", ctl->program, fields[i].option, detail + length);
            return true;
        }
    }
    return false;
}

int ctl_fail(const struct ctl *ctl, kvc_client *client, const char *what, kvc_status status)
{
    const char *detail = client ? kvc_error(client) : "";

    if (status == KVC_E_INVALID && fail_of_option(ctl, detail))
        return CTL_FAILED;
    fprintf(stderr, "%s: %s: %s%s%s\n", ctl->program, what, kvc_text(status), *detail ? ": " : "",
            detail);
    print_hint(ctl, status);
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
        fprintf(to, "  %-11s %s\n", commands[i].name, commands[i].help);
    fputs("\nkvcachectl COMMAND --help lists the options of a command.\n"
          "The socket is --socket, else $KVCACHE_SOCKET, else /run/kvcached/kvcached.sock.\n"
          "Exit status: 0 done, 1 asked and failed, 2 not understood.\n",
          to);
}

static int dispatch(struct ctl *ctl, int argc, char **argv)
{
    const struct command *near = &commands[0];

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[0]) == 0)
            return commands[i].run(ctl, argc, argv);
        if (spelling_distance(argv[0], commands[i].name) < spelling_distance(argv[0], near->name))
            near = &commands[i];
    }
    fprintf(stderr, "%s: no command '%s'", ctl->program, argv[0]);
    if (spelling_is_near(argv[0], near->name))
        fprintf(stderr, "; did you mean %s?\n", near->name);
    else
        fputs(" (kvcachectl --help lists them)\n", stderr);
    return CTL_USAGE;
}

struct leading {
    bool help, version;
};

static const struct option_row leading_rows[] = {
    {"help", OPTION_FLAG, offsetof(struct leading, help), NULL, "", 0, 0, NULL},
    {"version", OPTION_FLAG, offsetof(struct leading, version), NULL, "", 0, 0, NULL},
};

int main(int argc, char **argv)
{
    struct ctl ctl = {.program = "kvcachectl"};
    struct leading leading = {false};
    int used, result = CTL_OK;

    if (!option_parse_leading(&ctl, leading_rows, sizeof(leading_rows) / sizeof(leading_rows[0]),
                              argc, argv, &leading, &used))
        return CTL_USAGE;
    if (leading.help) {
        usage(stdout);
    } else if (leading.version) {
        result = dispatch(&ctl, 1, (char *[]){"version", NULL});
    } else if (used == argc) {
        usage(stderr);
        return CTL_USAGE;
    } else {
        result = dispatch(&ctl, argc - used, argv + used);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("kvcachectl: standard output");
        return CTL_FAILED;
    }
    return result;
}
