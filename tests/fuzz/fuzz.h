/*
 * Fuzz targets. Each fuzz_NAME.c is one target: LLVMFuzzerTestOneInput turns any bytes into a case
 * and aborts when something is not as it must be. `make fuzz` runs them with libFuzzer; `make
 * check` runs each over the files of corpus/NAME (replay.c), built like every other test.
 *
 * What a target found becomes a named test where the fault was, and the input a file of the corpus.
 */
#ifndef KVC_TESTS_FUZZ_FUZZ_H
#define KVC_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The name of the target, and so of its folder in corpus/. */
extern const char fuzz_name[];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends what a target keeps from one input to the next, if it keeps any. */
void fuzz_end(void) __attribute__((weak));

#define FUZZ_REQUIRE(condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, " " __VA_ARGS__);                                                      \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Reads numbers off the front of an input; zeros behind its end. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

static inline uint32_t fuzz_u8(struct fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static inline uint32_t fuzz_u16(struct fuzz_input *in)
{
    uint32_t low = fuzz_u8(in);

    return low | fuzz_u8(in) << 8;
}

static inline uint32_t fuzz_u32(struct fuzz_input *in)
{
    uint32_t low = fuzz_u16(in);

    return low | fuzz_u16(in) << 16;
}

static inline uint64_t fuzz_u64(struct fuzz_input *in)
{
    uint64_t low = fuzz_u32(in);

    return low | (uint64_t)fuzz_u32(in) << 32;
}

/* At most `want` bytes, in place. */
static inline const uint8_t *fuzz_bytes(struct fuzz_input *in, size_t want, size_t *got)
{
    const uint8_t *at = in->at;

    *got = want < in->left ? want : in->left;
    in->at += *got;
    in->left -= *got;
    return at;
}

#endif
