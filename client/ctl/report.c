#include "client/ctl/report.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static const char *const operation_names[] = {
    [TALLY_LOOKUP] = "lookup_us", [TALLY_SAVE] = "save_us", [TALLY_LOAD] = "load_us"};

uint64_t report_mismatches(const struct report *report)
{
    return tally_sum(report->tally, mismatches);
}

static uint64_t hit_blocks(const struct report *report)
{
    return tally_sum(report->tally, hits[0]) + tally_sum(report->tally, hits[1]);
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static void put(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

void report_json(const struct report *report, FILE *to)
{
    struct tally *tally = report->tally;
    json_t *root = json_object();
    put(root, "requests", tally_sum(tally, requests));
    put(root, "blocks", tally_sum(tally, blocks));
    put(root, "hit_blocks", hit_blocks(report));
    json_object_set_new(root, "hit_ratio",
                        json_real(ratio(hit_blocks(report), tally_sum(tally, blocks))));
    json_t *hits = json_object();
    put(hits, "gpu", tally_sum(tally, hits[0]));
    put(hits, "host", tally_sum(tally, hits[1]));
    put(hits, "peer", 0);
    json_object_set_new(root, "hits", hits);
    put(root, "saved_blocks", tally_sum(tally, saved_blocks));
    put(root, "skipped_blocks", tally_sum(tally, skipped_blocks));
    put(root, "pending_blocks", tally_sum(tally, pending_blocks));
    put(root, "present_blocks", tally_sum(tally, present_blocks));
    put(root, "bytes_saved", tally_sum(tally, bytes_saved));
    put(root, "bytes_loaded", tally_sum(tally, bytes_loaded));
    put(root, "verified_bytes", tally_sum(tally, verified_bytes));
    put(root, "mismatches", report_mismatches(report));
    put(root, "demotions", report->demotions);
    put(root, "promotions", report->promotions);
    put(root, "evictions", report->evictions);
    for (int op = 0; op < TALLY_OPERATIONS; op++) {
        json_t *times = json_object();
        json_object_set_new(times, "p50", json_real(tally_quantile(tally, op, 0.50)));
        json_object_set_new(times, "p99", json_real(tally_quantile(tally, op, 0.99)));
        json_object_set_new(root, operation_names[op], times);
    }
    put(root, "late_saves", tally_sum(tally, late_saves));
    put(root, "refused_loads", tally_sum(tally, refused_loads));
    put(root, "errors", tally_sum(tally, errors));
    put(root, "skipped_lines", report->bad_lines);
    put(root, "killed_workers", report->killed_workers);
    json_t *cpu = json_object();
    json_object_set_new(cpu, "daemon", json_real(report->daemon_cpu_s));
    json_object_set_new(cpu, "workers", json_real(report->workers_cpu_s));
    json_object_set_new(root, "cpu_s", cpu);
    json_object_set_new(root, "seconds", json_real(report->seconds));
    json_dumpf(root, to, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    fputc('\n', to);
    json_decref(root);
}

/* A number of bytes in the unit that shows it with three or four digits. */
static const char *bytes_text(double bytes, char text[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit < sizeof(units) / sizeof(units[0]) - 1) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 24, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

static void put_times(const struct report *report, enum tally_operation op, const char *name,
                      FILE *to)
{
    fprintf(to, "  %-9s %9llu   p50 %8.0f us   p99 %8.0f us\n", name,
            (unsigned long long)tally_sum(report->tally, samples[op]),
            tally_quantile(report->tally, op, 0.5), tally_quantile(report->tally, op, 0.99));
}

void report_text(const struct report *report, FILE *to)
{
    struct tally *tally = report->tally;
    uint64_t blocks = tally_sum(tally, blocks), hits = hit_blocks(report);
    uint64_t gpu = tally_sum(tally, hits[0]), host = tally_sum(tally, hits[1]);
    uint64_t saved = tally_sum(tally, bytes_saved), loaded = tally_sum(tally, bytes_loaded);
    char text[2][24];
    fprintf(to, "requests %llu, blocks %llu, in %.2f s\n",
            (unsigned long long)tally_sum(tally, requests), (unsigned long long)blocks,
            report->seconds);
    fprintf(to, "  hits      %9llu   %5.1f %%   gpu %llu, host %llu\n", (unsigned long long)hits,
            100 * ratio(hits, blocks), (unsigned long long)gpu, (unsigned long long)host);
    fprintf(to, "  saved     %9llu   skipped %llu, pending %llu\n",
            (unsigned long long)tally_sum(tally, saved_blocks),
            (unsigned long long)tally_sum(tally, skipped_blocks),
            (unsigned long long)tally_sum(tally, pending_blocks));
    fprintf(to, "  demoted   %9llu   promoted %llu, evicted %llu\n",
            (unsigned long long)report->demotions, (unsigned long long)report->promotions,
            (unsigned long long)report->evictions);
    put_times(report, TALLY_LOOKUP, "lookups", to);
    put_times(report, TALLY_LOAD, "loads", to);
    put_times(report, TALLY_SAVE, "saves", to);
    fprintf(to, "  moved     saved %s, loaded %s", bytes_text((double)saved, text[0]),
            bytes_text((double)loaded, text[1]));
    if (report->seconds > 0)
        fprintf(to, ", together %s/s",
                bytes_text((double)(saved + loaded) / report->seconds, text[0]));
    fprintf(to, "\n  processor daemon %.2f s, workers %.2f s\n", report->daemon_cpu_s,
            report->workers_cpu_s);
    uint64_t trouble[] = {tally_sum(tally, late_saves), tally_sum(tally, refused_loads),
                          tally_sum(tally, errors), report->bad_lines, report->killed_workers};
    if (trouble[0] | trouble[1] | trouble[2] | trouble[3] | trouble[4])
        fprintf(to,
                "  trouble   late saves %llu, refused loads %llu, errors %llu, bad lines %llu, "
                "killed workers %llu\n",
                (unsigned long long)trouble[0], (unsigned long long)trouble[1],
                (unsigned long long)trouble[2], (unsigned long long)trouble[3],
                (unsigned long long)trouble[4]);
    fprintf(to, "  verified  %s, %llu mismatches\n",
            bytes_text((double)tally_sum(tally, verified_bytes), text[0]),
            (unsigned long long)report_mismatches(report));
}

void report_progress(struct tally *tally, uint64_t total, double seconds, FILE *to)
{
    uint64_t done = tally_sum(tally, requests);
    int filled = total ? (int)(30 * done / total) : 30;
    fprintf(to, "\r[%.*s%.*s] %llu of %llu requests, %.0f s, %llu mismatches ", filled,
            "##############################", 30 - filled, "..............................",
            (unsigned long long)done, (unsigned long long)total, seconds,
            (unsigned long long)tally_sum(tally, mismatches));
    fflush(to);
}

void report_progress_end(FILE *to)
{
    fputs("\r\033[K", to);
    fflush(to);
}
