#include "client/ctl/stats.h"

bool stats_fetch(const struct ctl *ctl, struct admin_stats *stats)
{
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return false;
    kvc_status status = admin_stats(client, stats);
    if (status != KVC_OK)
        ctl_fail(ctl, client, "statistics", status);
    kvc_close(client);
    return status == KVC_OK;
}
