#include "client/ctl/content.h"

#include <string.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return x ^ (x >> 32);
}

static uint64_t start_of(const uint8_t *key, uint32_t slice)
{
    uint64_t half[2];
    memcpy(half, key, sizeof(half));
    return mix(half[0] ^ mix(half[1] + slice + 1));
}

/* Words are a multiplied counter: cheap, different at every offset, and never zero for long. */
static uint64_t word_at(uint64_t start, size_t i)
{
    uint64_t x = (start + i) * 0x9e3779b97f4a7c15ull;
    return x ^ (x >> 29);
}

void content_write(const uint8_t key[KVC_KEY_BYTES], uint32_t slice, void *to, size_t bytes)
{
    uint64_t start = start_of(key, slice);
    uint8_t *at = to;
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = word_at(start, i);
        memcpy(at + i * 8, &word, 8);
    }
    uint64_t last = word_at(start, words);
    memcpy(at + words * 8, &last, bytes % 8);
}

bool content_matches(const uint8_t key[KVC_KEY_BYTES], uint32_t slice, const void *from,
                     size_t bytes)
{
    uint64_t start = start_of(key, slice), differences = 0;
    const uint8_t *at = from;
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, at + i * 8, 8);
        differences |= word ^ word_at(start, i);
    }
    uint64_t last = word_at(start, words);
    return differences == 0 && memcmp(at + words * 8, &last, bytes % 8) == 0;
}
