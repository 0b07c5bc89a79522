/* The bytes of the model's tiers, and a mover that takes its time and fails. */
#include <check.h>
#include <string.h>

#include "tests/lib/model.h"

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static uint8_t *address(struct model *m, enum tier_kind tier, uint64_t offset)
{
    ck_assert_uint_lt(offset, m->shape->budget[tier]);
    return m->memory[tier] + offset;
}

/* What a slice of a block holds: a function of part, key, slice and place. */
static uint64_t content(uint64_t seed, uint64_t word)
{
    return seed + word * 0x9E3779B97F4A7C15ull;
}

static uint64_t content_seed(const struct model_place *place, uint32_t slice)
{
    return mix(((uint64_t)(place->part + 1) << 48) + ((uint64_t)slice << 32) + place->key);
}

static void write_slice(uint8_t *at, uint64_t bytes, const struct model_place *place,
                        uint32_t slice)
{
    uint64_t seed = content_seed(place, slice);

    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t value = content(seed, i / 8);

        memcpy(at + i, &value, bytes - i < 8 ? bytes - i : 8);
    }
}

static bool slice_is_exact(const uint8_t *at, uint64_t bytes, const struct model_place *place,
                           uint32_t slice)
{
    uint64_t seed = content_seed(place, slice), value, word, i;

    for (i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, at + i, 8);
        if (word != content(seed, i / 8))
            return false;
    }
    value = content(seed, i / 8);
    return memcmp(at + i, &value, bytes - i) == 0;
}

static uint32_t count(const struct pack_layout *layout, uint32_t n_slices)
{
    return n_slices ? n_slices : layout->n_slices;
}

void model_write_slices(struct model *m, const struct model_place *place, uint32_t first,
                        uint32_t n)
{
    const struct pack_layout *layout = &m->parts[place->part].layout;
    uint8_t *slot = address(m, place->tier, place->offset);

    for (uint32_t i = first; i < first + count(layout, n); i++)
        write_slice(slot + layout->slice_offsets[i], layout->slice_bytes[i], place, i);
}

void model_spoil(struct model *m, const struct model_place *place)
{
    const struct pack_layout *layout = &m->parts[place->part].layout;
    uint64_t at = model_random(m) % layout->slot_bytes, n = layout->slot_bytes - at;

    memset(address(m, place->tier, place->offset) + at, 0xd0 + (int)model_below(m, 16),
           n < 512 ? n : 512);
}

/* Somewhere in one of them, and nowhere else. */
void model_spoil_slices(struct model *m, const struct model_place *place, uint32_t first,
                        uint32_t n)
{
    const struct pack_layout *layout = &m->parts[place->part].layout;
    uint32_t slice = first + model_below(m, count(layout, n));
    uint64_t at = model_random(m) % layout->slice_bytes[slice];
    uint64_t left = layout->slice_bytes[slice] - at;

    memset(address(m, place->tier, place->offset) + layout->slice_offsets[slice] + at,
           0xd0 + (int)model_below(m, 16), left < 512 ? left : 512);
}

uint64_t model_sum_slices(struct model *m, const struct model_place *place, uint32_t first,
                          uint32_t n)
{
    const struct pack_layout *layout = &m->parts[place->part].layout;
    const uint8_t *slot = address(m, place->tier, place->offset);
    uint64_t sum = 0;

    for (uint32_t i = first; i < first + count(layout, n); i++)
        sum += pack_checksum_slice(slot + layout->slice_offsets[i], layout->slice_bytes[i], i);
    return sum;
}

bool model_is_exact(struct model *m, const struct model_place *place)
{
    const struct pack_layout *layout = &m->parts[place->part].layout;
    const uint8_t *slot = address(m, place->tier, place->offset);

    for (uint32_t i = 0; i < layout->n_slices; i++)
        if (!slice_is_exact(slot + layout->slice_offsets[i], layout->slice_bytes[i], place, i))
            return false;
    return true;
}

uint64_t model_checksum(struct model *m, const struct model_place *place)
{
    return pack_checksum_slot(&m->parts[place->part].layout,
                              address(m, place->tier, place->offset));
}

/* The slot that a tier's offset is the start of, as the table has it now. */
static struct model_place place_at(struct model *m, enum tier_kind tier, uint64_t offset)
{
    const struct table_tier *t = &table_header(m->table)->tiers[tier];
    uint32_t extent = (uint32_t)(offset / t->extent_bytes), key, number;
    uint64_t slot_bytes = table_extent(m->table, tier, extent)->slot_bytes;
    const struct table_slot *record;

    model_expect(m, slot_bytes > 0, "a move in an extent without slots");
    number = extent * t->slots_per_extent + (uint32_t)(offset % t->extent_bytes / slot_bytes);
    record = table_slot(m->table, tier, number);
    memcpy(&key, record->key, sizeof(key));
    return (struct model_place){.tier = tier,
                                .slot = number,
                                .generation = record->generation,
                                .offset = offset,
                                .part = model_part_of(m, record->part),
                                .key = key};
}

static void copy_half(struct model *m, const struct move *move, bool second)
{
    uint64_t half = move->bytes / 2, from = second ? half : 0, to = second ? move->bytes : half;

    memcpy(address(m, move->to, move->to_offset) + from,
           address(m, move->from, move->from_offset) + from, to - from);
}

static kvc_status copy(void *mover, const struct move *move, move_done_cb *done, void *arg)
{
    struct model *m = mover;
    struct model_move *entry = NULL;

    model_expect(m, move->from != move->to, "a move within a tier");
    model_expect(m,
                 move->bytes > 0 &&
                     move->from_offset + move->bytes <= m->shape->budget[move->from] &&
                     move->to_offset + move->bytes <= m->shape->budget[move->to],
                 "a move out of bounds");
    for (uint32_t i = 0; i < MODEL_MOVES && !entry; i++)
        if (!m->moves[i].used && !m->moves[i].ended)
            entry = &m->moves[i];
    if (!entry || model_chance(m, m->shape->copy_refused)) {
        m->expected.failed_demotions += move->to == TIER_HOST;
        m->failed_promotions += move->to == TIER_GPU;
        return KVC_E_NO_MEMORY;
    }
    *entry = (struct model_move){.used = true,
                                 .move = *move,
                                 .from = place_at(m, move->from, move->from_offset),
                                 .to = place_at(m, move->to, move->to_offset),
                                 .done = done,
                                 .arg = arg};
    model_expect(m, entry->from.key == entry->to.key && entry->from.part == entry->to.part,
                 "a move from one block to another");
    /* Half now and half when it ends: a slot that is used again meanwhile shows. */
    copy_half(m, move, false);
    return KVC_OK;
}

const struct mover_ops model_mover = {.copy = copy};

uint32_t model_n_moves(const struct model *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_MOVES; i++)
        n += m->moves[i].used;
    return n;
}

void model_move_step(struct model *m, bool may_fail)
{
    uint32_t n = model_n_moves(m), skip = model_below(m, n), i = 0;
    struct model_move *move, ended;

    if (n == 0)
        return;
    while (!m->moves[i].used || skip-- > 0)
        i++;
    move = &m->moves[i];
    ended = *move;
    ended.status = may_fail && model_chance(m, m->shape->copy_fails) ? KVC_E_DEVICE : KVC_OK;
    model_begin(m, "move ends %s slot %u to slot %u: %s",
                ended.move.to == TIER_HOST ? "down" : "up", ended.from.slot, ended.to.slot,
                kvc_status_text(ended.status));
    if (ended.status == KVC_OK)
        copy_half(m, &ended.move, true);
    else
        model_spoil(m, &ended.to);
    m->failed_promotions += ended.status != KVC_OK && ended.move.to == TIER_GPU;
    *move = ended;
    move->ended = true;
    move->used = false;
    ended.done(ended.arg, ended.status);
}
