// Numbers that look random and are the same each time. A state is any number but 0.
#ifndef KVC_TESTS_LIB_RANDOM_H
#define KVC_TESTS_LIB_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RANDOM_STATE 0x9E3779B97F4A7C15ull

static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545F4914F6CDD1Dull;
}

static inline void random_fill(uint64_t *state, void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t value = random_next(state);

        memcpy((uint8_t *)to + i, &value, bytes - i < 8 ? bytes - i : 8);
    }
}

#endif
