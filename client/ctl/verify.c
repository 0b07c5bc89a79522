/*
 * kvcachectl verify: the checksums of all that is stored.
 */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/human.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"
#include "client/ctl/terminal.h"

#define LOOK_US 100000u

struct options {
    const char *rate;
    bool stop, no_wait;
};

#define FIELD(name) offsetof(struct options, name)
static const struct option_row rows[] = {
    {"rate", OPTION_TEXT, FIELD(rate), "SIZE", "bytes a second at most; 0: no limit [256M]", 0, 0,
     NULL},
    {"no-wait", OPTION_FLAG, FIELD(no_wait), NULL, "begin it and do not wait for its end", 0, 0,
     NULL},
    {"stop", OPTION_FLAG, FIELD(stop), NULL, "end the one that is under way", 0, 0, NULL},
};
#undef FIELD

#define FIELD(path, type, name, help)                                                              \
    {                                                                                              \
        path, type, offsetof(struct admin_verify, name), help                                      \
    }
static const struct field fields[] = {
    FIELD("running", FIELD_BOOL, running, "whether one is under way"),
    FIELD("permille", FIELD_UINT32, permille, "of what there is, that it has looked at"),
    FIELD("checked", FIELD_UINT64, checked, "copies of blocks; a block has one in each tier"),
    FIELD("bad", FIELD_UINT64, bad, "of those, that did not match; their blocks are dropped"),
    FIELD("unchecked", FIELD_UINT64, unchecked, "copies that were saved without a checksum"),
    FIELD("failed", FIELD_UINT64, failed, "copies that could not be read"),
    FIELD("bytes", FIELD_UINT64, bytes, "that were read"),
    FIELD("elapsed_s", FIELD_SECONDS, elapsed_us, "since it has begun"),
};
static const struct shape shape = {"an object", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .help = "Compares everything that is stored with its checksums, in the background.\n"
            "Blocks that do not match are dropped.\n"
            "Ends with 1 if there were any, or some could not be read.\n"
            "Interrupted, it ends the verification.",
    .json = &shape,
    OPTION_ROWS(rows)};

static void show_progress(const struct admin_verify *verify)
{
    char bytes[HUMAN_MAX], text[128];

    snprintf(text, sizeof(text), "%llu copies, %s, %llu bad", (unsigned long long)verify->checked,
             human_bytes((double)verify->bytes, bytes), (unsigned long long)verify->bad);
    terminal_progress(verify->permille, 1000, text);
}

static kvc_status wait_for_end(kvc_client *client, struct admin_verify *verify)
{
    kvc_status status = KVC_OK;

    while (status == KVC_OK && verify->running && !interrupt_came()) {
        show_progress(verify);
        usleep(LOOK_US);
        status = admin_verify(client, ADMIN_LOOK, 0, verify);
    }
    terminal_progress_end();
    if (status == KVC_OK && verify->running)
        status = admin_verify(client, ADMIN_END, 0, verify);
    return status;
}

/* One that somebody else has begun is as good. */
static kvc_status begin(const struct ctl *ctl, kvc_client *client, uint64_t bytes_per_s,
                        struct admin_verify *verify)
{
    kvc_status status = admin_verify(client, ADMIN_BEGIN, bytes_per_s, verify);

    if (status != KVC_E_BUSY)
        return status;
    fprintf(stderr, "%s: one is under way already; following it\n", ctl->program);
    return admin_verify(client, ADMIN_LOOK, 0, verify);
}

static void print(const struct ctl *ctl, const struct admin_verify *verify)
{
    char bytes[HUMAN_MAX], age[HUMAN_MAX];
    json_t *root;

    if (ctl->json) {
        root = json_object();
        field_put(root, &shape, verify);
        list_dump(root);
        return;
    }
    printf("%s %llu copies, %s in %s: %s%llu bad%s",
           verify->running           ? "verifying;"
           : verify->permille < 1000 ? "stopped after"
                                     : "verified",
           (unsigned long long)verify->checked, human_bytes((double)verify->bytes, bytes),
           human_age(verify->elapsed_us, age), terminal_paint(verify->bad ? PAINT_BAD : PAINT_GOOD),
           (unsigned long long)verify->bad, terminal_paint(PAINT_NONE));
    if (verify->unchecked)
        printf(", %llu without a checksum", (unsigned long long)verify->unchecked);
    if (verify->failed)
        printf(", %llu could not be read", (unsigned long long)verify->failed);
    putchar('\n');
}

int verify_command(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {.rate = "256M"};
    struct admin_verify verify = {0};
    kvc_client *client;
    kvc_status status;
    int64_t rate;
    int n, result;

    if (!option_parse(ctl, &table, argc, argv, &options, &n, &result))
        return result;
    if (!human_parse_size(options.rate, &rate) || rate < 0)
        return ctl_usage(ctl, "--rate takes a size", options.rate);
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    interrupt_catch();
    if (options.stop)
        status = admin_verify(client, ADMIN_END, 0, &verify);
    else
        status = begin(ctl, client, (uint64_t)rate, &verify);
    if (status == KVC_OK && !options.stop && !options.no_wait)
        status = wait_for_end(client, &verify);
    if (status == KVC_OK) {
        print(ctl, &verify);
        result = verify.bad || verify.failed || interrupt_came() ? CTL_FAILED : CTL_OK;
    } else {
        result = ctl_fail(ctl, client, argv[0], status);
    }
    kvc_close(client);
    return result;
}
