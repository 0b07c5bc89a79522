/* Saves of the model: what a call must answer, given what is published and being filled. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/model.h"

typedef unsigned long long ull;

static bool is_filling_now(struct model *m, uint32_t part, uint32_t key)
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct table_slot *record = table_slot(m->table, t, i);

            if (record->state == SLOT_FILLING && record->part == m->parts[part].id &&
                memcmp(record->key, &key, sizeof(key)) == 0)
                return true;
        }
    return false;
}

static struct model_save *new_save(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        if (!m->saves[i].used) {
            memset(&m->saves[i], 0, sizeof(m->saves[i]));
            return &m->saves[i];
        }
    return NULL;
}

/* A request as the store takes it; keys lie in `keys`. */
static void fill_request(struct model *m, struct model_save *s, const struct model_run *runs,
                         uint32_t n_runs, struct store_save_entry *entries,
                         uint8_t (*keys)[KVC_KEY_BYTES])
{
    for (uint32_t e = 0; e < n_runs; e++) {
        entries[e] = (struct store_save_entry){.part = m->parts[runs[e].part].id,
                                               .epoch = m->parts[runs[e].part].epoch,
                                               .keys = keys[s->n_keys],
                                               .n_keys = runs[e].n};
        s->entry_keys[e] = runs[e].n;
        for (uint32_t i = 0; i < runs[e].n; i++) {
            uint32_t key = m->chains[runs[e].chain][runs[e].first + i];

            model_key(key, keys[s->n_keys]);
            s->part[s->n_keys] = runs[e].part;
            s->key[s->n_keys] = key;
            s->was_ready[s->n_keys] = model_is_published(m, runs[e].part, key);
            s->was_filling[s->n_keys] = is_filling_now(m, runs[e].part, key);
            s->n_keys++;
        }
    }
    s->n_entries = n_runs;
}

bool model_by_daemon(struct model *m)
{
    return m->way == WAY_ANY ? model_chance(m, 250)
                             : m->way == WAY_DAEMON || m->way == WAY_SLICES_DAEMON;
}

static uint64_t count_aborted(const struct model *m)
{
    struct store_stats stats;

    store_stats(m->store, &stats);
    return stats.aborted_saves;
}

/* Its keys are listed last, perhaps when it has been answered: without memory for that it fails. */
static void list(struct model *m, struct model_save *s)
{
    const uint64_t before = count_aborted(m);

    store_save_list(m->store);
    if (count_aborted(m) > before && s->sealed)
        s->aborting = true;
    else if (count_aborted(m) > before)
        s->aborted = true;
}

struct model_save *model_save_open(struct model *m, struct model_owner *o,
                                   const struct model_run *runs, uint32_t n_runs)
{
    uint8_t keys[MODEL_SAVE_KEYS][KVC_KEY_BYTES];
    struct store_save_entry entries[4];
    struct model_save *s = new_save(m);
    struct store_save req = {.entries = entries, .n_entries = n_runs, .list_later = m->list_later};
    struct refusal why;
    uint64_t aborted;
    uint32_t short_of;
    kvc_status status;

    if (!s)
        return NULL;
    s->owner = model_owner_index(m, o);
    s->checksums = req.checksums = model_chance(m, 700);
    s->by_daemon = req.by_daemon = model_by_daemon(m);
    s->notify = req.notify = model_chance(m, 400);
    s->to_host = m->to_host;
    req.place = s->to_host ? STORE_PLACE_HOST_ONLY : STORE_PLACE_GPU_FIRST;
    s->request = req.request = ++m->next_request;
    fill_request(m, s, runs, n_runs, entries, keys);
    if (n_runs == 1 && (m->way == WAY_SLICES || m->way == WAY_SLICES_DAEMON ||
                        (m->way == WAY_ANY && model_chance(m, 350))))
        model_slices_begin(m, s, &entries[0]);
    model_begin(m, "owner %u saves %u keys of %u entries (part %u chain %u from %u)%s%s%s",
                s->owner, s->n_keys, n_runs, n_runs ? runs[0].part : 0, n_runs ? runs[0].chain : 0,
                n_runs ? runs[0].first : 0, s->notify ? ", notify" : "",
                s->by_daemon ? ", by daemon" : "", s->to_host ? ", to the host" : "");
    s->used = true;
    s->opened = m->step;
    aborted = count_aborted(m);
    status = store_save_open(m->store, o->owner, &req, &s->handle, &short_of, &why);
    if (model_is_fault(m, status)) {
        s->used = false;
        return NULL;
    }
    s->aborted = count_aborted(m) > aborted;
    model_expect(m, status == KVC_OK, "a save is refused: %s: %s %s", kvc_status_text(status),
                 why.field, why.detail);
    return s;
}

/* What was skipped of an entry so far: nothing of a full one is assigned behind it; what other
 * rules can use is one run, up to the end or to where a full entry had to stop. */
struct skipping {
    bool any, assigned, after; /* after: behind one that was assigned */
};

static void expect_key(struct model *m, struct model_save *s, uint32_t entry, uint32_t k,
                       uint32_t state, const struct skipping *skipped)
{
    bool earlier = false;

    for (uint32_t i = 0, e = 0, n = 0; e < entry; n += s->entry_keys[e], e++)
        for (i = n; i < n + s->entry_keys[e]; i++)
            earlier |= s->part[i] == s->part[k] && s->key[i] == s->key[k];
    switch (state) {
    case STORE_KEY_HIT:
        /* Its protection ends with the call, and so perhaps does the block. */
        model_expect(m,
                     earlier || s->was_ready[k] || s->opened != m->step ||
                         model_is_ready_now(m, s->part[k], s->key[k]),
                     "key %u is a hit and not published", s->key[k]);
        break;
    case STORE_KEY_ASSIGNED:
        model_expect(m, !s->was_ready[k], "key %u was published, and is to be copied", s->key[k]);
        model_expect(m,
                     m->parts[s->part[k]].rule == STORE_RULE_FULL ? !skipped->any : !skipped->after,
                     "key %u is assigned behind a skipped one", s->key[k]);
        break;
    case STORE_KEY_PENDING:
        model_expect(m, s->opened != m->step || is_filling_now(m, s->part[k], s->key[k]),
                     "key %u is pending, and nobody fills it", s->key[k]);
        break;
    case STORE_KEY_SKIPPED:
        m->expected.skipped_blocks++;
        break;
    default:
        model_fail(m, "key %u is in state %u", s->key[k], state);
    }
    model_expect(m, !s->was_ready[k] || s->lost_hits || s->aborted || state == STORE_KEY_HIT,
                 "key %u was published, and is no hit but %u", s->key[k], state);
}

static void take_place(struct model *m, struct model_save *s, uint32_t k,
                       const struct store_location *location)
{
    struct model_place place = model_place_of(m, location, s->part[k], s->key[k]);
    const struct table_slot *record = table_slot(m->table, place.tier, place.slot);

    model_expect(m,
                 record->state == SLOT_FILLING && record->generation == place.generation &&
                     record->part == m->parts[place.part].id &&
                     memcmp(record->key, &place.key, sizeof(place.key)) == 0,
                 "key %u is assigned a slot that says something else", place.key);
    model_expect(m,
                 s->by_daemon || model_maps_slot(m, &m->owners[s->owner], place.tier, place.slot),
                 "key %u is assigned a slot that is not mapped", place.key);
    model_expect(m, !s->to_host || place.tier == TIER_HOST,
                 "key %u of a save to the host is assigned elsewhere", place.key);
    s->assigned[s->n_assigned++] = place;
    /* From now on the worker may write there at any time, and does. */
    model_spoil(m, &place);
}

void model_save_take_chunks(struct model *m, struct model_save *s,
                            const struct store_save_result *result, uint32_t first_slice,
                            uint32_t n_slices)
{
    struct pack_cut cut = {0};
    uint32_t first = 0;

    for (uint32_t i = 0; i < result->n_chunks; i++) {
        const struct store_chunk *c = &result->chunks[i];

        model_expect(m, s->n_chunks < MODEL_SAVE_KEYS, "too many chunks for the model");
        model_expect(m, c->blocks > 0 && first + c->blocks <= s->n_assigned,
                     "chunk %u of save %llu has %u blocks", i, (ull)s->id, c->blocks);
        for (uint32_t k = 0; k < c->blocks; k++)
            model_expect(
                m,
                pack_cut_next(&cut, m->parts[s->assigned[first + k].part].layout.block_bytes) ==
                    (k == 0),
                "chunk %u of save %llu is cut at a wrong place", i, (ull)s->id);
        model_expect(m, c->word < KVC_PAGE_WORDS, "word %u", c->word);
        if (!s->by_daemon)
            model_expect_free_word(m, s->owner, c->word);
        model_expect(m, s->by_daemon ? c->number == 0 : c->number > m->last_number,
                     "number %llu was used before", (ull)c->number);
        m->last_number = s->by_daemon ? m->last_number : c->number;
        s->chunks[s->n_chunks++] = (struct model_chunk){.live = true,
                                                        .first = first,
                                                        .blocks = c->blocks,
                                                        .first_slice = first_slice,
                                                        .n_slices = n_slices,
                                                        .word = c->word,
                                                        .number = c->number};
        first += c->blocks;
    }
    model_expect(m, first == s->n_assigned, "chunks of save %llu have %u of %u blocks", (ull)s->id,
                 first, s->n_assigned);
}

/* Of chunks with blocks of several layouts the slices are all of each block's. */
static void take_first_chunks(struct model *m, struct model_save *s,
                              const struct store_save_result *result)
{
    uint32_t first = 0, n = 0;

    if (s->by_slices) {
        first = (uint32_t)__builtin_ctz(s->claimed);
        n = (uint32_t)__builtin_popcount(s->claimed);
    }
    model_save_take_chunks(m, s, result, first, n);
    s->call_chunks = s->n_chunks;
}

void model_save_seal(struct model *m, struct model_save *s)
{
    uint8_t states[MODEL_SAVE_KEYS];
    struct store_location locations[MODEL_SAVE_KEYS];
    struct store_chunk chunks[MODEL_SAVE_KEYS];
    struct store_save_result result = {.states = states, .locations = locations, .chunks = chunks};
    uint32_t k = 0;

    store_save_seal(m->store, s->handle, &result);
    s->id = result.save;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        struct skipping skipped = {0};

        for (uint32_t i = 0; i < s->entry_keys[e]; i++, k++) {
            expect_key(m, s, e, k, states[k], &skipped);
            if (states[k] == STORE_KEY_SKIPPED && !(s->was_ready[k] && s->lost_hits)) {
                skipped.any = true;
                skipped.after = skipped.assigned;
            }
            skipped.assigned |= states[k] == STORE_KEY_ASSIGNED;
            if (states[k] == STORE_KEY_ASSIGNED)
                take_place(m, s, k, &locations[k]);
        }
    }
    model_begin(m, "save %llu of owner %u: %u of %u keys assigned in %u chunks", (ull)s->id,
                s->owner, s->n_assigned, s->n_keys, result.n_chunks);
    model_expect(m, (s->id != 0) == (s->n_assigned > 0), "save %llu assigns %u", (ull)s->id,
                 s->n_assigned);
    model_expect(m, s->n_assigned == 0 || !(s->aborting || s->aborted),
                 "a save that was aborted assigns slots");
    take_first_chunks(m, s, &result);
    model_expect_admission(m, s);
    s->sealed = true;
    list(m, s);
    s->handle = s->by_daemon ? s->handle : NULL;
    s->announced = s->notify && s->n_assigned > 0;
    s->deadline = clock_now_us() + KVC_SAVE_PROOF_MS * CLOCK_MS_US;
    if (s->n_assigned == 0)
        s->used = false;
}

static void take_answer(struct model *m, struct model_save *s, kvc_status status, bool pending,
                        const struct save_outcome *outcome)
{
    if (!s->sealed) {
        model_expect(m, status == KVC_OK && !pending, "an abort before the end of admission: %s",
                     kvc_status_text(status));
        s->aborted = true;
        return;
    }
    if (status == KVC_E_UNKNOWN) { /* it had ended */
        m->nudged = NULL;
        for (uint32_t i = 0; i < s->n_assigned && !s->aborted; i++)
            model_expect(m, model_is_ready_or_gone(m, &s->assigned[i]),
                         "an abort of a save that has not ended is refused");
        return;
    }
    model_expect(m, status == KVC_OK, "an abort is refused: %s", kvc_status_text(status));
    if (pending) {
        s->announced = true;
        return;
    }
    s->announced = false;
    s->answer = *outcome;
    s->answered = true;
}

void model_save_abort(struct model *m, struct model_save *s)
{
    uint32_t never[MODEL_SAVE_KEYS], n_never = 0;
    bool all = model_chance(m, 200), by_request = model_chance(m, 300), pending = false;
    struct model_owner *o = &m->owners[s->owner];
    struct save_outcome outcome;
    struct refusal why;
    kvc_status status;

    if (o->life != LIFE_OPEN)
        return;
    for (uint32_t c = 0; c < s->n_chunks; c++) {
        /* A promise about chunks that were enqueued, and ran, would be a lie. */
        if (!s->chunks[c].live || (!all && !model_chance(m, 300)))
            continue;
        never[n_never++] = c;
        s->chunks[c].live = s->by_daemon; /* the worker knows nothing of those */
    }
    all &= n_never == s->n_chunks && !(by_request && s->n_chunks > s->call_chunks);
    model_begin(m, "owner %u aborts save %llu, %u chunks never enqueued", s->owner, (ull)s->id,
                n_never);
    if (s->sealed) {
        s->aborting = true;
        m->nudged = o;
    }
    status = store_abort(m->store, o->owner, by_request || !s->sealed ? 0 : s->id, s->request,
                         never, all ? 0 : n_never, all, &pending, &outcome, &why);
    take_answer(m, s, status, pending, &outcome);
}

static void pick_runs(struct model *m, const struct model_owner *o, struct model_run *runs,
                      uint32_t n)
{
    uint32_t most = m->shape->keys;

    for (uint32_t i = 0; i < n; i++) {
        struct model_run *r = &runs[i];

        r->part = o->tenant * MODEL_TENANT_PARTS + model_below(m, MODEL_TENANT_PARTS);
        r->chain = model_below(m, MODEL_CHAINS);
        r->first = model_chance(m, 600) ? 0 : model_below(m, m->n_chain_keys - most);
        r->n = model_below(m, most + 1);
        /* Ranks and groups of one prompt. */
        if (i > 0 && model_chance(m, 500)) {
            r->chain = runs[0].chain;
            r->first = runs[0].first;
        }
    }
}

static void save_badly(struct model *m, struct model_owner *o)
{
    uint8_t keys[2][KVC_KEY_BYTES];
    uint32_t part = o->tenant * MODEL_TENANT_PARTS, what = model_below(m, 6);
    struct store_save_entry entry = {
        .part = m->parts[part].id, .epoch = m->parts[part].epoch, .keys = keys[0], .n_keys = 2};
    struct store_save req = {.entries = &entry, .n_entries = 1};
    static const kvc_status statuses[] = {KVC_E_UNKNOWN,   KVC_E_STALE,   KVC_E_STALE,
                                          KVC_E_DUPLICATE, KVC_E_INVALID, KVC_E_LIMIT};
    struct refusal why = {{0}, {0}};
    struct save *save = NULL;
    uint32_t short_of;
    kvc_status status;

    model_key(m->chains[0][0], keys[0]);
    model_key(m->chains[0][what == 3 ? 0 : 1], keys[1]);
    entry.part += what == 0 ? 1000 : 0;
    entry.epoch += what == 1 ? 1 : what == 2 ? -1u : 0;
    entry.first_slice = what == 4 ? 99 : 0;
    entry.n_keys = what == 5 ? KVC_KEYS_MAX + 1 : 2;
    model_begin(m, "owner %u saves badly (%u)", model_owner_index(m, o), what);
    status = store_save_open(m->store, o->owner, &req, &save, &short_of, &why);
    model_expect(m,
                 status == (o->role == STORE_ROLE_WORKER ? statuses[what] : KVC_E_DENIED) && !save,
                 "a bad save (%u) gets \"%s\" for %s", what, kvc_status_text(status), why.field);
}

static struct model_save *pick_save(struct model *m, bool sealed)
{
    uint32_t at = model_below(m, MODEL_SAVES);

    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[(at + i) % MODEL_SAVES];

        if (s->used && s->sealed == sealed)
            return s;
    }
    return NULL;
}

static struct model_save *pick_sliced(struct model *m)
{
    uint32_t at = model_below(m, MODEL_SAVES);

    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[(at + i) % MODEL_SAVES];

        if (s->used && s->sealed && s->by_slices && m->owners[s->owner].life == LIFE_OPEN)
            return s;
    }
    return NULL;
}

void model_save_steps(struct model *m)
{
    uint32_t what = model_below(m, 100), n = model_chance(m, 700) ? 1 : model_below(m, 4);
    struct model_owner *o = model_pick_owner(m, what < 95 ? STORE_ROLE_WORKER : 0);
    struct model_save *s;
    struct model_run runs[4];

    if (what < 12) {
        s = pick_save(m, model_chance(m, 850));
        if (s)
            model_save_abort(m, s);
    } else if (what < 32) {
        s = pick_save(m, false);
        if (!s)
            return;
        model_begin(m, "save %u of owner %u tries again", s->request, s->owner);
        store_save_more(m->store, s->handle);
        if (what < 26)
            model_save_seal(m, s);
    } else if (what < 45) {
        s = pick_sliced(m);
        if (s)
            model_slices_more(m, s);
    } else if (what >= 95 && o) {
        save_badly(m, o);
    } else if (o) {
        pick_runs(m, o, runs, n);
        m->list_later = true;
        /* Where extents are to move between tenants the GPU tier must be short of them. */
        m->to_host = what >= (m->shape->moves ? 94 : 90);
        s = model_save_open(m, o, runs, n);
        m->list_later = m->to_host = false;
        if (s && model_chance(m, 700))
            model_save_seal(m, s);
        else if (s)
            list(m, s);
    }
}
