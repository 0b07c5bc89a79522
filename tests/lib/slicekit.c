/* Saves by slices. */
#include "tests/lib/slicekit.h"

#include <check.h>
#include <string.h>

void slicekit_add_part(struct slicekit *s, struct kit_owner *owner)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {40};
    const uint32_t slices[SLICEKIT_SLICES] = {512, 512, 1024, 2048};
    const struct store_part desc = {.namespace_digest = digest,
                                    .slice_bytes = slices,
                                    .n_slices = SLICEKIT_SLICES,
                                    .block_tokens = 16};

    ck_assert_int_eq(store_register(s->kit.store, owner->owner, &desc, &s->part, &s->kit.why),
                     KVC_OK);
    kit_map_all(&s->kit, owner);
}

void slicekit_open(struct slicekit *s, uint32_t gpu_slots)
{
    kit_open(&s->kit, &(struct kit_config){.gpu_slots = gpu_slots});
    s->worker = kit_worker(&s->kit);
    slicekit_add_part(s, s->worker);
    kit_keys(0, KIT_KEYS, s->keys);
}

struct store_save_entry slicekit_entry(const struct slicekit *s, uint32_t n, uint32_t first,
                                       uint32_t slices)
{
    return (struct store_save_entry){.part = s->part.part,
                                     .epoch = s->part.epoch,
                                     .keys = s->keys,
                                     .n_keys = n,
                                     .first_slice = first,
                                     .n_slices = slices};
}

struct slicekit_call *slicekit_ask(struct slicekit *s, struct kit_owner *owner,
                                   const struct store_save *req, uint32_t i)
{
    struct slicekit_call *c = &s->calls[i];
    struct save *open;
    uint32_t short_of;

    memset(c, 0, sizeof(*c));
    c->result = (struct store_save_result){
        .states = c->states, .locations = c->locations, .chunks = c->chunks};
    if (req->save != 0) {
        c->status =
            store_save_slices(s->kit.store, owner->owner, req, &open, &c->result, &s->kit.why);
    } else {
        c->status = store_save_open(s->kit.store, owner->owner, req, &open, &short_of, &s->kit.why);
        if (c->status == KVC_OK)
            store_save_seal(s->kit.store, open, &c->result);
    }
    if (c->status == KVC_OK && c->result.save != 0 && req->by_daemon)
        c->copy = kit_copy(&s->kit, open, &c->result);
    kit_check(&s->kit);
    return c;
}

struct slicekit_call *slicekit_call(struct slicekit *s, struct kit_owner *owner, uint64_t id,
                                    uint32_t i, uint32_t n, uint32_t first, uint32_t slices)
{
    struct store_save_entry e = slicekit_entry(s, n, first, slices);
    struct store_save req = {.entries = &e,
                             .n_entries = 1,
                             .checksums = true,
                             .notify = true,
                             .save = id,
                             .request = 1000 + i,
                             .by_daemon = kit_daemon_copies()};

    return slicekit_ask(s, owner, &req, i);
}

uint64_t slicekit_first(struct slicekit *s)
{
    struct slicekit_call *c = slicekit_call(s, s->worker, 0, 0, SLICEKIT_KEYS, 0, 1);

    ck_assert_int_eq(c->status, KVC_OK);
    ck_assert_uint_eq(c->result.n_chunks, 2);
    return c->result.save;
}

void slicekit_prove(struct slicekit *s, const struct slicekit_call *c, uint32_t k, uint64_t sum)
{
    uint8_t *page = s->worker->page + c->chunks[k].word * KVC_PAGE_STRIDE;
    uint64_t cells[KVC_CHUNK_BLOCKS];

    for (uint32_t i = 0; i < c->chunks[k].blocks; i++)
        cells[i] = sum;
    if (c->copy) {
        kit_tell_copy(&s->kit, c->copy, k, cells, KVC_OK);
    } else {
        memcpy(page, cells, c->chunks[k].blocks * sizeof(cells[0]));
        kit_word(&s->kit, s->worker, c->chunks[k].word, c->chunks[k].number);
    }
    kit_tick(&s->kit);
}

uint32_t slicekit_found(struct slicekit *s, uint32_t first, uint32_t n)
{
    struct store_lookup_part p = {s->part.part, s->part.epoch, s->keys + first * KVC_KEY_BYTES, n};
    struct store_lookup req = {.parts = &p, .n_parts = 1, .probe = true};
    struct store_lookup_result result;

    ck_assert_int_eq(store_lookup(s->kit.store, s->worker->owner, &req, &result, &s->kit.why),
                     KVC_OK);
    return result.count;
}

void slicekit_check_places(const struct store_location *a, const struct store_location *b,
                           uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(a[i].tier, b[i].tier);
        ck_assert_uint_eq(a[i].offset, b[i].offset);
        ck_assert_uint_eq(a[i].generation, b[i].generation);
        ck_assert_uint_eq(a[i].checksum, b[i].checksum);
    }
}
