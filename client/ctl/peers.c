/*
 * kvcachectl peers: the daemons that this one asks, and those that ask it.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"

int peers_command(struct ctl *ctl, int argc, char **argv)
{
    int result;
    if (!ctl_parse(ctl, argc, argv,
                   "Lists other daemons: how bytes come from them, why so, and how many.", &result))
        return result;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    result = list_print(ctl, client, "peers");
    kvc_close(client);
    return result;
}
