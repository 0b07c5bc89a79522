/*
 * What the store tells of its blocks, kept as a follower keeps it: by the events alone. After each
 * step it must be what the slot table says.
 */
#include <string.h>

#include "tests/lib/model.h"

/* Whether one key comes right behind another in a prompt. */
static bool is_next(const struct model *m, uint32_t parent, uint32_t key)
{
    for (uint32_t c = 0; c < MODEL_CHAINS; c++)
        for (uint32_t i = 1; i < m->n_chain_keys; i++)
            if (m->chains[c][i] == key && m->chains[c][i - 1] == parent)
                return true;
    return false;
}

static uint32_t number_of(const uint8_t *key)
{
    uint32_t number;

    memcpy(&number, key, sizeof(number));
    return number;
}

static void set(struct model *m, const struct store_event *event, uint32_t part, bool here)
{
    uint32_t key = number_of(event->key);
    bool *told = &m->told[event->tier][part][key];

    model_expect(m, *told != here, "key %u of part %u is told twice to be %s tier %u", key, part,
                 here ? "in" : "out of", event->tier);
    *told = here;
    m->n_told += here ? 1 : -1u;
    if (here)
        m->told_in[event->tier][part][key] = m->step;
    else if (m->told_in[event->tier][part][key] == m->step)
        m->brief[event->tier][part][key] = m->step;
}

static void clear(struct model *m, uint32_t part)
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t key = 0; key < MODEL_KEYS; key++) {
            m->n_told -= m->told[t][part][key];
            m->told[t][part][key] = false;
        }
}

void model_on_event(void *ctx, const struct store_event *event)
{
    struct model *m = ctx;
    uint32_t part = model_part_of(m, event->part);

    model_expect(m, part < m->n_parts, "an event of no part");
    switch (event->kind) {
    case STORE_EVENT_STORED:
        set(m, event, part, true);
        model_expect(m,
                     !event->parent || is_next(m, number_of(event->parent), number_of(event->key)),
                     "key %u is told to follow another than it does", number_of(event->key));
        m->told_parents += event->parent != NULL;
        return;
    case STORE_EVENT_REMOVED:
        set(m, event, part, false);
        return;
    case STORE_EVENT_CLEARED:
        clear(m, part);
        return;
    case STORE_EVENT_FORGOTTEN:
        return;
    }
    model_fail(m, "an event of no kind");
}

void model_compare_events(struct model *m)
{
    uint32_t ready = 0;

    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct table_slot *record = table_slot(m->table, t, i);
            uint32_t key = number_of(record->key);

            if (record->state != SLOT_READY)
                continue;
            ready++;
            model_expect(m, m->told[t][model_part_of(m, record->part)][key],
                         "key %u is in tier %u, and nobody was told", key, t);
        }
    model_expect(m, ready == m->n_told, "%u blocks are told to be here, and %u are", m->n_told,
                 ready);
}
