/*
 * The planner and the copies on the host, against what pack.h says, done the plain way: layouts of
 * any sizes, chunks, and, where it all fits into a few MiB, gather, scatter and checksums of odd
 * shapes with bytes all around that must stay as they are.
 */
#include "kernels/pack.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "pack";

#define SLICES_TRIED (KVC_SLICES_MAX + 8u)
#define COPY_BYTES   (1u << 18) /* of the engine's side, and of the slots' */

static uint32_t sizes[SLICES_TRIED];
static uint64_t offsets[SLICES_TRIED];
static struct pack_slice slices[KVC_SLICES_MAX];
static uint64_t starts[KVC_SLICES_MAX];
static uint8_t engine[COPY_BYTES], slots[COPY_BYTES], want[COPY_BYTES];
static uint8_t pattern[COPY_BYTES + 1]; /* bytes to begin with, from 0 or from 1 on */

static uint64_t up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static uint32_t choose_size(struct fuzz_input *in)
{
    uint32_t how = fuzz_u8(in);

    if (how < 160)
        return how * 16;
    return how < 224 ? fuzz_u16(in) : fuzz_u32(in);
}

static uint32_t choose_slices(struct fuzz_input *in)
{
    uint32_t how = fuzz_u8(in), n = how < 200 ? how % 24 : fuzz_u16(in) % (SLICES_TRIED + 1);
    uint32_t period = 1 + fuzz_u8(in) % 8;

    for (uint32_t i = 0; i < n; i++)
        sizes[i] = i < period ? choose_size(in) : sizes[i - period];
    return n;
}

static bool lay_out(struct pack_layout *layout, uint32_t n)
{
    bool fine = n > 0 && n <= KVC_SLICES_MAX;
    uint64_t useful = 0, at = 0;

    for (uint32_t i = 0; i < n; i++) {
        fine = fine && sizes[i] > 0 && sizes[i] <= KVC_SLICE_BYTES_MAX;
        useful += sizes[i];
    }
    fine = fine && useful <= KVC_BLOCK_BYTES_MAX;
    layout->slice_offsets = offsets;
    FUZZ_REQUIRE((pack_layout_init(layout, sizes, n) == KVC_OK) == fine);
    if (!fine)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        at = up(at, KVC_SLICE_ALIGN);
        FUZZ_REQUIRE(offsets[i] == at);
        at += sizes[i];
    }
    at = up(at, KVC_SLOT_ALIGN);
    FUZZ_REQUIRE(layout->slot_bytes == (at < KVC_SLOT_BYTES_MIN ? KVC_SLOT_BYTES_MIN : at));
    FUZZ_REQUIRE(layout->block_bytes == useful);
    return true;
}

static void cut(struct fuzz_input *in, uint64_t first_bytes)
{
    struct pack_cut state = {0};
    uint64_t bytes = 0, blocks = 0;

    for (uint32_t i = 0; i < 200; i++) {
        uint64_t block = in->left > 0 ? 1 + fuzz_u32(in) % (32u << 20) : first_bytes;
        bool starts_new =
            blocks == 0 || blocks == KVC_CHUNK_BLOCKS || bytes + block > KVC_CHUNK_BYTES;

        FUZZ_REQUIRE(pack_cut_next(&state, block) == starts_new, "block %u", i);
        bytes = starts_new ? block : bytes + block;
        blocks = starts_new ? 1 : blocks + 1;
    }
}

static uint64_t mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static uint64_t plain_checksum(const uint8_t *bytes, uint32_t len, uint32_t slice)
{
    uint64_t sum = 0;

    for (uint64_t u = 0; u * 16 < len; u++) {
        uint64_t half[2] = {0}, key = mix64((uint64_t)slice + 1) + u * 0x9E3779B97F4A7C15ull;
        unsigned __int128 product;

        memcpy(half, bytes + u * 16, len - u * 16 < 16 ? len - u * 16 : 16);
        product = (unsigned __int128)(half[0] ^ key) * (half[1] ^ key ^ 0xBB67AE8584CAA73Bull);
        sum += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return sum;
}

static void make_pattern(void)
{
    uint64_t seed = 1;

    for (size_t i = 0; pattern[0] == 0 && i < sizeof(pattern); i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        pattern[i] = (uint8_t)(seed >> 56) | (i == 0);
    }
}

/* Where the slices lie in the engine's memory; false when they do not fit. */
static bool place(struct fuzz_input *in, const struct pack_layout *layout, uint32_t ids)
{
    uint32_t gap = fuzz_u8(in), shift = fuzz_u8(in) % 64;
    uint64_t used = shift;

    for (uint32_t s = 0; s < layout->n_slices; s++) {
        slices[s].stride = (uint64_t)sizes[s] + gap;
        starts[s] = used;
        used += ids * slices[s].stride;
        if (used > COPY_BYTES)
            return false;
        slices[s].base = engine + starts[s];
    }
    return true;
}

static void run(const struct pack_job *job, bool gather)
{
    const struct pack_layout *l = job->layout;
    uint8_t *from = gather ? engine : slots, *to = gather ? slots : engine;

    make_pattern();
    memcpy(engine, pattern, sizeof(engine));
    memcpy(slots, pattern + 1, sizeof(slots));
    memcpy(want, to, COPY_BYTES);
    for (uint32_t b = 0; b < job->n_blocks; b++)
        for (uint32_t s = job->first_slice; s < job->first_slice + job->n_slices; s++) {
            uint64_t paged = starts[s] + job->blocks[b].id * slices[s].stride;
            uint64_t packed = (uint64_t)(job->blocks[b].slot - slots) + offsets[s];

            memcpy(want + (gather ? packed : paged), from + (gather ? paged : packed), sizes[s]);
        }
    (gather ? pack_host_gather : pack_host_scatter)(job);
    FUZZ_REQUIRE(memcmp(to, want, COPY_BYTES) == 0);
    for (uint32_t b = 0; job->cells != NULL && b < job->n_blocks; b++) {
        uint64_t sum = 0;

        for (uint32_t s = job->first_slice; s < job->first_slice + job->n_slices; s++)
            sum += plain_checksum(job->blocks[b].slot + l->slice_offsets[s], sizes[s], s);
        FUZZ_REQUIRE(job->cells[b] == sum, "block %u", b);
    }
}

static void copy(struct fuzz_input *in, const struct pack_layout *layout)
{
    struct pack_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    struct pack_job job = {.layout = layout, .slices = slices, .blocks = blocks};
    uint32_t ids, step;

    job.n_blocks = fuzz_u8(in) % (KVC_CHUNK_BLOCKS + 1);
    ids = job.n_blocks + fuzz_u8(in) % 4;
    step = 1 + fuzz_u8(in) % 7;
    job.cells = fuzz_u8(in) & 1 ? cells : NULL;
    job.first_slice = fuzz_u8(in) % (layout->n_slices + 1);
    job.n_slices = fuzz_u8(in) & 1 ? layout->n_slices - job.first_slice
                                   : fuzz_u8(in) % (layout->n_slices - job.first_slice + 1);
    if (job.n_blocks * layout->slot_bytes > COPY_BYTES || !place(in, layout, ids))
        return;
    /* Distinct ids, in another order where step and their number have no common divisor. */
    for (uint32_t b = 0, id = 0; b < job.n_blocks; b++, id = (id + step) % ids) {
        blocks[b].id = ids % step == 0 || step == 1 || ids % step != 1 ? b : id;
        blocks[b].slot = slots + (job.n_blocks - 1 - b) * layout->slot_bytes;
    }
    run(&job, true);
    run(&job, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct pack_layout layout = {0};
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];

    if (!lay_out(&layout, choose_slices(&in)))
        return 0;
    pack_layout_fingerprint(&layout, fuzz_u32(&in), NULL, fingerprint);
    if (layout.slot_bytes <= COPY_BYTES)
        copy(&in, &layout);
    cut(&in, layout.block_bytes);
    return 0;
}
