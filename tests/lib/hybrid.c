#include "tests/lib/hybrid_members.h"

#include <check.h>
#include <string.h>

#define LAYERS HYBRID_LAYERS
#define RANKS  HYBRID_RANKS

static char nothing; // of functions that take no argument

static void fill_open(const struct hybrid *h, uint32_t rank, struct hybrid_open *args)
{
    memset(args, 0, sizeof(*args));
    strncpy(args->socket, daemon_socket(h->daemon), sizeof(args->socket) - 1);
    args->rank = rank;
}

void hybrid_hire_rank(struct hybrid *h, uint32_t rank)
{
    struct hybrid_open args;

    fill_open(h, rank, &args);
    h->ranks[rank] = crew_hire("a worker");
    crew_call(h->ranks[rank], hybrid_in_open_worker, &args);
}

void hybrid_kill_rank(struct hybrid *h, uint32_t rank)
{
    crew_kill(h->ranks[rank]);
    h->ranks[rank] = NULL;
}

void hybrid_open(struct hybrid *h, const char *const args[])
{
    struct hybrid_open open;

    memset(h, 0, sizeof(*h));
    h->daemon = daemon_start(args);
    // Before the test has a session of its own, which its children must not have.
    h->scheduler = crew_hire("the scheduler");
    for (uint32_t r = 0; r < RANKS; r++)
        hybrid_hire_rank(h, r);
    fill_open(h, 0, &open);
    crew_call(h->scheduler, hybrid_in_open_scheduler, &open);
    h->figures = hybrid_connect(daemon_socket(h->daemon), KVC_ROLE_OPERATOR);
}

void hybrid_close(struct hybrid *h)
{
    struct admin_debug debug = {.check = true};
    struct admin_debug_reply reply;

    ck_assert_int_eq(admin_debug(h->figures, &debug, &reply), KVC_OK);
    ck_assert_str_eq(reply.broken, "");
    crew_call(h->scheduler, hybrid_in_close_up, &nothing);
    crew_dismiss(h->scheduler);
    for (uint32_t r = 0; r < RANKS; r++) {
        crew_call(h->ranks[r], hybrid_in_close_up, &nothing);
        crew_dismiss(h->ranks[r]);
    }
    kvc_close(h->figures);
    daemon_stop(h->daemon);
}

struct admin_stats hybrid_figures(const struct hybrid *h)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(h->figures, &stats), KVC_OK);
    return stats;
}

uint32_t hybrid_lookup(struct hybrid *h, uint64_t request, kvc_lease *lease)
{
    struct hybrid_lease args = {.request = request};

    crew_call(h->scheduler, hybrid_in_look_up, &args);
    ck_assert_int_eq(args.status, KVC_OK);
    *lease = args.lease;
    return lease->blocks;
}

kvc_status hybrid_release(struct hybrid *h, uint64_t lease)
{
    struct hybrid_lease args = {.lease.id = lease};

    crew_call(h->scheduler, hybrid_in_release, &args);
    return args.status;
}

kvc_status hybrid_extend(struct hybrid *h, uint64_t lease)
{
    struct hybrid_lease args = {.lease.id = lease};

    crew_call(h->scheduler, hybrid_in_extend, &args);
    return args.status;
}

uint64_t hybrid_reset(struct hybrid *h)
{
    uint64_t blocks = 0;

    crew_call(h->scheduler, hybrid_in_reset, &blocks);
    return blocks;
}

uint32_t hybrid_pin(struct hybrid *h, uint32_t n)
{
    crew_call(h->scheduler, hybrid_in_pin, &n);
    return n;
}

void hybrid_begin_step(struct hybrid *h, uint32_t rank, struct step *step)
{
    crew_call(h->ranks[rank], hybrid_in_begin_step, step);
}

kvc_status hybrid_next_layer(struct hybrid *h, uint32_t rank, const struct step *step)
{
    struct hybrid_layer args = {.step = *step, .layer = step->layers};

    crew_call(h->ranks[rank], hybrid_in_next_layer, &args);
    return args.status;
}

void hybrid_end_step(struct hybrid *h, uint32_t rank, bool cancel, kvc_outcome outcomes[GROUPS])
{
    struct hybrid_end args = {.cancel = cancel};

    crew_call(h->ranks[rank], hybrid_in_end_step, &args);
    memcpy(outcomes, args.outcomes, sizeof(args.outcomes));
}

void hybrid_prefill_rank(struct hybrid *h, uint32_t rank, uint32_t first, uint32_t n)
{
    struct step step = {.first = first, .n = n, .layers = LAYERS};

    crew_call(h->ranks[rank], hybrid_in_prefill, &step);
}

void hybrid_prefill(struct hybrid *h, uint32_t first, uint32_t n)
{
    struct step steps[RANKS];

    for (uint32_t r = 0; r < RANKS; r++) {
        steps[r] = (struct step){.first = first, .n = n, .layers = LAYERS};
        crew_start(h->ranks[r], hybrid_in_prefill, &steps[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        crew_finish(h->ranks[r]);
}

kvc_status hybrid_adopt(struct hybrid *h, uint32_t rank, const kvc_lease *lease)
{
    struct hybrid_lease args = {.lease = *lease};

    crew_call(h->ranks[rank], hybrid_in_adopt, &args);
    return args.status;
}

void hybrid_let_go(struct hybrid *h, uint32_t rank)
{
    crew_call(h->ranks[rank], hybrid_in_let_go, &nothing);
}

uint32_t hybrid_load(struct hybrid *h, uint32_t rank, const kvc_lease *lease, uint32_t spoil)
{
    struct hybrid_load args = {.spoil = spoil, .layers = LAYERS};

    ck_assert_int_eq(hybrid_adopt(h, rank, lease), KVC_OK);
    crew_call(h->ranks[rank], hybrid_in_load, &args);
    hybrid_let_go(h, rank);
    return args.invalid;
}

void hybrid_load_some(struct hybrid *h, uint32_t rank, uint32_t layers)
{
    struct hybrid_load args = {.spoil = HYBRID_PROMPT, .layers = layers};

    crew_call(h->ranks[rank], hybrid_in_load, &args);
}

void hybrid_overwrite(struct hybrid *h)
{
    for (uint32_t r = 0; r < RANKS; r++)
        crew_call(h->ranks[r], hybrid_in_overwrite, &nothing);
}

void hybrid_lose(struct hybrid *h, uint32_t rank, uint32_t block)
{
    crew_call(h->ranks[rank], hybrid_in_lose, &block);
}

void hybrid_register_again(struct hybrid *h)
{
    for (uint32_t r = 0; r < RANKS; r++)
        crew_call(h->ranks[r], hybrid_in_register_again, &nothing);
}
