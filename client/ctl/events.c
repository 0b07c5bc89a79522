/*
 * kvcachectl events: follows what becomes of blocks, also over restarts of the daemon.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/option.h"
#include "client/ctl/target.h"

#define WAIT_MS  10000u
#define RETRY_US 200000u

struct options {
    struct target target;
    uint64_t after, count;
    bool no_wait;
};

#define FIELD(name) offsetof(struct options, name)

static const struct option_row rows[] = {
    {"namespace", OPTION_TEXT, FIELD(target.namespace_), "NAMESPACE",
     "a digest, the start of one, or a name (see kvcachectl namespaces)", 0, 0, NULL},
    {"after", OPTION_UINT64, FIELD(after), "N",
     "begin behind this sequence number; 0: with the oldest that the daemon keeps [what happens "
     "now]",
     0, UINT64_MAX - 1, NULL},
    {"count", OPTION_UINT64, FIELD(count), "N", "end after so many events", 1, UINT64_MAX, NULL},
    {"no-wait", OPTION_FLAG, FIELD(no_wait), NULL, "end when all that has happened is told", 0, 0,
     NULL},
};

static const struct field fields[] = {
    {"type", FIELD_TEXT, FIELD_APART,
     "BlockStored, BlockRemoved, AllBlocksCleared, EventsLost or DaemonRestarted"},
    {"block_hashes[]", FIELD_TEXT, FIELD_APART, "only of a block: its key"},
    {"parent_block_hash", FIELD_NULLABLE, FIELD_APART, "only of BlockStored"},
    {"block_size", FIELD_UINT32, FIELD_APART, "only of BlockStored: tokens"},
    {"lora_id", FIELD_NULLABLE, FIELD_APART, "only of BlockStored"},
    {"medium", FIELD_TEXT, FIELD_APART, "only of a block: GPU or CPU"},
    {"sequence", FIELD_UINT64, FIELD_APART, "only of the first three types: one more each time"},
    {"boot_epoch", FIELD_UINT64, FIELD_APART, "of the daemon: sequences of another one are new"},
    {"namespace", FIELD_TEXT, FIELD_APART, "only of the first three: its digest"},
    {"name", FIELD_TEXT, FIELD_APART, "only of the first three: of the namespace"},
    {"tenant", FIELD_TEXT, FIELD_APART, "only of the first three: whose it is"},
    {"part", FIELD_UINT32, FIELD_APART, "only of the first three: see kvcachectl layouts"},
    {"lost", FIELD_UINT64, FIELD_APART, "only of EventsLost: how many"},
};
static const struct shape shape = {"objects, one a line", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .json = &shape,
    .help = "Follows what becomes of blocks, by the names of vLLM's KV events.\n"
            "Events that the daemon no longer has, and its restarts, are lines of their own.",
    OPTION_ROWS(rows)};

/* How far it has come. The first request does not wait: from its answer on nothing is missed. */
struct follower {
    const struct ctl *ctl;
    const struct options *options;
    struct admin_watch watch;
    uint64_t told;
};

static const char *const media[ADMIN_TIERS] = {"GPU", "CPU"};

static const char *medium_of(const struct admin_event *event)
{
    return event->tier < ADMIN_TIERS ? media[event->tier] : "other";
}

static const char *name_of(const struct admin_event *event)
{
    switch (event->type) {
    case ADMIN_STORED:
        return "BlockStored";
    case ADMIN_REMOVED:
        return "BlockRemoved";
    case ADMIN_CLEARED:
        return "AllBlocksCleared";
    default:
        return "Unknown";
    }
}

static const char *hex(const uint8_t *bytes, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

static void print_object(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(object);
}

static json_t *json_key(const uint8_t *key)
{
    char text[2 * KVC_KEY_BYTES + 1];

    return key ? json_string(hex(key, KVC_KEY_BYTES, text)) : json_null();
}

/* Fields as in vLLM, then what it has no word for. There are no tokens: the daemon has none. */
static void print_json(const struct admin_event *event, uint64_t boot_epoch)
{
    json_t *object = json_pack("{s:s}", "type", name_of(event)), *keys;
    char digest[2 * KVC_NAMESPACE_BYTES + 1];

    if (event->key) {
        keys = json_array();
        json_array_append_new(keys, json_key(event->key));
        json_object_set_new(object, "block_hashes", keys);
    }
    if (event->type == ADMIN_STORED) {
        json_object_set_new(object, "parent_block_hash", json_key(event->parent));
        json_object_set_new(object, "block_size", json_integer(event->part->block_tokens));
        json_object_set_new(object, "lora_id", json_null());
    }
    if (event->key)
        json_object_set_new(object, "medium", json_string(medium_of(event)));
    json_object_set_new(object, "sequence", json_integer((json_int_t)event->sequence));
    json_object_set_new(object, "boot_epoch", json_integer((json_int_t)boot_epoch));
    json_object_set_new(
        object, "namespace",
        json_string(hex(event->part->namespace_digest, KVC_NAMESPACE_BYTES, digest)));
    json_object_set_new(object, "name", json_string(event->part->namespace_name));
    json_object_set_new(object, "tenant", json_string(event->part->tenant));
    json_object_set_new(object, "part", json_integer(event->part->part));
    print_object(object);
}

static void print_line(const struct admin_event *event)
{
    char key[2 * KVC_KEY_BYTES + 1] = "-", digest[2 * KVC_NAMESPACE_BYTES + 1];
    const char *name = event->part->namespace_name;

    if (event->key)
        hex(event->key, KVC_KEY_BYTES, key);
    hex(event->part->namespace_digest, KVC_NAMESPACE_BYTES, digest);
    printf("%10" PRIu64 "  %-16s  %-3s  %-32s  %.20s\n", event->sequence, name_of(event),
           event->key ? medium_of(event) : "-", key, *name ? name : digest);
}

static void print_lost(const struct follower *f, const struct admin_watch_reply *reply)
{
    if (f->ctl->json)
        print_object(json_pack("{s:s, s:I, s:I}", "type", "EventsLost", "lost",
                               (json_int_t)reply->lost, "boot_epoch",
                               (json_int_t)reply->boot_epoch));
    else
        printf("%10s  %" PRIu64 " events were lost: this reader was too late\n", "-", reply->lost);
}

static void print_restart(const struct follower *f, uint64_t boot_epoch)
{
    if (f->ctl->json)
        print_object(json_pack("{s:s, s:I}", "type", "DaemonRestarted", "boot_epoch",
                               (json_int_t)boot_epoch));
    else
        printf("%10s  the daemon was started anew: boot epoch %" PRIu64 "\n", "-", boot_epoch);
}

static bool is_over(const struct follower *f)
{
    return f->options->count > 0 && f->told >= f->options->count;
}

static void tell(struct follower *f, const struct admin_watch_reply *reply)
{
    if (f->watch.boot_epoch != 0 && f->watch.boot_epoch != reply->boot_epoch)
        print_restart(f, reply->boot_epoch);
    if (reply->lost > 0)
        print_lost(f, reply);
    for (size_t i = 0; i < reply->n && !is_over(f); i++, f->told++) {
        if (f->ctl->json)
            print_json(&reply->events[i], reply->boot_epoch);
        else
            print_line(&reply->events[i]);
    }
    fflush(stdout);
    f->watch.boot_epoch = reply->boot_epoch;
    f->watch.after = reply->after;
    f->watch.latest = false;
    f->watch.wait_ms = f->options->no_wait ? 0 : WAIT_MS;
}

/* Until there is one again. */
static kvc_client *connect_again(const struct follower *f)
{
    kvc_options options = {.socket = f->ctl->socket,
                           .name = "kvcachectl",
                           .role = KVC_ROLE_OPERATOR,
                           .connect_ms = 5000,
                           .lookup_ms = 5000};
    kvc_client *client;

    fprintf(stderr, "%s: the connection is lost; waiting for the daemon\n", f->ctl->program);
    while (kvc_connect(&options, &client) != KVC_OK)
        usleep(RETRY_US);
    return client;
}

static bool is_lost(kvc_status status)
{
    return status == KVC_E_DISCONNECTED || status == KVC_E_STOPPING;
}

static int follow(struct follower *f, kvc_client **client)
{
    struct admin_watch_reply reply = {.more = true};

    while (!is_over(f) && (!f->options->no_wait || reply.more)) {
        kvc_status status = admin_watch(*client, &f->watch, &reply);

        if (is_lost(status) && !f->options->no_wait) {
            kvc_close(*client);
            *client = connect_again(f);
            continue;
        }
        if (status != KVC_OK)
            return ctl_fail(f->ctl, *client, "events", status);
        tell(f, &reply);
        if (ferror(stdout))
            return CTL_FAILED;
    }
    return CTL_OK;
}

int events_command(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {.after = UINT64_MAX};
    struct follower f = {.ctl = ctl, .options = &options};
    kvc_client *client;
    int result, n;

    if (!option_parse(ctl, &table, argc, argv, &options, &n, &result))
        return result;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    if (options.target.namespace_) {
        result = target_find_namespace(ctl, client, &options.target);
        if (result != CTL_OK)
            goto close;
        f.watch.namespace_digest = options.target.digest;
    }
    f.watch.latest = options.after == UINT64_MAX;
    f.watch.after = f.watch.latest ? 0 : options.after;
    result = follow(&f, &client);
close:
    kvc_close(client);
    return result;
}
