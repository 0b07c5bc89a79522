/*
 * kvcachectl status: the daemon on one screen, or as JSON.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/figures.h"
#include "client/ctl/human.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"
#include "client/ctl/terminal.h"

#define BAR_CELLS 16

/* Lists that status shows besides figures. */
enum { QUARANTINE, NAMESPACES, EXTENTS, PEERS, N_LISTS };
static const char *const list_names[N_LISTS] = {"quarantine", "namespaces", "extents", "peers"};

struct snapshot {
    struct admin_stats stats;
    json_t *lists[N_LISTS];
};

static const struct option_table table = {.help = "Shows tiers, hits, sessions, what is in flight "
                                                  "and what is wrong.",
                                          .json = &figures_shape};

static void print_json(const struct snapshot *s)
{
    json_t *root = json_object();

    figures_put(root, &s->stats);
    for (int i = 0; i < N_LISTS; i++)
        json_object_set(root, list_names[i], s->lists[i]);
    list_dump(root);
}

static void print_head(const struct admin_stats *stats)
{
    char age[HUMAN_MAX];

    printf("%skvcached %s%s, device %s, up %s, processor %.1f s\n", terminal_paint(PAINT_HEAD),
           stats->version, terminal_paint(PAINT_NONE), stats->device,
           human_age(stats->uptime_us, age), (double)stats->cpu_us * 1e-6);
    if (stats->draining)
        printf("%sdraining%s: nothing new begins (kvcachectl drain --undo ends it)\n",
               terminal_paint(PAINT_WARN), terminal_paint(PAINT_NONE));
}

static void print_tier(const char *name, const struct admin_tier *tier)
{
    char bar[HUMAN_MAX], share[HUMAN_MAX], used[HUMAN_MAX], bytes[HUMAN_MAX];

    printf("  %-5s [%s%s%s] %7s  %10s of %10s, %llu slots", name, terminal_paint(PAINT_GOOD),
           human_bar(tier->used_bytes, tier->bytes, BAR_CELLS, bar), terminal_paint(PAINT_NONE),
           human_share(tier->used_bytes, tier->bytes, share),
           human_bytes((double)tier->used_bytes, used), human_bytes((double)tier->bytes, bytes),
           (unsigned long long)tier->used_slots);
    if (tier->populated_bytes == ADMIN_UNKNOWN)
        printf("\n        memory found: unknown");
    else if (tier->populated_bytes < tier->bytes)
        printf("\n        memory found for %s yet",
               human_share(tier->populated_bytes, tier->bytes, share));
    putchar('\n');
}

/* A line of shares of what was asked for: in each window, and since the start. */
static void print_hits(const char *name, const struct admin_stats *stats, const uint64_t *found,
                       const uint64_t *asked, enum paint paint)
{
    char text[HUMAN_MAX];

    printf("  %-10s", name);
    for (uint32_t i = 0; i <= stats->n_windows; i++)
        printf(" %s%9s%s", terminal_paint(paint), human_share(found[i], asked[i], text),
               terminal_paint(PAINT_NONE));
    printf(" %14llu\n", (unsigned long long)found[stats->n_windows]);
}

static void print_ratios(const struct admin_stats *stats)
{
    const struct admin_window all = {.gpu = stats->tiers[0].hits,
                                     .host = stats->tiers[1].hits,
                                     .peer = stats->hits_peer,
                                     .misses = stats->misses};
    uint64_t asked[ADMIN_WINDOWS + 1], gpu[ADMIN_WINDOWS + 1], host[ADMIN_WINDOWS + 1];
    uint64_t peer[ADMIN_WINDOWS + 1], misses[ADMIN_WINDOWS + 1];
    char age[HUMAN_MAX];

    printf("%s  blocks    ", terminal_paint(PAINT_HEAD));
    for (uint32_t i = 0; i <= stats->n_windows; i++) {
        const struct admin_window *w = i < stats->n_windows ? &stats->windows[i] : &all;

        gpu[i] = w->gpu;
        host[i] = w->host;
        peer[i] = w->peer;
        misses[i] = w->misses;
        asked[i] = w->gpu + w->host + w->misses;
        snprintf(age, sizeof(age), w == &all ? "all" : "%u m", w->seconds / 60);
        printf(" %9s", age);
    }
    printf("         number%s\n", terminal_paint(PAINT_NONE));
    print_hits("hit gpu", stats, gpu, asked, PAINT_GOOD);
    print_hits("hit host", stats, host, asked, PAINT_GOOD);
    print_hits("missed", stats, misses, asked, PAINT_GREY);
    if (stats->hits_peer)
        print_hits("from peers", stats, peer, asked, PAINT_NONE);
}

static bool is_any(uint64_t n)
{
    return n > 0 && n != ADMIN_UNKNOWN;
}

/* Of trouble, which is not shown where there is none. */
static bool is_unknown(const struct admin_stats *stats)
{
    return stats->hanging_gpus == ADMIN_UNKNOWN || stats->lost_gpus == ADMIN_UNKNOWN ||
           stats->stuck_fds == ADMIN_UNKNOWN || stats->left_open_fds == ADMIN_UNKNOWN ||
           stats->lost_extents == ADMIN_UNKNOWN || stats->waiting_extents == ADMIN_UNKNOWN ||
           stats->kept_extents == ADMIN_UNKNOWN;
}

static void print_activity(const struct admin_stats *stats)
{
    char age[HUMAN_MAX], saved[HUMAN_MAX], loaded[HUMAN_MAX], at_once[HUMAN_MAX];
    char moving[HUMAN_MAX], pinned[HUMAN_MAX];

    printf("  in flight  %llu slots filling, %llu loads, %s blocks moving; oldest %s%s%s\n",
           (unsigned long long)stats->filling_slots, (unsigned long long)stats->open_loads,
           human_number(stats->moving_blocks, moving),
           terminal_paint(stats->oldest_op_us > 1000000 ? PAINT_WARN : PAINT_NONE),
           stats->oldest_op_us ? human_age(stats->oldest_op_us, age) : "-",
           terminal_paint(PAINT_NONE));
    printf("  stored     blocks %llu, sessions %llu, leases %llu, pinned blocks %s\n",
           (unsigned long long)stats->blocks, (unsigned long long)stats->sessions,
           (unsigned long long)stats->leases, human_number(stats->pinned_blocks, pinned));
    printf(
        "  so far     saved %s, loaded %s, demoted %llu, promoted %llu,\n",
        human_bytes((double)(stats->tiers[0].bytes_saved + stats->tiers[1].bytes_saved), saved),
        human_bytes((double)(stats->tiers[0].bytes_loaded + stats->tiers[1].bytes_loaded), loaded),
        (unsigned long long)stats->demotions, (unsigned long long)stats->promotions);
    printf("             evicted %llu, skipped %llu blocks; room at once for %s of %llu\n",
           (unsigned long long)stats->evictions, (unsigned long long)stats->skipped_blocks,
           human_share(stats->admitted_at_once, stats->admitted_blocks, at_once),
           (unsigned long long)stats->admitted_blocks);
    if (is_any(stats->copy_thread_blocks))
        printf("  copies by the daemon take at most %llu thread blocks\n",
               (unsigned long long)stats->copy_thread_blocks);
}

/* What an operator should look into; nothing where there is nothing. */
static void print_trouble(const struct admin_stats *stats)
{
    char age[HUMAN_MAX];

    fputs(terminal_paint(PAINT_WARN), stdout);
    if (is_any(stats->hanging_gpus))
        printf("  the driver of %llu GPUs hangs, for %s; %llu calls wait\n",
               (unsigned long long)stats->hanging_gpus, human_age(stats->driver_call_us, age),
               (unsigned long long)stats->driver_calls);
    if (is_any(stats->lost_gpus))
        printf("  %llu GPUs have failed, and are out of use until kvcached starts again\n",
               (unsigned long long)stats->lost_gpus);
    if (is_any(stats->stuck_fds) || is_any(stats->left_open_fds))
        printf("  descriptors of clients: %llu do not close, %llu wait, %llu were left open\n",
               (unsigned long long)stats->stuck_fds, (unsigned long long)stats->closing_fds,
               (unsigned long long)stats->left_open_fds);
    if (is_any(stats->lost_extents) || is_any(stats->waiting_extents) ||
        is_any(stats->kept_extents))
        printf("  extents lost %llu, to be unmapped %llu, that had to stay %llu\n",
               (unsigned long long)stats->lost_extents, (unsigned long long)stats->waiting_extents,
               (unsigned long long)stats->kept_extents);
    if (stats->checksum_failures)
        printf("  %llu blocks did not match their checksums and were dropped\n",
               (unsigned long long)stats->checksum_failures);
    if (stats->failed_demotions)
        printf("  %llu demotions failed\n", (unsigned long long)stats->failed_demotions);
    if (stats->bad_packets || stats->refused_requests)
        printf("  %llu bad packets, %llu refused requests\n",
               (unsigned long long)stats->bad_packets, (unsigned long long)stats->refused_requests);
    if (is_unknown(stats))
        printf("  whether GPUs fail, descriptors or extents are kept: unknown, an older daemon\n");
    fputs(terminal_paint(PAINT_NONE), stdout);
}

/* Of each list; so that the usual screen of 24 lines has it all. */
static size_t rows_shown(const struct snapshot *s)
{
    static const int shown[] = {QUARANTINE, NAMESPACES, PEERS};
    static const size_t rows[] = {6, 6, 3, 1};
    size_t n = 0;

    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
        n += json_array_size(s->lists[shown[i]]) > 0;
    return rows[n];
}

/* The first few rows, under a heading. */
static void print_list(const struct snapshot *s, int list, const char *head)
{
    size_t n = json_array_size(s->lists[list]), most = rows_shown(s);
    json_t *rows = json_array();

    for (size_t i = 0; i < n && i < most; i++)
        json_array_append(rows, json_array_get(s->lists[list], i));
    if (n > 0)
        printf("\n%s\n", head);
    list_table(list_names[list], rows, "  ");
    if (n > most)
        printf("  and %zu more (--json has them all)\n", n - most);
    json_decref(rows);
}

static void print_peers(const struct snapshot *s)
{
    size_t n = json_array_size(s->lists[PEERS]), most = rows_shown(s);

    for (size_t i = 0; i < n && i < most; i++) {
        const json_t *row = json_array_get(s->lists[PEERS], i);

        printf("%s%s %s: %s\n", i ? "             " : "\n  peers      ",
               json_string_value(json_object_get(row, "way")),
               json_string_value(json_object_get(row, "peer")),
               json_string_value(json_object_get(row, "state")));
    }
    if (n > most)
        printf("             and %zu more (kvcachectl peers)\n", n - most);
}

static void print_text(const struct snapshot *s)
{
    char head[128], age[HUMAN_MAX];

    print_head(&s->stats);
    print_tier("gpu", &s->stats.tiers[0]);
    print_tier("host", &s->stats.tiers[1]);
    print_ratios(&s->stats);
    print_activity(&s->stats);
    print_trouble(&s->stats);
    print_peers(s);
    snprintf(head, sizeof(head), "%squarantine %llu slots, the oldest for %s%s",
             terminal_paint(PAINT_BAD), (unsigned long long)s->stats.quarantined_slots,
             human_age(s->stats.quarantine_oldest_us, age), terminal_paint(PAINT_NONE));
    print_list(s, QUARANTINE, head);
    print_list(s, NAMESPACES, "namespaces");
}

static kvc_status take(kvc_client *client, struct snapshot *s)
{
    kvc_status status = admin_stats(client, &s->stats);

    for (int i = 0; i < N_LISTS; i++) {
        s->lists[i] = json_array();
        if (status == KVC_OK)
            status = list_fetch(client, list_names[i], s->lists[i]);
        if (status == KVC_E_UNSUPPORTED) { /* an older daemon */
            json_decref(s->lists[i]);
            s->lists[i] = json_null();
            status = KVC_OK;
        }
    }
    return status;
}

int status_command(struct ctl *ctl, int argc, char **argv)
{
    struct snapshot snapshot;
    kvc_client *client;
    kvc_status status;
    int n, result;

    if (!option_parse(ctl, &table, argc, argv, NULL, &n, &result))
        return result;
    client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    status = take(client, &snapshot);
    result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, "status", status);
    if (result == CTL_OK && ctl->json)
        print_json(&snapshot);
    else if (result == CTL_OK)
        print_text(&snapshot);
    for (int i = 0; i < N_LISTS; i++)
        json_decref(snapshot.lists[i]);
    kvc_close(client);
    return result;
}
