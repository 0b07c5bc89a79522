/* Saves by slices: several calls of one save, each for some slices of the same blocks. */
#include "daemon/base/clock.h"
#include "tests/lib/model.h"

typedef unsigned long long ull;

bool model_chunk_arrived(const struct model_save *s, uint32_t chunk)
{
    for (uint32_t c = chunk; c < s->n_chunks; c += s->call_chunks)
        if (!s->chunks[c].written)
            return false;
    return true;
}

static uint32_t slices_of(const struct model *m, const struct model_save *s)
{
    return m->parts[s->part[0]].layout.n_slices;
}

bool model_chunk_proved(const struct model *m, const struct model_save *s, uint32_t chunk)
{
    if (s->by_slices && s->claimed != (1u << slices_of(m, s)) - 1)
        return false;
    return model_chunk_arrived(s, chunk);
}

void model_slices_begin(struct model *m, struct model_save *s, struct store_save_entry *entry)
{
    uint32_t n = s->n_keys > 0 ? slices_of(m, s) : 0, first, count;

    if (n < 2)
        return;
    first = model_below(m, n);
    count = 1 + model_below(m, n - first);
    if (count == n)
        count--;
    entry->first_slice = first;
    entry->n_slices = count;
    s->by_slices = true;
    s->claimed = ((1u << count) - 1) << first;
}

/* Words of the owner that are not free, at most: those of saves and loads that the model knows. */
static uint32_t words_in_use(const struct model *m, uint32_t owner)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        if (m->saves[i].used && m->saves[i].owner == owner && !m->saves[i].by_daemon)
            n += m->saves[i].n_chunks;
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        n += m->loads[i].used && m->loads[i].owner == owner && !m->loads[i].by_daemon;
    return n;
}

/* What the call must get; KVC_OK may be KVC_E_BUSY too, if few words are free. */
static kvc_status expected(const struct model *m, const struct model_save *s, uint32_t mask,
                           bool other_sums)
{
    (void)m;
    if (s->aborted || s->n_published == s->n_assigned)
        return KVC_E_UNKNOWN;
    if (other_sums)
        return KVC_E_INVALID;
    return s->claimed & mask ? KVC_E_DUPLICATE : KVC_OK;
}

void model_slices_more(struct model *m, struct model_save *s)
{
    uint8_t keys[MODEL_SAVE_KEYS][KVC_KEY_BYTES], states[MODEL_SAVE_KEYS];
    struct store_location locations[MODEL_SAVE_KEYS];
    struct store_chunk chunks[MODEL_SAVE_KEYS];
    struct store_save_result result = {.states = states, .locations = locations, .chunks = chunks};
    const struct model_part *part = &m->parts[s->part[0]];
    uint32_t n = slices_of(m, s), first = model_below(m, n), count, mask, taken = 0;
    bool other_sums = model_chance(m, 30);
    struct store_save_entry entry = {
        .part = part->id, .epoch = part->epoch, .keys = keys[0], .n_keys = s->n_keys};
    struct store_save req = {.entries = &entry,
                             .n_entries = 1,
                             .checksums = s->checksums != other_sums,
                             .notify = s->notify,
                             .save = s->id,
                             .request = ++m->next_request,
                             .by_daemon = s->by_daemon};
    struct refusal why;
    struct save *handle = NULL;
    kvc_status status, expect;

    /* Mostly such as it lacks. */
    for (uint32_t i = 0; i < n && (s->claimed >> first & 1) && model_chance(m, 900); i++)
        first = (first + 1) % n;
    count = 1 + model_below(m, n - first);
    while (count > 1 && (s->claimed & (((1u << count) - 1) << first)))
        count--;
    mask = ((1u << count) - 1) << first;
    entry.first_slice = first;
    entry.n_slices = count;
    for (uint32_t i = 0; i < s->n_keys; i++)
        model_key(s->key[i], keys[i]);
    expect = expected(m, s, mask, other_sums);
    model_begin(m, "owner %u saves slices %u to %u of save %llu", s->owner, first,
                first + count - 1, (ull)s->id);
    status = store_save_slices(m->store, m->owners[s->owner].owner, &req, &handle, &result, &why);
    if (model_is_fault(m, status))
        return;
    if (status == KVC_E_BUSY && expect == KVC_OK) {
        model_expect(m, words_in_use(m, s->owner) + s->call_chunks > KVC_PAGE_WORDS,
                     "no words are free, and few are in use");
        return;
    }
    model_expect(m, status == expect, "more slices get \"%s\" for %s, not \"%s\"",
                 kvc_status_text(status), why.field, kvc_status_text(expect));
    if (status != KVC_OK)
        return;
    for (uint32_t i = 0; i < s->n_keys; i++) {
        if (states[i] != STORE_KEY_ASSIGNED)
            continue;
        model_expect(m,
                     taken < s->n_assigned && s->assigned[taken].key == s->key[i] &&
                         locations[i].tier == s->assigned[taken].tier &&
                         locations[i].offset == s->assigned[taken].offset &&
                         locations[i].generation == s->assigned[taken].generation,
                     "key %u of save %llu lies elsewhere now", s->key[i], (ull)s->id);
        taken++;
    }
    model_expect(m, taken == s->n_assigned && result.n_chunks == s->call_chunks,
                 "more slices of %u keys in %u chunks", taken, result.n_chunks);
    model_save_take_chunks(m, s, &result, first, count);
    s->claimed |= mask;
    s->deadline = clock_now_us() + KVC_SAVE_PROOF_MS * CLOCK_MS_US;
}
