#include "client/ctl/report.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "client/ctl/human.h"
#include "client/ctl/terminal.h"

static const char *const operation_names[] = {
    [TALLY_LOOKUP] = "lookup_us", [TALLY_SAVE] = "save_us", [TALLY_LOAD] = "load_us"};

static const char *const phase_names[] = {
    [TALLY_ASKING] = "lookups",        [TALLY_LOADING] = "loads", [TALLY_VERIFYING] = "verifying",
    [TALLY_GENERATING] = "generating", [TALLY_SAVING] = "saves",  [TALLY_REST] = "rest"};

uint64_t report_mismatches(const struct report *report)
{
    return tally_sum(report->tally, mismatches);
}

static uint64_t hit_blocks(const struct tally *tally)
{
    return tally_sum(tally, hits[0]) + tally_sum(tally, hits[1]) + tally_sum(tally, hits[2]);
}

void report_part_take(struct tally *tally, struct report_part *part)
{
    *part = (struct report_part){.requests = tally_sum(tally, requests),
                                 .blocks = tally_sum(tally, blocks),
                                 .hits = hit_blocks(tally)};
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static void put(json_t *object, const char *name, uint64_t value)
{
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

static double ratio_before(const struct report *report)
{
    return ratio(report->before.hits, report->before.blocks);
}

static double ratio_after(const struct report *report)
{
    return ratio(hit_blocks(report->tally) - report->before.hits,
                 tally_sum(report->tally, blocks) - report->before.blocks);
}

static double daemon_share(const struct report *report)
{
    double all = report->daemon.all_s + report->workers.all_s;

    return all > 0 ? report->daemon.all_s / all : 0;
}

static double blocks_per_s(const struct report *report)
{
    uint64_t blocks = tally_sum(report->tally, blocks);

    return report->seconds > 0 ? (double)blocks / report->seconds : 0;
}

static double phase_s(const struct tally *tally, int phase, bool processor)
{
    return 1e-9 * (double)(processor ? tally_sum(tally, processor_ns[phase])
                                     : tally_sum(tally, elapsed_ns[phase]));
}

static json_t *real(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static void put_processor(json_t *root, const struct report *report)
{
    const struct report_cpu *daemon = &report->daemon, *workers = &report->workers;

    json_object_set_new(root, "cpu_s",
                        json_pack("{s:f, s:o, s:o, s:f, s:o, s:o, s:f}", "daemon", daemon->all_s,
                                  "daemon_user", real(daemon->all_s - daemon->system_s),
                                  "daemon_system", real(daemon->system_s), "workers",
                                  workers->all_s, "workers_user",
                                  real(workers->all_s - workers->system_s), "workers_system",
                                  real(workers->system_s), "daemon_share", daemon_share(report)));
}

static void put_phases(json_t *root, const struct tally *tally)
{
    json_t *phases = json_object();

    for (int phase = 0; phase < TALLY_PHASES; phase++)
        json_object_set_new(phases, phase_names[phase],
                            json_pack("{s:f, s:f}", "elapsed_s", phase_s(tally, phase, false),
                                      "cpu_s", phase_s(tally, phase, true)));
    json_object_set_new(root, "phases", phases);
}

void report_json(const struct report *report, FILE *to)
{
    struct tally *tally = report->tally;
    json_t *root = json_object();
    put(root, "requests", tally_sum(tally, requests));
    put(root, "blocks", tally_sum(tally, blocks));
    put(root, "hit_blocks", hit_blocks(report->tally));
    json_object_set_new(root, "hit_ratio",
                        json_real(ratio(hit_blocks(report->tally), tally_sum(tally, blocks))));
    json_t *hits = json_object();
    put(hits, "gpu", tally_sum(tally, hits[0]));
    put(hits, "host", tally_sum(tally, hits[1]));
    put(hits, "peer", tally_sum(tally, hits[2]));
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
    put(root, "admitted_blocks", report->admitted);
    put(root, "admitted_at_once", report->at_once);
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
    if (report->before.requests)
        json_object_set_new(root, "killed_daemon",
                            json_pack("{s:I, s:f, s:f}", "after_requests",
                                      (json_int_t)report->before.requests, "hit_ratio_before",
                                      ratio_before(report), "hit_ratio_after",
                                      ratio_after(report)));
    put_processor(root, report);
    put_phases(root, tally);
    json_object_set_new(root, "seconds", json_real(report->seconds));
    json_object_set_new(root, "blocks_per_s", json_real(blocks_per_s(report)));
    json_dumpf(root, to, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    fputc('\n', to);
    json_decref(root);
}

static void put_times(const struct report *report, enum tally_operation op, const char *name,
                      FILE *to)
{
    fprintf(to, "  %-9s %9llu   p50 %8.0f us   p99 %8.0f us\n", name,
            (unsigned long long)tally_sum(report->tally, samples[op]),
            tally_quantile(report->tally, op, 0.5), tally_quantile(report->tally, op, 0.99));
}

static const char *seconds_text(double seconds, int width, char *text)
{
    if (isnan(seconds))
        snprintf(text, HUMAN_MAX, "%*s", width + 2, "unknown");
    else
        snprintf(text, HUMAN_MAX, "%*.2f s", width, seconds);
    return text;
}

/* Where the time went: of the daemon, and of what all workers did together. */
static void print_processor(const struct report *report, FILE *to)
{
    const struct report_cpu *rows[] = {&report->daemon, &report->workers};
    char user[HUMAN_MAX], system[HUMAN_MAX];

    fputs("                     user    system       all   of the processor time\n", to);
    for (int i = 0; i < 2; i++)
        fprintf(to, "  %-9s %s %s %7.2f s   %5.1f %%\n", i ? "workers" : "daemon",
                seconds_text(rows[i]->all_s - rows[i]->system_s, 10, user),
                seconds_text(rows[i]->system_s, 7, system), rows[i]->all_s,
                100 * (i ? 1 - daemon_share(report) : daemon_share(report)));
    fputs("  of the workers     processor    elapsed\n", to);
    for (int phase = 0; phase < TALLY_PHASES; phase++)
        fprintf(to, "    %-12s %10.2f s %8.2f s\n", phase_names[phase],
                phase_s(report->tally, phase, true), phase_s(report->tally, phase, false));
}

void report_text(const struct report *report, FILE *to)
{
    struct tally *tally = report->tally;
    uint64_t blocks = tally_sum(tally, blocks), hits = hit_blocks(report->tally);
    uint64_t gpu = tally_sum(tally, hits[0]), host = tally_sum(tally, hits[1]);
    uint64_t peer = tally_sum(tally, hits[2]);
    uint64_t saved = tally_sum(tally, bytes_saved), loaded = tally_sum(tally, bytes_loaded);
    char text[2][HUMAN_MAX];
    fprintf(to, "requests %llu, blocks %llu, in %.2f s\n",
            (unsigned long long)tally_sum(tally, requests), (unsigned long long)blocks,
            report->seconds);
    fprintf(to, "  speed     %9.0f   blocks a second\n", blocks_per_s(report));
    fprintf(to, "  hits      %9llu   %5.1f %%   gpu %llu, host %llu", (unsigned long long)hits,
            100 * ratio(hits, blocks), (unsigned long long)gpu, (unsigned long long)host);
    if (peer > 0)
        fprintf(to, ", peer %llu", (unsigned long long)peer);
    fprintf(to, "\n");
    if (report->before.requests)
        fprintf(to,
                "  killed    the second daemon after %llu requests: hit %.1f %%, then %.1f %%\n",
                (unsigned long long)report->before.requests, 100 * ratio_before(report),
                100 * ratio_after(report));
    fprintf(to, "  saved     %9llu   skipped %llu, pending %llu\n",
            (unsigned long long)tally_sum(tally, saved_blocks),
            (unsigned long long)tally_sum(tally, skipped_blocks),
            (unsigned long long)tally_sum(tally, pending_blocks));
    fprintf(to, "  demoted   %9llu   promoted %llu, evicted %llu\n",
            (unsigned long long)report->demotions, (unsigned long long)report->promotions,
            (unsigned long long)report->evictions);
    fprintf(to, "  room      %9s   at once, of %llu blocks that got some\n",
            human_share(report->at_once, report->admitted, text[0]),
            (unsigned long long)report->admitted);
    put_times(report, TALLY_LOOKUP, "lookups", to);
    put_times(report, TALLY_LOAD, "loads", to);
    put_times(report, TALLY_SAVE, "saves", to);
    fprintf(to, "  moved     saved %s, loaded %s", human_bytes((double)saved, text[0]),
            human_bytes((double)loaded, text[1]));
    if (report->seconds > 0)
        fprintf(to, ", together %s/s",
                human_bytes((double)(saved + loaded) / report->seconds, text[0]));
    fputc('\n', to);
    print_processor(report, to);
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
            human_bytes((double)tally_sum(tally, verified_bytes), text[0]),
            (unsigned long long)report_mismatches(report));
}

void report_progress(struct tally *tally, uint64_t total, double seconds)
{
    const uint64_t done = tally_sum(tally, requests);
    char text[128];

    snprintf(text, sizeof(text), "%llu of %llu requests, %.0f s, %llu mismatches",
             (unsigned long long)done, (unsigned long long)total, seconds,
             (unsigned long long)tally_sum(tally, mismatches));
    terminal_progress(done, total, text);
}
