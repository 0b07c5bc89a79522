/*
 * kvcachectl quota: what a namespace may have before others come first.
 */
#include <stddef.h>
#include <stdio.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/human.h"
#include "client/ctl/option.h"
#include "client/ctl/target.h"

struct options {
    struct target target;
    const char *gpu, *host, *leases;
    bool clear;
};

#define FIELD(name) offsetof(struct options, name)

static const struct option_row rows[] = {
    {"namespace", OPTION_TEXT, FIELD(target.namespace_), "NAMESPACE",
     "a digest, the start of one, or a name (see kvcachectl namespaces)", 0, 0, NULL},
    {"gpu", OPTION_TEXT, FIELD(gpu), "SIZE", "bytes of the gpu tier; K, M, G, T are powers of 1024",
     0, 0, NULL},
    {"host", OPTION_TEXT, FIELD(host), "SIZE", "bytes of the host tier", 0, 0, NULL},
    {"leases", OPTION_TEXT, FIELD(leases), "N", "blocks that leases hold at once", 0, 0, NULL},
    {"clear", OPTION_FLAG, FIELD(clear), NULL,
     "what is not given is as the daemon's configuration says", 0, 0, NULL},
};

static const struct field fields[] = {
    {"namespaces", FIELD_UINT32, FIELD_APART, "for how many it was set: one a tenant"}};
static const struct shape shape = {"an object", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .json = &shape,
    .help = "Sets what a namespace may have before others come first.",
    OPTION_ROWS(rows)};

static bool read_amount(const struct ctl *ctl, const char *text, const char *what,
                        struct admin_amount *amount)
{
    if (!text)
        return true;
    amount->given = true;
    if (human_parse_size(text, &amount->value))
        return true;
    ctl_usage(ctl, what, text);
    return false;
}

static bool parse(struct ctl *ctl, int argc, char **argv, struct options *options,
                  struct admin_quota *quota, int *exit_status)
{
    int n;

    if (!option_parse(ctl, &table, argc, argv, options, &n, exit_status))
        return false;
    *exit_status = CTL_USAGE;
    if (!options->target.namespace_) {
        fprintf(stderr, "%s: %s needs --namespace\n", ctl->program, argv[0]);
        return false;
    }
    if (!options->gpu && !options->host && !options->leases && !options->clear) {
        fprintf(stderr, "%s: %s needs --gpu, --host, --leases or --clear\n", ctl->program, argv[0]);
        return false;
    }
    return read_amount(ctl, options->gpu, "--gpu takes a size", &quota->gpu_bytes) &&
           read_amount(ctl, options->host, "--host takes a size", &quota->host_bytes) &&
           read_amount(ctl, options->leases, "--leases takes a number", &quota->leases);
}

int quota_command(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    struct admin_quota quota = {0};
    kvc_client *client;
    uint32_t n = 0;
    int result;
    kvc_status status;

    if (!parse(ctl, argc, argv, &options, &quota, &result))
        return result;
    quota.clear = options.clear;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    result = target_find_namespace(ctl, client, &options.target);
    if (result != CTL_OK)
        goto close;
    status = admin_quota(client, options.target.digest, &quota, &n);
    result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, argv[0], status);
    if (result == CTL_OK && ctl->json)
        printf("{\"namespaces\": %u}\n", n);
    else if (result == CTL_OK)
        printf("quota set for %u namespace%s\n", n, n == 1 ? "" : "s");
close:
    kvc_close(client);
    return result;
}
