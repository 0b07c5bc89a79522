/*
 * kvcachectl flush, pin, unpin: blocks by name.
 */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/option.h"
#include "client/ctl/target.h"

struct options {
    struct target target;
    bool all;
    uint32_t seconds; /* 0: the daemon's default */
};

#define FIELD(name) offsetof(struct options, name)
#define NAMESPACE_ROW                                                                              \
    {                                                                                              \
        "namespace", OPTION_TEXT, FIELD(target.namespace_), "NAMESPACE",                           \
            "a digest, the start of one, or a name (see kvcachectl namespaces)", 0, 0, NULL        \
    }
#define KEYS_ROW                                                                                   \
    {                                                                                              \
        "keys", OPTION_TEXT, FIELD(target.keys_file), "FILE",                                      \
            "reads keys, each 32 hex digits, from a file (-: standard input)", 0, 0, NULL          \
    }

static const struct option_row flush_rows[] = {
    {"all", OPTION_FLAG, FIELD(all), NULL, "everything", 0, 0, NULL},
    NAMESPACE_ROW,
    KEYS_ROW,
};

static const struct option_row pin_rows[] = {
    NAMESPACE_ROW,
    KEYS_ROW,
    {"seconds", OPTION_UINT32, FIELD(seconds), "N", "how long [3600]", 1, KVC_PIN_SECONDS_MAX,
     NULL},
};

static const struct option_row unpin_rows[] = {NAMESPACE_ROW, KEYS_ROW};

static const struct field flush_fields[] = {
    {"flushed", FIELD_UINT64, FIELD_APART, "blocks that were dropped"}};
static const struct shape flush_shape = {"an object", SHAPE_FIELDS(flush_fields)};
static const struct option_table flush_table = {
    .json = &flush_shape,

    .arguments = "[KEY...]",
    .max_arguments = INT_MAX,
    .help = "Drops everything, all of a namespace, or the blocks of some keys.",
    OPTION_ROWS(flush_rows)};

static const struct field pin_fields[] = {
    {"pinned", FIELD_UINT64, FIELD_APART, "blocks that are pinned now"}};
static const struct shape pin_shape = {"an object", SHAPE_FIELDS(pin_fields)};
static const struct option_table pin_table = {
    .json = &pin_shape,

    .arguments = "[KEY...]",
    .max_arguments = INT_MAX,
    .help = "Keeps blocks of a namespace from being evicted for a time.\n"
            "Ends with 1 if none of the keys is stored.",
    OPTION_ROWS(pin_rows)};

static const struct field unpin_fields[] = {
    {"unpinned", FIELD_UINT64, FIELD_APART, "blocks that are not any more"}};
static const struct shape unpin_shape = {"an object", SHAPE_FIELDS(unpin_fields)};
static const struct option_table unpin_table = {.json = &unpin_shape,
                                                .arguments = "[KEY...]",
                                                .max_arguments = INT_MAX,
                                                .help =
                                                    "Ends pins, without keys all of the namespace.",
                                                OPTION_ROWS(unpin_rows)};

/* false: end with *exit_status. */
static bool parse(struct ctl *ctl, const struct option_table *table, int argc, char **argv,
                  struct options *options, int *exit_status)
{
    int n;

    if (!option_parse(ctl, table, argc, argv, options, &n, exit_status))
        return false;
    *exit_status = CTL_USAGE;
    if (options->all == (options->target.namespace_ != NULL)) {
        fprintf(stderr, "%s: %s needs %s--namespace%s\n", ctl->program, argv[0],
                table == &flush_table ? "--all or " : "", options->all ? ", not both" : "");
        return false;
    }
    *exit_status = target_read_keys(ctl, &options->target, n, argv + 1);
    if (*exit_status == CTL_OK && table == &pin_table && !options->target.keys) {
        fprintf(stderr, "%s: pin needs keys: KEY... or --keys FILE\n", ctl->program);
        *exit_status = CTL_USAGE;
    }
    if (*exit_status == CTL_OK && options->all && options->target.keys)
        *exit_status = ctl_usage(ctl, "--all takes no keys", argv[1] ? argv[1] : "--keys");
    return *exit_status == CTL_OK;
}

/* Runs one of the three on a connection of its own; *n: blocks that were touched. */
typedef kvc_status action(kvc_client *client, const struct options *options, uint64_t *n);

static int run(struct ctl *ctl, const struct option_table *table, int argc, char **argv,
               const char *done, action *act)
{
    struct options options = {0};
    kvc_client *client = NULL;
    uint64_t n = 0;
    int result;
    kvc_status status;

    if (!parse(ctl, table, argc, argv, &options, &result))
        goto free_target;
    result = CTL_FAILED;
    client = ctl_connect(ctl);
    if (!client)
        goto free_target;
    if (!options.all)
        result = target_find_namespace(ctl, client, &options.target);
    if (!options.all && result != CTL_OK)
        goto close;
    status = act(client, &options, &n);
    result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, argv[0], status);
    if (result == CTL_OK && ctl->json)
        printf("{\"%s\": %llu}\n", done, (unsigned long long)n);
    else if (result == CTL_OK)
        printf("%s %llu block%s\n", done, (unsigned long long)n, n == 1 ? "" : "s");
    if (result == CTL_OK && table == &pin_table && n == 0) {
        fprintf(stderr, "%s: pin: none of these keys is stored (kvcachectl blocks)\n",
                ctl->program);
        result = CTL_FAILED;
    }
close:
    kvc_close(client);
free_target:
    target_free(&options.target);
    return result;
}

static kvc_status flush(kvc_client *client, const struct options *options, uint64_t *n)
{
    const struct target *target = &options->target;

    return admin_flush(client, options->all ? NULL : target->digest, target->keys, target->n_keys,
                       n);
}

static kvc_status pin(kvc_client *client, const struct options *options, uint64_t *n)
{
    const struct target *target = &options->target;
    uint32_t count = 0;
    kvc_status status =
        admin_pin(client, target->digest, target->keys, target->n_keys, options->seconds, &count);

    *n = count;
    return status;
}

static kvc_status unpin(kvc_client *client, const struct options *options, uint64_t *n)
{
    const struct target *target = &options->target;
    uint32_t count = 0;
    kvc_status status = admin_unpin(client, target->digest, target->keys, target->n_keys, &count);

    *n = count;
    return status;
}

int flush_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, &flush_table, argc, argv, "flushed", flush);
}

int pin_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, &pin_table, argc, argv, "pinned", pin);
}

int unpin_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, &unpin_table, argc, argv, "unpinned", unpin);
}
