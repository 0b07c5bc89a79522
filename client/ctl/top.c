/*
 * kvcachectl top: the daemon as it works, a second at a time.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"
#include "client/ctl/human.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/list.h"
#include "client/ctl/option.h"
#include "client/ctl/screen.h"
#include "client/ctl/top.h"

#define INTERVAL_MS 1000
#define ANSWER_MS   1000u /* a daemon that takes longer does not answer */
#define ROWS_MAX    256u
#define BAR_CELLS   16

struct options {
    uint64_t count;
};

/* What has become of the counters since the snapshot before, a second. */
struct rates {
    double gpu, host, peer, misses;
    double saved, loaded; /* bytes */
    double evictions, demotions, promotions;
    double processor; /* 1: one of them */
};

struct top {
    const struct ctl *ctl;
    kvc_client *client; /* NULL: the daemon does not answer */
    char why[256];      /* then */
    struct admin_stats stats, stats_before;
    uint64_t at_ms, before_ms; /* 0: there is no such snapshot */
    struct rates rates;
    struct top_table table;
};

#define FIELD(name) offsetof(struct options, name)
static const struct option_row rows[] = {
    {"count", OPTION_UINT64, FIELD(count), "N", "with --json: end after so many [never]", 1,
     UINT64_MAX, NULL},
};
#undef FIELD

#define RATE(path, name, help)                                                                     \
    {                                                                                              \
        path, FIELD_REAL, offsetof(struct top, rates.name), help                                   \
    }
#define NOW(path, type, name, help)                                                                \
    {                                                                                              \
        path, type, offsetof(struct top, stats.name), help                                         \
    }
static const struct field fields[] = {
    RATE("hits_per_s.gpu", gpu, "blocks that lookups found there, in the second before"),
    RATE("hits_per_s.host", host, "blocks that lookups found there"),
    RATE("hits_per_s.peer", peer, "blocks that came from peers"),
    RATE("misses_per_s", misses, "blocks that lookups did not find"),
    RATE("bytes_saved_per_s", saved, "of saves"),
    RATE("bytes_loaded_per_s", loaded, "of loads"),
    RATE("evictions_per_s", evictions, "blocks that were dropped for others"),
    RATE("demotions_per_s", demotions, "blocks copied to the host tier"),
    RATE("promotions_per_s", promotions, "blocks copied to the gpu tier"),
    RATE("cpu", processor, "processors that the daemon kept busy"),
    NOW("gpu_used_bytes", FIELD_UINT64, tiers[0].used_bytes, "of used slots"),
    NOW("host_used_bytes", FIELD_UINT64, tiers[1].used_bytes, "of used slots"),
    NOW("blocks", FIELD_UINT64, blocks, "published"),
    NOW("sessions", FIELD_UINT64, sessions, "connected, without operators"),
    NOW("leases", FIELD_UINT64, leases, "held"),
    NOW("filling_slots", FIELD_UINT64, filling_slots, "of saves under way"),
    NOW("open_loads", FIELD_UINT64, open_loads, "under way"),
    NOW("moving_blocks", FIELD_UINT64, moving_blocks, "being copied between tiers"),
    NOW("quarantined_slots", FIELD_UINT64, quarantined_slots,
        "that wait for proof that nobody writes to them"),
    NOW("oldest_op_ms", FIELD_MS, oldest_op_us, "age of the oldest save or load under way"),
    NOW("boot_epoch", FIELD_UINT64, boot_epoch, "of the daemon"),
    NOW("uptime_s", FIELD_SECONDS, uptime_us, "since its start"),
};
static const struct shape shape = {"objects, one a line and second", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .help = "Shows the daemon as it works, anew each second.\n"
            "Keys: n namespaces, c clients, s or > to sort by the next column, < by the one\n"
            "before, r the other way round, q ends.\n"
            "A daemon that has gone is waited for.",
    .json = &shape,
    OPTION_ROWS(rows)};

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static double rate(uint64_t before, uint64_t now, double seconds)
{
    return now > before ? (double)(now - before) / seconds : 0;
}

static void compute_rates(struct top *top)
{
    const struct admin_stats *a = &top->stats_before, *b = &top->stats;
    double s = (double)(top->at_ms - top->before_ms) * 1e-3;

    top->rates = (struct rates){0};
    /* Another daemon has counters of its own. */
    if (top->before_ms == 0 || s <= 0 || a->boot_epoch != b->boot_epoch)
        return;
    top->rates = (struct rates){
        .gpu = rate(a->tiers[0].hits, b->tiers[0].hits, s),
        .host = rate(a->tiers[1].hits, b->tiers[1].hits, s),
        .peer = rate(a->hits_peer, b->hits_peer, s),
        .misses = rate(a->misses, b->misses, s),
        .saved = rate(a->tiers[0].bytes_saved + a->tiers[1].bytes_saved,
                      b->tiers[0].bytes_saved + b->tiers[1].bytes_saved, s),
        .loaded = rate(a->tiers[0].bytes_loaded + a->tiers[1].bytes_loaded,
                       b->tiers[0].bytes_loaded + b->tiers[1].bytes_loaded, s),
        .evictions = rate(a->evictions, b->evictions, s),
        .demotions = rate(a->demotions, b->demotions, s),
        .promotions = rate(a->promotions, b->promotions, s),
        .processor = rate(a->cpu_us, b->cpu_us, s) * 1e-6,
    };
}

static void lose(struct top *top, const char *why)
{
    snprintf(top->why, sizeof(top->why), "%s", why);
    kvc_close(top->client);
    top->client = NULL;
    top->before_ms = 0;
}

static bool connect(struct top *top)
{
    kvc_options options = {.socket = top->ctl->socket,
                           .name = "kvcachectl top",
                           .role = KVC_ROLE_OPERATOR,
                           .connect_ms = ANSWER_MS,
                           .lookup_ms = ANSWER_MS};

    return top->client ||
           kvc_connect_why(&options, &top->client, top->why, sizeof(top->why)) == KVC_OK;
}

/* The first rows: a screen has no place for more, and the daemon other things to do. */
static kvc_status fetch_rows(struct top *top, json_t *fetched)
{
    struct admin_list_query query = {.what = top_table_list(&top->table), .limit = ROWS_MAX};
    struct admin_list list = {.more = true};
    kvc_status status = KVC_OK;

    while (status == KVC_OK && list.more && json_array_size(fetched) < ROWS_MAX) {
        status = list_fetch_page(top->client, &query, fetched, &list);
        query.after = list.after;
    }
    return status;
}

static void take(struct top *top, bool with_rows)
{
    const uint64_t now = now_ms();
    struct admin_stats stats;
    kvc_status status;
    json_t *fetched;

    if (!connect(top))
        return;
    status = admin_stats(top->client, &stats);
    fetched = json_array();
    if (status == KVC_OK && with_rows)
        status = fetch_rows(top, fetched);
    if (status != KVC_OK) {
        json_decref(fetched);
        lose(top, kvc_text(status));
        return;
    }
    top->before_ms = top->at_ms && top->stats.boot_epoch == stats.boot_epoch ? top->at_ms : 0;
    top->stats_before = top->stats;
    top->stats = stats;
    top->at_ms = now;
    compute_rates(top);
    top_table_take(&top->table, fetched, (double)(now - top->before_ms) * 1e-3);
}

static void write_tier(const char *name, const struct admin_tier *tier, FILE *to, int columns)
{
    char bar[HUMAN_MAX], share[HUMAN_MAX], used[HUMAN_MAX], bytes[HUMAN_MAX];
    struct top_line line;

    top_line_begin(&line, to, columns);
    top_line_put(&line, PAINT_NONE, "%-5s [", name);
    top_line_put(&line, PAINT_GOOD, "%s", human_bar(tier->used_bytes, tier->bytes, BAR_CELLS, bar));
    top_line_put(&line, PAINT_NONE, "] %7s  %10s of %10s, %llu slots",
                 human_share(tier->used_bytes, tier->bytes, share),
                 human_bytes((double)tier->used_bytes, used),
                 human_bytes((double)tier->bytes, bytes), (unsigned long long)tier->used_slots);
    top_line_end(&line);
}

static void put_ratios(const struct top *top, struct top_line *line)
{
    char text[HUMAN_MAX];

    top_line_put(line, PAINT_NONE, "  hit");
    for (uint32_t i = 0; i < top->stats.n_windows; i++) {
        const struct admin_window *w = &top->stats.windows[i];

        top_line_put(line, PAINT_NONE, " %s",
                     human_share(w->gpu + w->host, w->gpu + w->host + w->misses, text));
        top_line_put(line, PAINT_GREY, " (%u m)", w->seconds / 60);
    }
}

static void write_hits(const struct top *top, FILE *to, int columns)
{
    char text[4][HUMAN_MAX];
    struct top_line line;

    top_line_begin(&line, to, columns);
    top_line_put(&line, PAINT_HEAD, "blocks/s");
    top_line_put(&line, PAINT_NONE, " gpu %s, host %s, missed %s",
                 human_count(top->rates.gpu, text[0]), human_count(top->rates.host, text[1]),
                 human_count(top->rates.misses, text[2]));
    if (top->stats.hits_peer)
        top_line_put(&line, PAINT_NONE, ", of peers %s", human_count(top->rates.peer, text[3]));
    top_line_end(&line);
}

static void write_work(const struct top *top, FILE *to, int columns)
{
    const struct admin_stats *s = &top->stats;
    char text[6][HUMAN_MAX];
    struct top_line line;

    top_line_begin(&line, to, columns);
    top_line_put(&line, PAINT_HEAD, "bytes/s ");
    top_line_put(&line, PAINT_NONE, " saved %s, loaded %s", human_bytes(top->rates.saved, text[0]),
                 human_bytes(top->rates.loaded, text[1]));
    put_ratios(top, &line);
    top_line_end(&line);
    top_line_begin(&line, to, columns);
    top_line_put(&line, PAINT_HEAD, "blocks/s");
    top_line_put(&line, PAINT_NONE, " evicted %s, demoted %s, promoted %s",
                 human_count(top->rates.evictions, text[2]),
                 human_count(top->rates.demotions, text[3]),
                 human_count(top->rates.promotions, text[4]));
    top_line_end(&line);
    top_line_begin(&line, to, columns);
    top_line_put(&line, PAINT_HEAD, "now     ");
    top_line_put(&line, PAINT_NONE, " filling %llu, loads %llu, moving %s, leases %llu",
                 (unsigned long long)s->filling_slots, (unsigned long long)s->open_loads,
                 human_number(s->moving_blocks, text[5]), (unsigned long long)s->leases);
    top_line_put(&line, s->oldest_op_us > 1000000 ? PAINT_WARN : PAINT_NONE, "; oldest %s",
                 s->oldest_op_us ? human_age(s->oldest_op_us, text[0]) : "-");
    if (s->quarantined_slots)
        top_line_put(&line, PAINT_BAD, "; quarantine %llu (%s)",
                     (unsigned long long)s->quarantined_slots,
                     human_age(s->quarantine_oldest_us, text[1]));
    top_line_end(&line);
}

static void write_head(const struct top *top, FILE *to, int columns)
{
    const struct admin_stats *s = &top->stats;
    struct top_line line;
    char age[HUMAN_MAX];

    top_line_begin(&line, to, columns);
    if (!top->client) {
        top_line_put(&line, PAINT_BAD, "the daemon does not answer, trying again: %s", top->why);
    } else {
        top_line_put(&line, PAINT_HEAD, "kvcached %s", s->version);
        top_line_put(&line, PAINT_NONE, " %s, up %s, processor %.0f %%, sessions %llu", s->device,
                     human_age(s->uptime_us, age), top->rates.processor * 100,
                     (unsigned long long)s->sessions);
        if (s->draining)
            top_line_put(&line, PAINT_WARN, ", draining");
    }
    top_line_end(&line);
}

static bool show(struct top *top)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    int n_rows, columns;
    struct top_line line;
    bool shown;

    if (!to)
        return false;
    screen_size(&n_rows, &columns);
    write_head(top, to, columns);
    write_tier("gpu", &top->stats.tiers[0], to, columns);
    write_tier("host", &top->stats.tiers[1], to, columns);
    write_hits(top, to, columns);
    write_work(top, to, columns);
    fputc('\n', to);
    /* Eight lines above it and one below. */
    top_table_write(&top->table, to, n_rows - 9, columns);
    top_line_begin(&line, to, columns);
    top_line_put(&line, PAINT_GREY, "n namespaces  c clients  s < > sort  r reverse  q quit");
    top_line_end(&line);
    fclose(to);
    shown = text && screen_show(text);
    free(text);
    return shown;
}

/* false: it is over. *fetch: what is shown is another list. */
static bool obey(struct top *top, int key, bool *fetch)
{
    switch (key) {
    case 'n':
    case 'c':
        top_table_choose(&top->table, key == 'n' ? &top_namespaces : &top_clients);
        *fetch = true;
        return true;
    case 's':
    case '>':
    case '<':
        top_table_sort(&top->table, key == '<' ? -1 : 1);
        return true;
    case 'r':
        top->table.reverse = !top->table.reverse;
        return true;
    case 'q':
    case 'Q':
    case SCREEN_OVER:
        return false;
    default:
        return true;
    }
}

static void run_on_screen(struct top *top)
{
    uint64_t next = 0;
    bool goes_on = true;

    while (goes_on) {
        bool fetch = now_ms() >= next;

        if (fetch) {
            take(top, true);
            next = now_ms() + INTERVAL_MS;
        }
        if (!show(top))
            return;
        fetch = false;
        goes_on = obey(top, screen_key(next > now_ms() ? (uint32_t)(next - now_ms()) : 0), &fetch);
        if (fetch)
            next = 0;
    }
}

static int run_json(struct top *top, uint64_t count)
{
    interrupt_catch();
    for (uint64_t n = 0; n < count || !count;) {
        struct timespec pause = {.tv_sec = INTERVAL_MS / 1000};

        take(top, false);
        if (!top->client)
            return ctl_fail(top->ctl, NULL, top->why, KVC_E_DISCONNECTED);
        if (top->before_ms) {
            json_t *root = json_object();

            field_put(root, &shape, top);
            json_dumpf(root, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
            putchar('\n');
            json_decref(root);
            if (fflush(stdout) != 0)
                return CTL_FAILED;
            n++;
        }
        if (interrupt_came())
            return CTL_OK;
        if (n < count || !count)
            nanosleep(&pause, NULL);
    }
    return CTL_OK;
}

int top_command(struct ctl *ctl, int argc, char **argv)
{
    struct options options = {0};
    struct top top = {.ctl = ctl};
    int n, result = CTL_OK;

    if (!option_parse(ctl, &table, argc, argv, &options, &n, &result))
        return result;
    top_table_choose(&top.table, &top_namespaces);
    top.client = ctl_connect(ctl);
    if (!top.client)
        return CTL_FAILED;
    if (ctl->json) {
        result = run_json(&top, options.count);
    } else if (screen_open()) {
        lose(&top, ""); /* for one that does not wait as long */
        run_on_screen(&top);
        screen_close();
        result = CTL_OK;
    } else {
        fprintf(stderr, "%s: top needs a terminal; with --json it needs none\n", ctl->program);
        result = CTL_USAGE;
    }
    kvc_close(top.client);
    top_table_free(&top.table);
    return result;
}
