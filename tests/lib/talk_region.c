#include "tests/lib/talk_region.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/talk.h"

void talk_lender_register(struct talk_lender *l, uint8_t namespace_)
{
    static uint32_t slice_bytes[TALK_REGION_SLICES] = {TALK_REGION_STRIDE, 1000, 16};
    uint8_t digest[KVC_NAMESPACE_BYTES] = {namespace_};
    Kvcache__Register m = KVCACHE__REGISTER__INIT;
    Kvcache__RegisterReply *r;

    m.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    m.block_tokens = 16;
    m.n_slice_bytes = TALK_REGION_SLICES;
    m.slice_bytes = slice_bytes;
    r = talk_ask(l->sock, WIRE_REGISTER, &m.base, &kvcache__register_reply__descriptor);
    l->part = r->part;
    l->epoch = r->epoch;
    talk_free(r);
}

void talk_region_shape(struct talk_lender *l)
{
    kvcache__region_begin__init(&l->shape);
    for (uint32_t i = 0; i < TALK_REGION_SLICES; i++) {
        l->slice_pieces[i] = 0;
        l->slice_offsets[i] = i * TALK_REGION_BLOCKS * TALK_REGION_STRIDE;
        l->slice_strides[i] = TALK_REGION_STRIDE;
    }
    l->shape.part = l->part;
    l->shape.blocks = TALK_REGION_BLOCKS;
    l->shape.pieces = 1;
    l->shape.n_slice_pieces = l->shape.n_slice_offsets = l->shape.n_slice_strides =
        TALK_REGION_SLICES;
    l->shape.slice_pieces = l->slice_pieces;
    l->shape.slice_offsets = l->slice_offsets;
    l->shape.slice_strides = l->slice_strides;
}

void talk_lender_open(struct talk_lender *l, const char *socket, Kvcache__Role role, int *page)
{
    l->sock = talk_hello(socket, role, page);
    talk_lender_register(l, 1);
    talk_region_shape(l);
}

int talk_region_memfd(uint64_t bytes, int seals, bool pages)
{
    int fd = memfd_create("test-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (pages)
        ck_assert_int_eq(fallocate(fd, 0, 0, (off_t)bytes), 0);
    if (seals != 0)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

int talk_region_good_memfd(void)
{
    return talk_region_memfd(TALK_REGION_PIECE, F_SEAL_SHRINK, true);
}

uint64_t talk_region_begin(struct talk_lender *l)
{
    Kvcache__RegionReply *r =
        talk_ask(l->sock, WIRE_REGION_BEGIN, &l->shape.base, &kvcache__region_reply__descriptor);
    uint64_t region = r->region;

    ck_assert_uint_ne(region, 0);
    talk_free(r);
    return region;
}

uint32_t talk_region_part(struct talk_lender *l, uint64_t region, uint32_t n, uint8_t kind,
                          uint64_t bytes, uint64_t offset, int fd, uint32_t n_fds)
{
    static uint32_t seq = 500000;
    static uint8_t kinds[KVC_WIRE_FDS_MAX], body[4096];
    static uint64_t piece_bytes[KVC_WIRE_FDS_MAX], piece_offsets[KVC_WIRE_FDS_MAX];
    Kvcache__RegionPart m = KVCACHE__REGION_PART__INIT;
    struct wire_packet packet = {
        .type = WIRE_REGION_PART, .seq = ++seq, .body = body, .n_fds = n_fds};

    for (uint32_t i = 0; i < n; i++) {
        kinds[i] = kind;
        piece_bytes[i] = bytes;
        piece_offsets[i] = offset;
    }
    for (uint32_t i = 0; i < n_fds; i++)
        packet.fds[i] = fd;
    m.region = region;
    m.kinds = (ProtobufCBinaryData){n, kinds};
    m.n_piece_bytes = n;
    m.piece_bytes = piece_bytes;
    m.n_piece_offsets = offset != 0 ? n : 0;
    m.piece_offsets = piece_offsets;
    packet.body_len = (uint32_t)protobuf_c_message_pack(&m.base, body);
    ck_assert_int_eq(wire_send(l->sock, &packet), WIRE_OK);
    return seq;
}

void talk_region_add(struct talk_lender *l, uint64_t region, uint64_t bytes, uint64_t offset,
                     int fd)
{
    uint32_t seq =
        talk_region_part(l, region, 1, KVCACHE__MEMORY_KIND__MEMORY_MEMFD, bytes, offset, fd, 1);

    talk_free(talk_reply(l->sock, seq, WIRE_REGION_PART, &kvcache__empty__descriptor, NULL, NULL));
}

uint32_t talk_region_send(struct talk_lender *l, uint16_t type, uint64_t region)
{
    Kvcache__RegionEnd m = KVCACHE__REGION_END__INIT;

    m.region = region;
    return talk_send(l->sock, type, &m.base);
}

void talk_region_ask(struct talk_lender *l, uint16_t type, uint64_t region)
{
    talk_free(talk_reply(l->sock, talk_region_send(l, type, region), type,
                         &kvcache__empty__descriptor, NULL, NULL));
}

uint64_t talk_region_end(struct talk_lender *l, uint64_t region)
{
    Kvcache__RegionReply *r =
        talk_reply(l->sock, talk_region_send(l, WIRE_REGION_END, region), WIRE_REGION_END,
                   &kvcache__region_reply__descriptor, NULL, NULL);
    uint64_t stands = r->region;

    talk_free(r);
    return stands;
}

uint64_t talk_region_make(struct talk_lender *l, int fd)
{
    uint64_t region = talk_region_begin(l);

    talk_region_add(l, region, TALK_REGION_PIECE, 0, fd);
    return talk_region_end(l, region);
}

void talk_region_save(struct talk_lender *l, uint64_t region, uint8_t key, uint32_t block,
                      Kvcache__Save *m, Kvcache__SaveEntry *entry)
{
    static Kvcache__SaveEntry *entries[1];
    static uint8_t keys[KVC_KEY_BYTES];
    static uint32_t blocks[1];

    kvcache__save__init(m);
    kvcache__save_entry__init(entry);
    memset(keys, key, sizeof(keys));
    blocks[0] = block;
    entry->part = l->part;
    entry->epoch = l->epoch;
    entry->keys = (ProtobufCBinaryData){sizeof(keys), keys};
    entry->n_blocks = 1;
    entry->blocks = blocks;
    entries[0] = entry;
    m->n_entries = 1;
    m->entries = entries;
    m->region = region;
    m->notify = true;
    m->checksums = true;
}

void talk_region_save_refused(struct talk_lender *l, uint64_t region, uint32_t block,
                              kvc_status status, const char *field)
{
    Kvcache__Save m;
    Kvcache__SaveEntry entry;

    talk_region_save(l, region, 9, block, &m, &entry);
    talk_expect_error(l->sock, talk_send(l->sock, WIRE_SAVE, &m.base), status, field);
}

uint64_t talk_region_save_key(struct talk_lender *l, uint64_t region, uint8_t key, uint32_t block)
{
    Kvcache__Save m;
    Kvcache__SaveEntry entry;
    Kvcache__SaveReply *r;
    uint64_t save;

    talk_region_save(l, region, key, block, &m, &entry);
    r = talk_ask(l->sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor);
    ck_assert_uint_eq(r->n_entries, 1);
    ck_assert_uint_eq(r->entries[0]->states.data[0], KVCACHE__KEY_STATE__KEY_ASSIGNED);
    // Nothing that a worker could copy to.
    ck_assert_uint_eq(r->entries[0]->n_offsets + r->n_chunk_words + r->n_chunk_blocks, 0);
    save = r->save;
    ck_assert_uint_ne(save, 0);
    talk_free(r);
    return save;
}

uint64_t talk_region_published(struct talk_lender *l)
{
    Kvcache__StatsReply *r = talk_ask(l->sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t n = r->published_blocks;

    talk_free(r);
    return n;
}
