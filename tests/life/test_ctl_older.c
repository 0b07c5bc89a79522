/*
 * kvcachectl with a daemon that is older than it: what that does not tell is unknown, and not 0.
 */
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/fakedaemon.h"

enum { KNOWN }; /* modes: the daemon says which fields it knows */

static Kvcache__TierStats tiers[2];

static void answer_stats(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__TierStats *pointers[2] = {&tiers[0], &tiers[1]};
    Kvcache__StatsReply reply = KVCACHE__STATS_REPLY__INIT;
    const bool known = fake->shared->mode[KNOWN];

    for (uint32_t t = 0; t < 2; t++) {
        tiers[t] = (Kvcache__TierStats)KVCACHE__TIER_STATS__INIT;
        tiers[t].tier = (Kvcache__Tier)t;
        tiers[t].bytes = FAKE_TIER_BYTES;
        tiers[t].known = known ? 10 : 0;
    }
    reply.version = "0.0.1";
    reply.device = "host";
    reply.boot_epoch = fake->shared->boot_epoch;
    reply.n_tiers = 2;
    reply.tiers = pointers;
    reply.lost_gpus = 1; /* what is sent is known, whatever is said of it */
    reply.known = known ? 61 : 0;
    fake_reply(fake, request, &reply.base);
}

/* It has one namespace, in a row of a few columns, and knows no other list. */
static void answer_list(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__List *list = fake_body(request, &kvcache__list__descriptor);
    char *columns[] = {"namespace", "tenant"}, *values[] = {"ab", "uid:0"};
    Kvcache__ListRow row = KVCACHE__LIST_ROW__INIT, *rows[] = {&row};
    Kvcache__ListReply reply = KVCACHE__LIST_REPLY__INIT;

    if (strcmp(list->what, "namespaces") != 0) {
        fake_error(fake, request, KVC_E_UNSUPPORTED, "what", "no such list");
        return;
    }
    reply.n_columns = row.n_values = 2;
    reply.columns = columns;
    row.values = values;
    reply.n_rows = 1;
    reply.rows = rows;
    fake_reply(fake, request, &reply.base);
}

static bool hook(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__DrainReply drain = KVCACHE__DRAIN_REPLY__INIT;

    switch (request->type) {
    case WIRE_STATS:
        answer_stats(fake, request);
        return true;
    case WIRE_LIST:
        answer_list(fake, request);
        return true;
    case WIRE_DRAIN:
        drain.draining = drain.drained = true;
        fake_reply(fake, request, &drain.base);
        return true;
    default:
        return false;
    }
}

static void is_null(const json_t *root, const char *name)
{
    ck_assert_msg(json_is_null(json_object_get(root, name)), "%s is not null", name);
}

START_TEST(status_of_an_older_daemon_shows_what_it_does_not_tell_as_unknown)
{
    struct fake *fake = fake_start(hook);
    json_t *root, *tier;

    ck_assert_msg(CTL_RUN("status", "--socket", fake->socket) == 0, "%s", ctl_err());
    ck_assert_ptr_nonnull(strstr(ctl_out(), "memory found: unknown"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "unknown blocks moving"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "pinned blocks unknown"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "1 GPUs have failed"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "unknown, an older daemon"));
    ck_assert_ptr_null(strstr(ctl_out(), "18446744073709551615"));
    ck_assert_int_eq(CTL_RUN("status", "--json", "--socket", fake->socket), 0);
    root = ctl_json();
    tier = json_object_get(json_object_get(root, "tiers"), "gpu");
    is_null(tier, "populated_bytes");
    ck_assert_int_eq(ctl_number(tier, "used_bytes"), 0);
    ck_assert_int_eq(ctl_number(root, "blocks"), 0);
    ck_assert_int_eq(ctl_number(root, "lost_gpus"), 1);
    is_null(root, "pinned_blocks");
    is_null(root, "moving_blocks");
    is_null(root, "stuck_fds");
    is_null(root, "peers");
    is_null(json_array_get(json_object_get(root, "namespaces"), 0), "gpu_bytes");
    json_decref(root);
    fake_stop(fake);
}
END_TEST

/* Of what a daemon says that it knows, what it does not send is 0. */
START_TEST(status_of_a_daemon_that_knows_the_fields_shows_them_as_0)
{
    struct fake *fake = fake_start(hook);
    json_t *root;

    fake->shared->mode[KNOWN] = 1;
    ck_assert_int_eq(CTL_RUN("status", "--json", "--socket", fake->socket), 0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "pinned_blocks"), 0);
    ck_assert_int_eq(ctl_number(root, "moving_blocks"), 0);
    ck_assert_int_eq(
        ctl_number(json_object_get(json_object_get(root, "tiers"), "host"), "populated_bytes"), 0);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("status", "--socket", fake->socket), 0);
    ck_assert_ptr_null(strstr(ctl_out(), "unknown"));
    fake_stop(fake);
}
END_TEST

START_TEST(top_drain_and_figures_of_an_older_daemon)
{
    struct fake *fake = fake_start(hook);
    kvc_figure figures[128];
    kvc_client *client;
    uint32_t n;
    json_t *root;

    ck_assert_int_eq(CTL_RUN("top", "--json", "--count", "1", "--socket", fake->socket), 0);
    root = ctl_json();
    is_null(root, "moving_blocks");
    ck_assert_int_eq(ctl_number(root, "filling_slots"), 0);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("drain", "--json", "--socket", fake->socket), 0);
    root = ctl_json();
    is_null(root, "fetches");
    ck_assert_int_eq(ctl_number(root, "leases"), 0);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("drain", "--socket", fake->socket), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "fetches from peers unknown"));
    client = fake_connect(fake, KVC_ROLE_OPERATOR);
    ck_assert_int_eq(kvc_figures(client, figures, 128, &n), KVC_OK);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_str_ne(figures[i].name, "tiers.gpu.populated_bytes");
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

CHECK_MAIN("ctl/older", CHECK_LIFE_S,
           status_of_an_older_daemon_shows_what_it_does_not_tell_as_unknown,
           status_of_a_daemon_that_knows_the_fields_shows_them_as_0,
           top_drain_and_figures_of_an_older_daemon)
