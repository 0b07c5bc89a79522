/*
 * kvcachectl config, log-level: the daemon's settings, and changing one.
 */
#include <stdio.h>
#include <string.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"

static const struct field fields[] = {{"", FIELD_ROWS, FIELD_APART, "config"}};
static const struct shape shape = {
    "an array of objects, or with set one object that has name and value", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .arguments = "[set NAME VALUE]",
    .max_arguments = 3,
    .json = &shape,
    .help = "Lists the settings: value, where it is from, and whether it changes now or with\n"
            "a restart; or changes one until the next reload."};

static int set(const struct ctl *ctl, kvc_client *client, const char *name, const char *value)
{
    kvc_status status = admin_config(client, name, value);

    if (status != KVC_OK)
        return ctl_fail(ctl, client, name, status);
    if (ctl->json)
        list_dump(json_pack("{s:s, s:s}", "name", name, "value", value));
    return CTL_OK;
}

int config_command(struct ctl *ctl, int argc, char **argv)
{
    kvc_client *client;
    int n, result;

    if (!option_parse(ctl, &table, argc, argv, NULL, &n, &result))
        return result;
    if (n > 0 && strcmp(argv[1], "set") != 0)
        return ctl_usage(ctl, "config takes set NAME VALUE", argv[1]);
    if (n > 0 && n != 3) {
        fprintf(stderr, "%s: config set needs NAME VALUE\n", ctl->program);
        return CTL_USAGE;
    }
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    if (n > 0)
        result = set(ctl, client, argv[2], argv[3]);
    else
        result = list_print(ctl, client, "config");
    kvc_close(client);
    return result;
}

static const struct field level_fields[] = {
    {"name", FIELD_TEXT, FIELD_APART, "log-level"},
    {"value", FIELD_TEXT, FIELD_APART, "the level as it is now"},
};
static const struct shape level_shape = {"an object", SHAPE_FIELDS(level_fields)};

static const struct option_table level_table = {
    .arguments = "[LEVEL]",
    .max_arguments = 1,
    .json = &level_shape,
    .help = "Says how much the daemon logs, or changes it until the next reload: error,\n"
            "warning, info or debug (which only debug builds have messages of)."};

static int show_level(const struct ctl *ctl, kvc_client *client)
{
    json_t *rows = json_array(), *row;
    kvc_status status = list_fetch(client, "config", rows);
    size_t i;

    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *value = json_string_value(json_object_get(row, "value"));

        if (!name || !value || strcmp(name, "log-level") != 0)
            continue;
        if (ctl->json)
            list_dump(json_pack("{s:s, s:s}", "name", name, "value", value));
        else
            printf("%s\n", value);
    }
    json_decref(rows);
    return status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, "log-level", status);
}

int log_level_command(struct ctl *ctl, int argc, char **argv)
{
    kvc_client *client;
    int n, result;

    if (!option_parse(ctl, &level_table, argc, argv, NULL, &n, &result))
        return result;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    result = n > 0 ? set(ctl, client, "log-level", argv[1]) : show_level(ctl, client);
    kvc_close(client);
    return result;
}
