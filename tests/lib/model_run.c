/* The frame of a run: seeds, steps, the trace of what was done, and how a failure is told. */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "tests/lib/model.h"

#define COMPARE_ALL_EVERY 64u

uint64_t model_random(struct model *m)
{
    uint64_t z = m->random += 0x9E3779B97F4A7C15ull;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

uint32_t model_below(struct model *m, uint32_t n)
{
    return n ? (uint32_t)(model_random(m) % n) : 0;
}

bool model_chance(struct model *m, uint32_t per_mille)
{
    return model_below(m, 1000) < per_mille;
}

void model_begin(struct model *m, const char *format, ...)
{
    char *line = m->trace[m->n_trace++ % MODEL_TRACE];
    size_t size = sizeof(m->trace[0]);
    int n = snprintf(line, size, "%6llu ", (unsigned long long)m->step);
    va_list args;

    va_start(args, format);
    vsnprintf(line + n, size - (size_t)n, format, args);
    va_end(args);
}

void model_fail(struct model *m, const char *format, ...)
{
    uint32_t first = m->n_trace > MODEL_TRACE ? m->n_trace - MODEL_TRACE : 0;
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    printf("\nmodel \"%s\" seed %llu, the latest of %llu steps:\n", m->shape->name,
           (unsigned long long)m->seed, (unsigned long long)m->step);
    for (uint32_t i = first; i < m->n_trace; i++)
        printf("%s\n", m->trace[i % MODEL_TRACE]);
    printf("wrong: %s\n", text);
    fflush(stdout);
    ck_abort_msg("model \"%s\" seed %llu step %llu: %s", m->shape->name,
                 (unsigned long long)m->seed, (unsigned long long)m->step, text);
    abort();
}

void model_end(struct model *m)
{
    model_compare(m, m->step % COMPARE_ALL_EVERY == 0);
    m->step++;
}

static void tick(struct model *m)
{
    model_begin(m, "tick");
    store_tick(m->store);
    m->ticked = true;
}

static void pass_time(struct model *m)
{
    uint64_t us = model_chance(m, 150) ? 1 + model_random(m) % (20 * CLOCK_S_US)
                                       : 1 + model_random(m) % (3 * CLOCK_MS_US);

    model_begin(m, "%llu us pass", (unsigned long long)us);
    clock_advance(us);
    if (model_chance(m, 700))
        tick(m);
}

bool model_is_fault(const struct model *m, kvc_status status)
{
    return m->fault && fault_fired(m->fault) > 0 &&
           status == (strcmp(m->fault, "mem.alloc") == 0 ? KVC_E_NO_MEMORY : KVC_E_BUSY);
}

void model_arm(struct model *m, const char *site, uint32_t skip, uint32_t count)
{
    m->fault = site;
    model_begin(m, "%s fails after %u", site, skip);
    fault_arm(site, skip, count);
}

void model_disarm(struct model *m)
{
    if (m->fault)
        fault_off(m->fault);
    m->fault = NULL;
}

void model_pass_time(struct model *m, uint64_t us)
{
    model_begin(m, "%llu us pass", (unsigned long long)us);
    clock_advance(us);
    tick(m);
}

/* The next call or two may find no memory, no slot or no word. */
static void arm_fault(struct model *m)
{
    static const char *const sites[] = {"mem.alloc", "mem.alloc", "slots.take", "store.word"};
    const char *site = sites[model_below(m, 4)];
    uint32_t skip = model_below(m, 4);

    model_arm(m, site, skip, 1 + model_below(m, 3));
}

static void step(struct model *m)
{
    uint32_t what = model_below(m, 100);

    if (m->shape->moves && model_chance(m, 120)) {
        model_extent_steps(m);
        return;
    }
    if (model_chance(m, 80))
        arm_fault(m);
    if (what < 30)
        model_save_steps(m);
    else if (what < 55)
        model_worker_step(m);
    else if (what < 78)
        model_lease_steps(m);
    else if (what < 88)
        model_move_step(m, true);
    else if (what < 94)
        model_owner_steps(m);
    else
        pass_time(m);
    model_disarm(m);
}

void model_run(struct model *m, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++) {
        step(m);
        model_end(m);
    }
}
