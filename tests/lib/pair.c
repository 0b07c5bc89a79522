#include "tests/lib/pair.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/port.h"
#include "tests/lib/wait.h"

#define ARGS_MAX  24
#define LINKED_MS 5000
#define HELD_MS   2100 // HOLD_MS of daemon/peer/fetch.h, and some more

static size_t add(const char **to, size_t n, const char *const *from)
{
    for (size_t i = 0; from != NULL && from[i] != NULL; i++) {
        ck_assert_uint_lt(n, ARGS_MAX - 1);
        to[n++] = from[i];
    }
    return n;
}

static struct daemon *start(struct pair *p, uint32_t i, const char *const args[],
                            const char *const last_args[])
{
    char *list = p->lists[i], *listen = p->listens[i];
    const char *all[ARGS_MAX] = {"--peers", list, "--peer-listen", listen, "--peer-time", "60s"};
    size_t n = 6;

    for (uint32_t j = 0; j < p->n; j++)
        if (j != i)
            snprintf(list + strlen(list), sizeof(p->lists[i]) - strlen(list), "%s127.0.0.1:%d",
                     list[0] != '\0' ? "," : "", p->ports[j]);
    snprintf(listen, sizeof(p->listens[i]), "127.0.0.1:%d", p->ports[i]);
    n = add(all, n, args);
    n = add(all, n, i + 1 == p->n ? last_args : NULL);
    all[n] = NULL;
    return daemon_start(all);
}

/* By what it says now: on a busy machine a link may have come and gone. */
static bool is_linked(const struct daemon *d, uint32_t n)
{
    struct pair_row row;

    for (uint32_t i = 0; i < n; i++)
        if (!pair_look(d, "serves", i, &row) || strcmp(row.state, "open") != 0 ||
            !pair_look(d, "asks", i, &row) || strcmp(row.state, "open") != 0)
            return false;
    return true;
}

void pair_linked(const struct pair *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        wait_for(is_linked(p->daemons[i], p->n - 1), LINKED_MS);
}

void pair_open_with(struct pair *p, uint32_t n, const char *const args[],
                    const char *const last_args[])
{
    *p = (struct pair){.n = n};
    for (uint32_t i = 0; i < n; i++)
        p->ports[i] = port_take();
    for (uint32_t i = 0; i < n; i++)
        p->daemons[i] = start(p, i, args, last_args);
    pair_linked(p);
}

void pair_open(struct pair *p, uint32_t n, const char *const args[])
{
    pair_open_with(p, n, args, NULL);
}

void pair_close(struct pair *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->daemons[i] != NULL)
            daemon_stop(p->daemons[i]);
}

static uint64_t number(const struct admin_row *row, uint32_t column)
{
    return strtoull(row->values[column], NULL, 10);
}

static void read_row(const struct admin_row *from, struct pair_row *row)
{
    snprintf(row->state, sizeof(row->state), "%s", from->values[2]);
    snprintf(row->mode, sizeof(row->mode), "%s", from->values[3]);
    snprintf(row->lanes, sizeof(row->lanes), "%s", from->values[4]);
    snprintf(row->reason, sizeof(row->reason), "%s", from->values[5]);
    snprintf(row->tenant, sizeof(row->tenant), "%s", from->values[12]);
    row->small = number(from, 13);
    row->running = row->waiting = 0;
    sscanf(row->reason, "under way %u, waiting %u", &row->running, &row->waiting);
    row->epoch = number(from, 6);
    row->batches = number(from, 7);
    row->useful = number(from, 8);
    row->wire = number(from, 9);
    row->registrations = number(from, 10);
    row->dropped = number(from, 11);
}

bool pair_look(const struct daemon *d, const char *way, uint32_t i, struct pair_row *row)
{
    struct admin_list list;
    struct engine e;
    bool found = false;

    engine_connect(&e, daemon_socket(d), KVC_ROLE_OPERATOR);
    ck_assert_int_eq(admin_list(e.client, "peers", 0, 0, &list), KVC_OK);
    for (size_t r = 0; r < list.n_rows && !found; r++) {
        if (strcmp(list.rows[r].values[1], way) != 0 || i-- > 0)
            continue;
        read_row(&list.rows[r], row);
        found = true;
    }
    engine_close(&e);
    return found;
}

struct pair_row pair_row(const struct daemon *d, const char *way, uint32_t i)
{
    struct pair_row row;

    ck_assert(pair_look(d, way, i, &row));
    return row;
}

static bool is_settled(kvc_client *client)
{
    struct admin_stats stats = engine_stats(client);

    return stats.filling_slots == 0 && stats.quarantined_slots == 0 && stats.open_loads == 0 &&
           stats.leases == 0;
}

void pair_settled(const struct daemon *d)
{
    const struct admin_debug check = {.check = true};
    struct admin_debug_reply reply;
    struct engine e;

    engine_connect(&e, daemon_socket(d), KVC_ROLE_OPERATOR);
    wait_for(is_settled(e.client), LINKED_MS);
    ck_assert_int_eq(admin_debug(e.client, &check, &reply), KVC_OK);
    ck_assert_msg(reply.broken[0] == '\0', "%s", reply.broken);
    engine_close(&e);
}

void pair_at_rest(struct daemon *d)
{
    daemon_clock_advance(d, HELD_MS * 1000u);
    pair_settled(d);
}

void pair_end(struct pair *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->daemons[i] != NULL)
            pair_at_rest(p->daemons[i]);
    pair_close(p);
}

char *pair_ctl(const struct daemon *d, bool json)
{
    char program[512], command[1024], *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size), *in;
    int c;

    daemon_program(program, sizeof(program), "kvcachectl");
    snprintf(command, sizeof(command), "%s peers --socket %s%s", program, daemon_socket(d),
             json ? " --json" : "");
    in = popen(command, "r");
    ck_assert(out != NULL && in != NULL);
    while ((c = fgetc(in)) != EOF)
        fputc(c, out);
    ck_assert_int_eq(pclose(in), 0);
    fclose(out);
    return text;
}
