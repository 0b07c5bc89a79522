/*
 * kvcachectl clients: who is connected.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"

int clients_command(struct ctl *ctl, int argc, char **argv)
{
    int result;
    if (!ctl_parse(ctl, argc, argv, "Lists connected sessions.", &result))
        return result;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    result = list_print(ctl, client, "clients");
    kvc_close(client);
    return result;
}
