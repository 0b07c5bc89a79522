#include "tests/lib/kv.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/gpu.h"

#define GAP      24u // behind each block of a slice
#define GAP_BYTE 0xa5

void kv_init(struct kv *kv, const uint32_t *slice_bytes, uint32_t n_slices, uint32_t n_blocks)
{
    uint64_t at = 0;

    ck_assert_uint_le(n_slices, KV_SLICES_MAX);
    memset(kv, 0, sizeof(*kv));
    for (uint32_t i = 0; i < n_slices; i++)
        kv->bytes += (uint64_t)n_blocks * (slice_bytes[i] + GAP);
    kv->memory = malloc(kv->bytes);
    ck_assert_ptr_nonnull(kv->memory);
    memset(kv->memory, GAP_BYTE, kv->bytes);
    if (gpu_is_used()) {
        kv->device = gpu_alloc(kv->bytes);
        gpu_write(kv->device, kv->memory, kv->bytes);
    }
    for (uint32_t i = 0; i < n_slices; i++) {
        kv->slices[i].base = (kv->device != NULL ? kv->device : kv->memory) + at;
        kv->slices[i].stride = slice_bytes[i] + GAP;
        kv->slices[i].bytes = slice_bytes[i];
        at += n_blocks * kv->slices[i].stride;
    }
    memcpy(kv->desc.namespace_digest, "a namespace of the tests, 32 by.", KVC_NAMESPACE_BYTES);
    kv->desc.name = "test";
    kv->desc.block_tokens = 16;
    kv->desc.slices = kv->slices;
    kv->desc.n_slices = n_slices;
    kv->desc.n_blocks = n_blocks;
    for (uint32_t b = 0; b < n_blocks; b++)
        kv_clear(kv, b);
    if (check_copies_by_daemon())
        kv_lend(kv);
}

void kv_free(struct kv *kv)
{
    if (kv->device != NULL)
        gpu_free(kv->device);
    if (kv->lent.base != NULL) {
        munmap(kv->memory, kv->bytes);
        close(kv->lent.fd);
    } else {
        free(kv->memory);
    }
    kv->lent.base = NULL;
    kv->memory = kv->device = NULL;
}

void kv_lend(struct kv *kv)
{
    uint8_t *memory;
    int fd;

    if (kv->device != NULL)
        kv->desc.copy = KVC_COPY_DAEMON;
    if (kv->device != NULL || kv->lent.base != NULL)
        return;
    fd = memfd_create("test-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)kv->bytes), 0);
    memory = mmap(NULL, kv->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    memcpy(memory, kv->memory, kv->bytes);
    for (uint32_t i = 0; i < kv->desc.n_slices; i++)
        kv->slices[i].base = memory + ((uint8_t *)kv->slices[i].base - kv->memory);
    free(kv->memory);
    kv->memory = memory;
    kv->lent = (kvc_memory){.fd = fd, .base = memory, .bytes = kv->bytes};
    kv->desc.copy = KVC_COPY_DAEMON;
    kv->desc.memories = &kv->lent;
    kv->desc.n_memories = 1;
}

static uint8_t *at(const struct kv *kv, uint32_t slice, uint32_t block)
{
    uint8_t *there = (uint8_t *)kv->slices[slice].base + block * kv->slices[slice].stride;

    return kv->device != NULL ? kv->memory + (there - kv->device) : there;
}

static void upload(const struct kv *kv, uint32_t slice, uint32_t block)
{
    const uint8_t *here = at(kv, slice, block);

    if (kv->device != NULL)
        gpu_write(kv->device + (here - kv->memory), here, kv->slices[slice].bytes);
}

// With the gap behind it.
const uint8_t *kv_at(const struct kv *kv, uint32_t slice, uint32_t block)
{
    uint8_t *here = at(kv, slice, block);

    if (kv->device != NULL)
        gpu_read(here, kv->device + (here - kv->memory), kv->slices[slice].bytes + GAP);
    return here;
}

static uint8_t content(uint64_t seed, uint32_t slice, uint32_t byte)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + slice * 0x100000001b3u + (byte >> 3) * 0xff51u;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint8_t)(x >> (8 * (byte & 7)));
}

void kv_fill(struct kv *kv, uint32_t block, uint64_t seed)
{
    for (uint32_t s = 0; s < kv->desc.n_slices; s++) {
        for (uint32_t i = 0; i < kv->slices[s].bytes; i++)
            at(kv, s, block)[i] = content(seed, s, i);
        upload(kv, s, block);
    }
}

void kv_clear(struct kv *kv, uint32_t block)
{
    for (uint32_t s = 0; s < kv->desc.n_slices; s++) {
        memset(at(kv, s, block), 0, kv->slices[s].bytes);
        upload(kv, s, block);
    }
}

static bool gap_is_whole(const uint8_t *gap)
{
    for (uint32_t i = 0; i < GAP; i++)
        if (gap[i] != GAP_BYTE)
            return false;
    return true;
}

bool kv_holds(const struct kv *kv, uint32_t block, uint64_t seed)
{
    for (uint32_t s = 0; s < kv->desc.n_slices; s++) {
        const uint8_t *bytes = kv_at(kv, s, block);

        for (uint32_t i = 0; i < kv->slices[s].bytes; i++)
            if (bytes[i] != content(seed, s, i))
                return false;
        if (!gap_is_whole(bytes + kv->slices[s].bytes))
            return false;
    }
    return true;
}

bool kv_cleared(const struct kv *kv, uint32_t block)
{
    for (uint32_t s = 0; s < kv->desc.n_slices; s++) {
        const uint8_t *bytes = kv_at(kv, s, block);

        for (uint32_t i = 0; i < kv->slices[s].bytes; i++)
            if (bytes[i] != 0)
                return false;
        if (!gap_is_whole(bytes + kv->slices[s].bytes))
            return false;
    }
    return true;
}

void kv_keys(uint64_t prompt, uint32_t first, uint32_t n, uint8_t *keys)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t hash[2] = {(prompt + 1) * 0x9e3779b97f4a7c15u, first + i};

        kvc_key(hash, sizeof(hash), keys + (size_t)i * KVC_KEY_BYTES);
    }
}

void kv_ids(uint32_t first, uint32_t n, uint32_t *ids)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = first + i;
}
