/*
 * kvcachectl status: the daemon on one screen, or as JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/list.h"

#define NAMESPACES_SHOWN 8u

static const char *const tier_names[2] = {"gpu", "host"};

static void put(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* Takes the rows of the lists. */
static void print_json(const struct admin_stats *stats, json_t *quarantine, json_t *namespaces,
                       json_t *extents)
{
    json_t *root = json_object(), *tiers = json_object(), *hits = json_object();
    json_object_set_new(root, "version", json_string(stats->version));
    put(root, "boot_epoch", stats->boot_epoch);
    json_object_set_new(root, "uptime_s", json_real((double)stats->uptime_us * 1e-6));
    json_object_set_new(root, "device", json_string(stats->device));
    for (int t = 0; t < 2; t++) {
        json_t *tier = json_object();
        put(tier, "bytes", stats->tiers[t].bytes);
        put(tier, "used_bytes", stats->tiers[t].used_bytes);
        put(tier, "slots", stats->tiers[t].slots);
        put(tier, "used_slots", stats->tiers[t].used_slots);
        json_object_set_new(tiers, tier_names[t], tier);
        put(hits, tier_names[t], stats->tiers[t].hits);
    }
    put(hits, "peer", stats->hits_peer);
    json_object_set_new(root, "tiers", tiers);
    put(root, "blocks", stats->blocks);
    put(root, "sessions", stats->sessions);
    put(root, "leases", stats->leases);
    put(root, "open_loads", stats->open_loads);
    put(root, "filling_slots", stats->filling_slots);
    put(root, "quarantined_slots", stats->quarantined_slots);
    put(root, "pinned_blocks", stats->pinned_blocks);
    put(root, "driver_calls", stats->driver_calls);
    put(root, "driver_call_us", stats->driver_call_us);
    put(root, "hanging_gpus", stats->hanging_gpus);
    put(root, "copy_thread_blocks", stats->copy_thread_blocks);
    json_object_set_new(root, "hits", hits);
    put(root, "misses", stats->misses);
    put(root, "evictions", stats->evictions);
    put(root, "demotions", stats->demotions);
    put(root, "failed_demotions", stats->failed_demotions);
    put(root, "promotions", stats->promotions);
    json_object_set_new(root, "oldest_op_ms", json_real((double)stats->oldest_op_us * 1e-3));
    json_object_set_new(root, "quarantine_oldest_ms",
                        json_real((double)stats->quarantine_oldest_us * 1e-3));
    json_object_set_new(root, "quarantine", quarantine);
    json_object_set_new(root, "namespaces", namespaces);
    json_object_set_new(root, "extents", extents);
    put(root, "resized_extents", stats->resized_extents);
    put(root, "moved_extents", stats->moved_extents);
    put(root, "kept_extents", stats->kept_extents);
    put(root, "lost_extents", stats->lost_extents);
    put(root, "waiting_extents", stats->waiting_extents);
    put(root, "limited_lookups", stats->limited_lookups);
    put(root, "admitted_blocks", stats->admitted_blocks);
    put(root, "admitted_at_once", stats->admitted_at_once);
    put(root, "skipped_blocks", stats->skipped_blocks);
    put(root, "checksum_failures", stats->checksum_failures);
    put(root, "stale_completions", stats->stale_completions);
    put(root, "bad_packets", stats->bad_packets);
    put(root, "refused_requests", stats->refused_requests);
    put(root, "closing_fds", stats->closing_fds);
    put(root, "stuck_fds", stats->stuck_fds);
    put(root, "left_open_fds", stats->left_open_fds);
    json_object_set_new(root, "cpu_s", json_real((double)stats->cpu_us * 1e-6));
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(root);
}

static void print_tier(const char *name, const struct admin_tier *tier)
{
    int filled =
        tier->bytes ? (int)(20.0 * (double)tier->used_bytes / (double)tier->bytes + 0.5) : 0;
    printf("  %-5s [%.*s%.*s] %9.1f of %9.1f MiB, %llu of %llu slots\n", name, filled,
           "####################", 20 - filled, "....................",
           (double)tier->used_bytes / 1048576.0, (double)tier->bytes / 1048576.0,
           (unsigned long long)tier->used_slots, (unsigned long long)tier->slots);
}

static double mib(const json_t *row, const char *column)
{
    const char *text = json_string_value(json_object_get(row, column));

    return text ? strtod(text, NULL) / 1048576.0 : 0;
}

/* Use against shares, of the first few. */
static void print_namespaces(json_t *rows)
{
    size_t i;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *digest = json_string_value(json_object_get(row, "namespace"));
        bool quota = strcmp(json_string_value(json_object_get(row, "gpu_quota")), "-") != 0 ||
                     strcmp(json_string_value(json_object_get(row, "host_quota")), "-") != 0;

        if (i == NAMESPACES_SHOWN) {
            printf("  ... and %zu more namespaces\n", json_array_size(rows) - i);
            break;
        }
        printf("  namespace %.8s %s gpu %.1f of %.1f MiB, host %.1f of %.1f MiB, leased %s%s\n",
               digest, name, mib(row, "gpu_bytes"), mib(row, "gpu_share"), mib(row, "host_bytes"),
               mib(row, "host_share"), json_string_value(json_object_get(row, "leased")),
               quota ? " (quota)" : "");
    }
}

static kvc_status print_text(kvc_client *client, const struct admin_stats *stats)
{
    kvc_status status;
    json_t *rows;

    printf("kvcached %s, device %s, up %.0f s\n", stats->version, stats->device,
           (double)stats->uptime_us * 1e-6);
    for (int t = 0; t < 2; t++)
        print_tier(tier_names[t], &stats->tiers[t]);
    printf("  blocks %llu, sessions %llu, leases %llu, open loads %llu, filling %llu\n",
           (unsigned long long)stats->blocks, (unsigned long long)stats->sessions,
           (unsigned long long)stats->leases, (unsigned long long)stats->open_loads,
           (unsigned long long)stats->filling_slots);
    uint64_t gpu = stats->tiers[0].hits, host = stats->tiers[1].hits;
    uint64_t asked = gpu + host + stats->misses;
    printf("  hits gpu %llu, host %llu (%.1f %% of %llu blocks asked for)\n",
           (unsigned long long)gpu, (unsigned long long)host,
           asked ? 100.0 * (double)(gpu + host) / (double)asked : 0.0, (unsigned long long)asked);
    printf("  demotions %llu, promotions %llu, evictions %llu, skipped blocks %llu\n",
           (unsigned long long)stats->demotions, (unsigned long long)stats->promotions,
           (unsigned long long)stats->evictions, (unsigned long long)stats->skipped_blocks);
    if (stats->pinned_blocks)
        printf("  pinned blocks %llu\n", (unsigned long long)stats->pinned_blocks);
    if (stats->copy_thread_blocks)
        printf("  copies by the daemon take at most %llu thread blocks\n",
               (unsigned long long)stats->copy_thread_blocks);
    if (stats->hanging_gpus)
        printf("  the driver of %llu GPUs hangs, for %.1f s; %llu calls wait\n",
               (unsigned long long)stats->hanging_gpus, (double)stats->driver_call_us * 1e-6,
               (unsigned long long)stats->driver_calls);
    if (stats->stuck_fds || stats->left_open_fds)
        printf("  descriptors of clients: %llu do not close, %llu wait, %llu were left open\n",
               (unsigned long long)stats->stuck_fds, (unsigned long long)stats->closing_fds,
               (unsigned long long)stats->left_open_fds);
    printf("  oldest operation %.1f ms\n", (double)stats->oldest_op_us * 1e-3);
    rows = json_array();
    status = list_fetch(client, "namespaces", rows);
    print_namespaces(rows);
    json_decref(rows);
    if (stats->lost_extents || stats->waiting_extents || stats->kept_extents)
        printf("  extents lost %llu, to be unmapped %llu, that had to stay %llu\n",
               (unsigned long long)stats->lost_extents, (unsigned long long)stats->waiting_extents,
               (unsigned long long)stats->kept_extents);
    putchar('\n');
    if (status == KVC_OK)
        status = list_fetch(client, "extents", NULL);
    if (status != KVC_OK || !stats->quarantined_slots)
        return status;
    printf("\n  quarantine %llu slots, the oldest for %.1f s\n\n",
           (unsigned long long)stats->quarantined_slots,
           (double)stats->quarantine_oldest_us * 1e-6);
    return list_fetch(client, "quarantine", NULL);
}

static kvc_status print_status(const struct ctl *ctl, kvc_client *client)
{
    struct admin_stats stats;
    json_t *quarantine, *namespaces, *extents;
    kvc_status status = admin_stats(client, &stats);

    if (status != KVC_OK)
        return status;
    if (!ctl->json)
        return print_text(client, &stats);
    quarantine = json_array();
    namespaces = json_array();
    extents = json_array();
    status = list_fetch(client, "quarantine", quarantine);
    if (status == KVC_OK)
        status = list_fetch(client, "namespaces", namespaces);
    if (status == KVC_OK)
        status = list_fetch(client, "extents", extents);
    if (status == KVC_OK) {
        print_json(&stats, quarantine, namespaces, extents);
        return KVC_OK;
    }
    json_decref(quarantine);
    json_decref(namespaces);
    json_decref(extents);
    return status;
}

int status_command(struct ctl *ctl, int argc, char **argv)
{
    int result;
    if (!ctl_parse(ctl, argc, argv, "Shows tiers, sessions, leases and what is in flight.",
                   &result))
        return result;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    kvc_status status = print_status(ctl, client);
    result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, "status", status);
    kvc_close(client);
    return result;
}
