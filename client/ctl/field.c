#include "client/ctl/field.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "client/admin.h"
#include "client/ctl/columns.h"
#include "proto/wrap.h"

#define PATH_MAX_BYTES 96
#define LINE_MAX_BYTES 512
#define HELP_COLUMN    44

static const char *const type_names[] = {
    [FIELD_TEXT] = "string",    [FIELD_BOOL] = "boolean",   [FIELD_UINT32] = "integer",
    [FIELD_UINT64] = "integer", [FIELD_SECONDS] = "number", [FIELD_MS] = "number",
    [FIELD_REAL] = "number",    [FIELD_ROWS] = "array",     [FIELD_NULLABLE] = "string or null",
};

/* Takes value. */
static void put_value(json_t *root, const char *path, json_t *value)
{
    const char *dot;

    while ((dot = strchr(path, '.'))) {
        char name[PATH_MAX_BYTES];
        json_t *inner;

        snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
        inner = json_object_get(root, name);
        if (!inner) {
            inner = json_object();
            json_object_set_new(root, name, inner);
        }
        root = inner;
        path = dot + 1;
    }
    json_object_set_new(root, path, value);
}

static bool is_unknown(const struct field *field, const char *at)
{
    return (field->type == FIELD_UINT64 || field->type == FIELD_SECONDS ||
            field->type == FIELD_MS) &&
           *(const uint64_t *)(const void *)at == ADMIN_UNKNOWN;
}

static json_t *value_of(const struct field *field, const char *at)
{
    if (is_unknown(field, at))
        return json_null();
    switch (field->type) {
    case FIELD_TEXT:
        return json_string(at);
    case FIELD_BOOL:
        return json_boolean(*(const bool *)at);
    case FIELD_UINT32:
        return json_integer(*(const uint32_t *)(const void *)at);
    case FIELD_UINT64:
        return json_integer((json_int_t) * (const uint64_t *)(const void *)at);
    case FIELD_SECONDS:
        return json_real((double)*(const uint64_t *)(const void *)at * 1e-6);
    case FIELD_MS:
        return json_real((double)*(const uint64_t *)(const void *)at * 1e-3);
    case FIELD_REAL:
        return json_real(*(const double *)(const void *)at);
    default:
        return NULL;
    }
}

void field_put(json_t *root, const struct shape *shape, const void *values)
{
    for (size_t i = 0; i < shape->n; i++) {
        const struct field *field = &shape->fields[i];

        if (field->offset != FIELD_APART)
            put_value(root, field->path, value_of(field, (const char *)values + field->offset));
    }
}

static void print_row(const char *path, const char *type, const char *help)
{
    char line[LINE_MAX_BYTES];

    snprintf(line, sizeof(line), "  %-24s %-15s  %s", path, type, help);
    wrap_line(stdout, line, HELP_COLUMN);
}

/* A list that is all there is has no name of its own. */
static void print_rows(const struct field *field)
{
    const struct columns *columns = columns_of(field->help);

    for (size_t i = 0; columns && i < columns->n; i++) {
        const struct column *column = &columns->columns[i];
        char path[PATH_MAX_BYTES];

        snprintf(path, sizeof(path), "%s%s%s", field->path, *field->path ? "[]." : "",
                 column->name);
        print_row(path, columns_json_type(column), column->help);
    }
}

void field_print_help(const char *command, const struct shape *shape)
{
    char line[LINE_MAX_BYTES];

    snprintf(line, sizeof(line), "kvcachectl %s --json prints %s:", command, shape->what);
    wrap_line(stdout, line, 0);
    for (size_t i = 0; i < shape->n; i++) {
        const struct field *field = &shape->fields[i];

        if (field->type == FIELD_ROWS)
            print_rows(field);
        else
            print_row(field->path, type_names[field->type], field->help);
    }
}
