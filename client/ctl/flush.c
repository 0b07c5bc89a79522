/*
 * kvcachectl flush, pin, unpin, namespaces: blocks by name.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"
#include "client/ctl/target.h"

struct options {
    struct target target;
    bool all;
    uint32_t seconds; /* 0: the daemon's default */
};

static void usage(const char *command)
{
    static const char keys[] =
        "NAMESPACE is a digest, the start of one, or a name (see kvcachectl namespaces).\n"
        "KEY is 32 hex digits; --keys FILE reads them from a file (-: standard input).";

    if (*command == 'f')
        printf("usage: kvcachectl flush --all | --namespace NAMESPACE [--keys FILE] [KEY...]\n"
               "Drops everything, all of a namespace, or the blocks of some keys.\n%s\n",
               keys);
    else if (*command == 'p')
        printf("usage: kvcachectl pin --namespace NAMESPACE [--seconds N] [--keys FILE] [KEY...]\n"
               "Keeps blocks from being evicted for a time (%u s, at most %u).\n%s\n",
               KVC_PIN_SECONDS_DEFAULT, KVC_PIN_SECONDS_MAX, keys);
    else
        printf("usage: kvcachectl unpin --namespace NAMESPACE [--keys FILE] [KEY...]\n"
               "Ends pins, without keys all of the namespace.\n%s\n",
               keys);
}

static bool read_seconds(const char *text, uint32_t *seconds)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value == 0 || value > KVC_PIN_SECONDS_MAX)
        return false;
    *seconds = (uint32_t)value;
    return true;
}

/* false: end with *exit_status. */
static bool parse(struct ctl *ctl, int argc, char **argv, struct options *options, int *exit_status)
{
    static const struct option known[] = {{"socket", required_argument, NULL, 's'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"all", no_argument, NULL, 'a'},
                                          {"namespace", required_argument, NULL, 'n'},
                                          {"keys", required_argument, NULL, 'k'},
                                          {"seconds", required_argument, NULL, 't'},
                                          {NULL, 0, NULL, 0}};
    int option;

    *exit_status = CTL_USAGE;
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (option) {
        case 's':
            ctl->socket = optarg;
            break;
        case 'j':
            ctl->json = true;
            break;
        case 'a':
            options->all = true;
            break;
        case 'n':
            options->target.namespace_ = optarg;
            break;
        case 'k':
            options->target.keys_file = optarg;
            break;
        case 't':
            if (!read_seconds(optarg, &options->seconds)) {
                ctl_usage(ctl, "a pin lasts 1 to 604800 seconds", optarg);
                return false;
            }
            break;
        case 'h':
            usage(argv[0]);
            *exit_status = CTL_OK;
            return false;
        default:
            return false;
        }
    }
    if (options->all == (options->target.namespace_ != NULL) || (options->all && *argv[0] != 'f')) {
        fprintf(stderr, "%s: %s needs %s--namespace\n", ctl->program, argv[0],
                *argv[0] == 'f' ? "--all or " : "");
        return false;
    }
    *exit_status = target_read_keys(ctl, &options->target, argc - optind, argv + optind);
    if (*exit_status == CTL_OK && options->all && options->target.keys)
        *exit_status = ctl_usage(ctl, "--all takes no keys", argv[optind - 1]);
    return *exit_status == CTL_OK;
}

/* Runs one of the three on a connection of its own; *n: blocks that were touched. */
typedef kvc_status action(kvc_client *client, const struct options *options, uint64_t *n);

static int run(struct ctl *ctl, int argc, char **argv, const char *done, action *act)
{
    struct options options = {0};
    kvc_client *client = NULL;
    uint64_t n = 0;
    int result;
    kvc_status status;

    if (!parse(ctl, argc, argv, &options, &result))
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
        printf("%s %llu blocks\n", done, (unsigned long long)n);
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
    return run(ctl, argc, argv, "flushed", flush);
}

int pin_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv, "pinned", pin);
}

int unpin_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv, "unpinned", unpin);
}

int namespaces_command(struct ctl *ctl, int argc, char **argv)
{
    int result;
    if (!ctl_parse(ctl, argc, argv, "Lists the namespaces that were registered.", &result))
        return result;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    result = list_print(ctl, client, "namespaces");
    kvc_close(client);
    return result;
}
