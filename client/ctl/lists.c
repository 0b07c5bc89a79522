/*
 * kvcachectl clients, namespaces, layouts, leases, peers, extents: lists without options of their
 * own.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"

#define ROWS(list)                                                                                 \
    static const struct field list##_fields[] = {{"", FIELD_ROWS, FIELD_APART, #list}};            \
    static const struct shape list##_shape = {"an array of objects", SHAPE_FIELDS(list##_fields)}

ROWS(clients);
ROWS(namespaces);
ROWS(layouts);
ROWS(leases);
ROWS(peers);
ROWS(extents);

static int run(struct ctl *ctl, int argc, char **argv, const char *help, const struct shape *json)
{
    kvc_client *client;
    int result;

    if (!ctl_parse(ctl, argc, argv, help, json, &result))
        return result;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    result = list_print(ctl, client, argv[0]);
    kvc_close(client);
    return result;
}

int clients_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv,
               "Lists sessions: who is connected, and who has ended and still owes.",
               &clients_shape);
}

int namespaces_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv,
               "Lists the namespaces that were registered, with what they use and may use.",
               &namespaces_shape);
}

int layouts_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv,
               "Lists the parts of namespaces with the layout of their blocks: one KV cache\n"
               "group of one shard each.",
               &layouts_shape);
}

int leases_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv, "Lists leases: who holds which length of a prefix, for how long.",
               &leases_shape);
}

int peers_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv,
               "Lists other daemons: how bytes come from them, why so, and how many.",
               &peers_shape);
}

int extents_command(struct ctl *ctl, int argc, char **argv)
{
    return run(ctl, argc, argv,
               "Lists how the memory of the tiers is divided: extents by tenant and slot size.",
               &extents_shape);
}
