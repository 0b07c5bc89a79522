/* What a daemon that is right would reply, and the memory that it gives away. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/pack.h"
#include "tests/fuzz/hostile.h"

#define PAGE_BYTES ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)
#define SLOT_BYTES (2u * 4096u)

/* Memory that the daemon gives away, made once. */
static struct {
    bool made;
    int page, extents[2 * HOSTILE_EXTENTS];
} memory;

int hostile_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    FUZZ_REQUIRE(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    FUZZ_REQUIRE(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void make_memory(void)
{
    if (memory.made)
        return;
    memory.made = true;
    memory.page = hostile_memfd(PAGE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
    for (uint32_t i = 0; i < 2 * HOSTILE_EXTENTS; i++)
        memory.extents[i] = hostile_memfd(HOSTILE_EXTENT_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
}

int hostile_extent(void)
{
    make_memory();
    return memory.extents[0];
}

void hostile_end(void)
{
    if (!memory.made)
        return;
    close(memory.page);
    for (uint32_t i = 0; i < 2 * HOSTILE_EXTENTS; i++)
        close(memory.extents[i]);
}

static struct bytes right_hello(struct hostile *h)
{
    struct msg_hello_reply reply = {.version = 1,
                                    .session = 1 + h->served,
                                    .secret = (const uint8_t *)"sixteen secrets",
                                    .boot_epoch = 7,
                                    .device = "host",
                                    .tenant = "t",
                                    .build = "b",
                                    .page = true,
                                    .lease_ms_max = 1000};

    for (uint32_t t = 0; t < MSG_TIERS; t++) {
        reply.tiers[t].bytes = HOSTILE_EXTENTS * HOSTILE_EXTENT_BYTES;
        reply.tiers[t].extent_bytes = HOSTILE_EXTENT_BYTES;
        reply.tiers[t].extents = HOSTILE_EXTENTS;
    }
    return codec_hello(h->codec, &reply);
}

static struct bytes right_register(struct hostile *h, const struct msg_register *request)
{
    uint64_t offsets[KVC_SLICES_MAX];
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES] = {0};
    struct pack_layout layout = {.slice_offsets = offsets};
    struct msg_register_reply reply = {
        .part = 1, .epoch = 1, .fingerprint = fingerprint, .extents = 2 * HOSTILE_EXTENTS};

    if (pack_layout_init(&layout, request->slice_bytes.values, (uint32_t)request->slice_bytes.n) ==
        KVC_OK) {
        reply.slot_bytes = layout.slot_bytes;
        pack_layout_fingerprint(&layout, request->block_tokens, NULL, fingerprint);
    }
    return codec_register(h->codec, &reply);
}

static struct bytes right_map(struct hostile *h, const struct msg_map *request, int *fds,
                              uint32_t *n_fds)
{
    static const uint32_t extents[] = {0, 1, 1u << 31, 1u << 31 | 1};
    static const uint8_t kinds[] = {1, 1, 1, 1};
    struct msg_map_reply reply = {.extents = extents, .kinds = kinds, .cursor = 4};

    make_memory();
    if (request->cursor == 0) {
        reply.n = *n_fds = 2 * HOSTILE_EXTENTS;
        memcpy(fds, memory.extents, sizeof(memory.extents));
    }
    return codec_map(h->codec, &reply);
}

static uint32_t keys_of(struct bytes keys)
{
    uint32_t n = (uint32_t)(keys.len / KVC_KEY_BYTES);

    return n < KVC_KEYS_MAX ? n : KVC_KEYS_MAX;
}

static struct bytes right_save(struct hostile *h, const struct msg_save *request)
{
    static uint8_t states[KVC_KEYS_MAX], tiers[KVC_KEYS_MAX];
    static uint64_t offsets[KVC_KEYS_MAX];
    static uint32_t generations[KVC_KEYS_MAX];
    struct msg_save_entry_reply entries[KVC_ENTRIES_MAX];
    uint32_t blocks = 0, word = h->served % KVC_PAGE_WORDS;
    uint64_t number = 1000 + h->served;
    struct msg_save_reply reply = {.save = 5 + h->served,
                                   .entries = entries,
                                   .chunk_blocks = &blocks,
                                   .chunk_words = &word,
                                   .chunk_numbers = &number,
                                   .n_chunks = 1};

    memset(states, 1, sizeof(states));
    for (uint32_t i = 0; i < KVC_KEYS_MAX; i++) {
        tiers[i] = i % 2;
        offsets[i] = i / 2 % 8 * SLOT_BYTES;
    }
    for (; reply.n_entries < request->n_entries && reply.n_entries < KVC_ENTRIES_MAX;
         reply.n_entries++) {
        uint32_t n = keys_of(request->entries[reply.n_entries].keys);

        entries[reply.n_entries] =
            (struct msg_save_entry_reply){states, n, tiers, offsets, generations, n};
        blocks += n;
    }
    return codec_save(h->codec, &reply);
}

static struct bytes right_load(struct hostile *h, const struct msg_load *request)
{
    static uint8_t tiers[KVC_KEYS_MAX], checked[KVC_KEYS_MAX];
    static uint64_t offsets[KVC_KEYS_MAX], checksums[KVC_KEYS_MAX];
    static uint32_t generations[KVC_KEYS_MAX];
    struct msg_load_reply reply = {.word = h->served % KVC_PAGE_WORDS,
                                   .number = 3000 + h->served,
                                   .tiers = tiers,
                                   .offsets = offsets,
                                   .generations = generations,
                                   .checksums = checksums,
                                   .checked = checked,
                                   .n = request->count < KVC_KEYS_MAX ? request->count
                                                                      : KVC_KEYS_MAX};

    checked[0] = 1;
    offsets[1] = HOSTILE_EXTENT_BYTES - SLOT_BYTES;
    offsets[2] = HOSTILE_EXTENT_BYTES;
    tiers[3] = 1;
    return codec_load(h->codec, &reply);
}

static struct bytes right_lookup(struct hostile *h, const struct msg_lookup *request)
{
    struct msg_lookup_reply reply = {.count = request->offset + keys_of(request->keys),
                                     .lease = request->probe ? 0 : 17,
                                     .token = (const uint8_t *)"a lease's token",
                                     .lease_ms = 1000};

    return codec_lookup(h->codec, &reply);
}

struct bytes hostile_right(struct hostile *h, const struct request *r, int *fds, uint32_t *n_fds)
{
    const struct msg_outcome outcome = {.save = 5, .published = 1};
    const struct msg_adopt_reply adopt = {.lease = 18, .count = 3, .lease_ms = 5};
    const struct msg_stats_reply stats = {.version = "v", .device = "host"};
    const struct msg_list_reply list = {0};
    const struct msg_ping_reply ping = {.payload = r->ping.payload, .boot_epoch = 7};

    switch (r->type) {
    case WIRE_HELLO:
        make_memory();
        fds[0] = memory.page;
        *n_fds = 1;
        return right_hello(h);
    case WIRE_REGISTER:
        return right_register(h, &r->register_);
    case WIRE_MAP:
        return right_map(h, &r->map, fds, n_fds);
    case WIRE_LOOKUP:
        return right_lookup(h, &r->lookup);
    case WIRE_SAVE:
        return right_save(h, &r->save);
    case WIRE_LOAD:
        return right_load(h, &r->load);
    case WIRE_ABORT:
        return codec_abort(h->codec, &outcome);
    case WIRE_ADOPT:
        return codec_adopt(h->codec, &adopt);
    case WIRE_EXTEND:
        return codec_extend(h->codec, 3);
    case WIRE_STATS:
        return codec_stats(h->codec, &stats);
    case WIRE_LIST:
        return codec_list(h->codec, &list);
    case WIRE_PING:
        return codec_ping(h->codec, &ping);
    default:
        return codec_empty(h->codec);
    }
}
