/*
 * kvcachectl drain: nothing new begins, and what is under way comes to its end.
 */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"
#include "client/ctl/terminal.h"

#define LOOK_US  200000u
#define TEXT_MAX 256

struct options {
    bool undo, no_wait;
    uint32_t timeout; /* seconds; 0: as long as it takes */
};

#define FIELD(name) offsetof(struct options, name)
static const struct option_row rows[] = {
    {"undo", OPTION_FLAG, FIELD(undo), NULL, "let things begin again", 0, 0, NULL},
    {"no-wait", OPTION_FLAG, FIELD(no_wait), NULL, "do not wait until it is drained", 0, 0, NULL},
    {"timeout", OPTION_UINT32, FIELD(timeout), "SECONDS", "wait no longer [as long as it takes]", 1,
     UINT32_MAX, NULL},
};
#undef FIELD

#define FIELD(name, type, help)                                                                    \
    {                                                                                              \
#name, type, offsetof(struct admin_drain, name), help                                      \
    }
static const struct field fields[] = {
    FIELD(draining, FIELD_BOOL, "whether a drain is in force"),
    FIELD(drained, FIELD_BOOL, "and of the next five nothing is left"),
    FIELD(filling_slots, FIELD_UINT64, "of saves under way"),
    FIELD(open_loads, FIELD_UINT64, "under way"),
    FIELD(leases, FIELD_UINT64, "held"),
    FIELD(moving_blocks, FIELD_UINT64, "being copied between tiers"),
    FIELD(fetches, FIELD_UINT64, "from peers, under way"),
    FIELD(sessions, FIELD_UINT64, "connected, without operators"),
    FIELD(quarantined_slots, FIELD_UINT64, "that wait for proof that nobody writes to them"),
};
static const struct shape shape = {"an object", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .help = "Drains the daemon, before it is stopped or replaced: new sessions, leases and\n"
            "saves are refused, what is under way goes on, and leases end by their time.\n"
            "Peers find nothing here any more, are asked for nothing, and finish what they\n"
            "are fetching.\n"
            "Ends with 0 when nothing is left.\n"
            "The drain stays in force until it is undone or the daemon ends.",
    .json = &shape,
    OPTION_ROWS(rows)};

/* An older daemon is drained without them. */
static uint64_t fetches(const struct admin_drain *drain)
{
    return drain->fetches == ADMIN_UNKNOWN ? 0 : drain->fetches;
}

static uint64_t left(const struct admin_drain *drain)
{
    return drain->filling_slots + drain->open_loads + drain->leases + drain->moving_blocks +
           fetches(drain);
}

/* Only what is left, so that it fits beside the bar. */
static const char *describe(const struct admin_drain *drain, char text[TEXT_MAX])
{
    const struct {
        uint64_t n;
        const char *what;
    } kinds[] = {
        {drain->filling_slots, "slots filling"},
        {drain->open_loads, "loads"},
        {drain->leases, "leases"},
        {drain->moving_blocks, "blocks moving"},
        {fetches(drain), "fetches"},
    };
    size_t len = 0;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].n > 0)
            len += (size_t)snprintf(text + len, TEXT_MAX - len, "%s%llu %s", len ? ", " : "",
                                    (unsigned long long)kinds[i].n, kinds[i].what);
    if (len == 0)
        snprintf(text, TEXT_MAX, "requests that wait");
    return text;
}

static kvc_status wait_for_end(kvc_client *client, const struct options *options,
                               struct admin_drain *drain)
{
    const uint64_t looks = options->timeout * (1000000ull / LOOK_US);
    uint64_t most = left(drain);
    kvc_status status = KVC_OK;
    char text[TEXT_MAX];

    for (uint64_t i = 0; status == KVC_OK && !drain->drained && drain->draining; i++) {
        if (interrupt_came() || (options->timeout && i >= looks))
            break;
        most = left(drain) > most ? left(drain) : most;
        terminal_progress(most - left(drain), most, describe(drain, text));
        usleep(LOOK_US);
        status = admin_drain(client, ADMIN_LOOK, drain);
    }
    terminal_progress_end();
    return status;
}

static void print(const struct options *options, const struct admin_drain *drain)
{
    char text[TEXT_MAX];

    if (options->undo)
        printf("not draining\n");
    else if (drain->drained)
        printf("drained; %llu session%s connected%s\n", (unsigned long long)drain->sessions,
               drain->sessions == 1 ? "" : "s",
               drain->fetches == ADMIN_UNKNOWN ? ", fetches from peers unknown" : "");
    else if (!drain->draining)
        printf("somebody has undone the drain\n");
    else
        printf("draining; %s\n", describe(drain, text));
    if (drain->quarantined_slots)
        printf("slots in quarantine: %llu (kvcachectl status)\n",
               (unsigned long long)drain->quarantined_slots);
}

int drain_command(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    struct admin_drain drain = {0};
    kvc_client *client;
    kvc_status status;
    json_t *root;
    int n, result;

    if (!option_parse(ctl, &table, argc, argv, &options, &n, &result))
        return result;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    interrupt_catch();
    status = admin_drain(client, options.undo ? ADMIN_END : ADMIN_BEGIN, &drain);
    if (status == KVC_OK && !options.undo && !options.no_wait)
        status = wait_for_end(client, &options, &drain);
    if (status != KVC_OK) {
        result = ctl_fail(ctl, client, argv[0], status);
        goto close;
    }
    result = options.undo || options.no_wait || drain.drained ? CTL_OK : CTL_FAILED;
    if (ctl->json) {
        root = json_object();
        field_put(root, &shape, &drain);
        list_dump(root);
    } else {
        print(&options, &drain);
    }
close:
    kvc_close(client);
    return result;
}
