/*
 * kvcachectl config: the daemon's settings, and changing one.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"

int config_command(struct ctl *ctl, int argc, char **argv)
{
    static const char help[] =
        "config             lists the settings: value, where it is from, and\n"
        "                   whether it changes now or with a restart\n"
        "config set NAME VALUE   changes one until the next reload";
    int result;
    bool set = false;
    const char *name = NULL, *value = NULL;
    /* What follows `set` is taken out, so that options may stand anywhere. */
    for (int i = 1; i + 2 < argc && !set; i++) {
        if (strcmp(argv[i], "set") != 0)
            continue;
        set = true;
        name = argv[i + 1];
        value = argv[i + 2];
        memmove(&argv[i], &argv[i + 3], (size_t)(argc - i - 2) * sizeof(*argv));
        argc -= 3;
    }
    if (!ctl_parse(ctl, argc, argv, help, &result))
        return result;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    if (set) {
        kvc_status status = admin_config(client, name, value);
        result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, "config", status);
    } else {
        result = list_print(ctl, client, "config");
    }
    kvc_close(client);
    return result;
}
