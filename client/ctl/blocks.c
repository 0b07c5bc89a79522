/*
 * kvcachectl blocks: what is stored, block by block, some at a time.
 */
#include <stddef.h>
#include <stdio.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"
#include "client/ctl/target.h"

#define PAGE_ROWS 64u

struct options {
    struct target target;
    const char *prefix;
    uint32_t limit;
    uint64_t after;
};

#define FIELD(name) offsetof(struct options, name)
static const struct option_row rows[] = {
    {"namespace", OPTION_TEXT, FIELD(target.namespace_), "NAMESPACE",
     "only of this one: a digest, the start of one, or a name", 0, 0, NULL},
    {"prefix", OPTION_TEXT, FIELD(prefix), "HEX", "only keys that begin with these hex digits", 0,
     0, NULL},
    {"limit", OPTION_UINT32, FIELD(limit), "N", "at most so many [50]", 1, 1u << 20, NULL},
    {"after", OPTION_UINT64, FIELD(after), "CURSOR", "go on where an earlier call has ended", 0,
     UINT64_MAX, NULL},
};

static const struct field fields[] = {
    {"blocks", FIELD_ROWS, FIELD_APART, "blocks"},
    {"after", FIELD_UINT64, FIELD_APART, "what --after takes to go on"},
    {"more", FIELD_BOOL, FIELD_APART, "whether there may be others"},
};
static const struct shape shape = {"an object", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .help = "Lists blocks, published or being filled, in no order.\n"
            "One that stays meanwhile comes once; others may come twice or not at all.",
    .json = &shape,
    OPTION_ROWS(rows)};

static kvc_status fetch(kvc_client *client, const struct options *options, json_t *blocks,
                        struct admin_list *list)
{
    struct admin_list_query query = {
        .what = "blocks",
        .after = options->after,
        .namespace_digest = options->target.namespace_ ? options->target.digest : NULL,
        .key_prefix = options->prefix,
    };

    do {
        const size_t room = options->limit - json_array_size(blocks);
        kvc_status status;

        query.limit = room < PAGE_ROWS ? (uint32_t)room : PAGE_ROWS;
        status = list_fetch_page(client, &query, blocks, list);
        if (status != KVC_OK)
            return status;
        query.after = list->after;
    } while (list->more && json_array_size(blocks) < options->limit);
    return KVC_OK;
}

static void print(const struct ctl *ctl, json_t *blocks, const struct admin_list *list)
{
    if (ctl->json) {
        list_dump(json_pack("{s:O, s:I, s:b}", "blocks", blocks, "after", (json_int_t)list->after,
                            "more", list->more));
        return;
    }
    list_table("blocks", blocks, "");
    if (json_array_size(blocks) == 0)
        printf("no blocks\n");
    if (list->more)
        printf("there may be more: --after %llu\n", (unsigned long long)list->after);
}

int blocks_command(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {.limit = 50};
    struct admin_list list = {0};
    kvc_client *client;
    json_t *blocks;
    int n, result;
    kvc_status status;

    if (!option_parse(ctl, &table, argc, argv, &options, &n, &result))
        return result;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    blocks = json_array();
    if (options.target.namespace_)
        result = target_find_namespace(ctl, client, &options.target);
    if (options.target.namespace_ && result != CTL_OK)
        goto close;
    status = fetch(client, &options, blocks, &list);
    result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, argv[0], status);
    if (result == CTL_OK)
        print(ctl, blocks, &list);
close:
    json_decref(blocks);
    kvc_close(client);
    return result;
}
