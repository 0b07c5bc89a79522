/*
 * kvcachectl config: the daemon's settings, and changing one.
 */
#include <string.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"

static const struct option_table table = {
    .arguments = "[set NAME VALUE]",
    .max_arguments = 3,
    .help = "Lists the settings: value, where it is from, and whether it changes now or with a\n"
            "restart; or changes one until the next reload."};

int config_command(struct ctl *ctl, int argc, char **argv)
{
    int n, result;

    if (!option_parse(ctl, &table, argc, argv, NULL, &n, &result))
        return result;
    if (n > 0 && (n != 3 || strcmp(argv[1], "set") != 0))
        return ctl_usage(ctl, "config takes set NAME VALUE", argv[1]);
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    if (n > 0) {
        kvc_status status = admin_config(client, argv[2], argv[3]);
        result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, "config", status);
    } else {
        result = list_print(ctl, client, "config");
    }
    kvc_close(client);
    return result;
}
