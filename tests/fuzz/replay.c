/*
 * Runs a target over its corpus, or over the one file that KVC_FUZZ_FILE names, where libFuzzer is
 * not linked in.
 */
#include <dirent.h>
#include <errno.h>
#include <uv.h>

#include "tests/fuzz/fuzz.h"
#include "tests/lib/check_main.h"

static uint8_t input[1u << 20];

static void run_file(const char *path)
{
    FILE *file = fopen(path, "re");
    size_t size;
    uint8_t *exact;

    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    size = fread(input, 1, sizeof(input), file);
    fclose(file);
    /* Exactly as large as the input, so that a sanitizer sees what reads behind it. */
    exact = malloc(size > 0 ? size : 1);
    ck_assert_ptr_nonnull(exact);
    memcpy(exact, input, size);
    /* The last one that is named is the one that failed. */
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void finish(void)
{
    if (fuzz_end != NULL)
        fuzz_end();
    /* libuv keeps descriptors of its own until then. */
    uv_library_shutdown();
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

START_TEST(test_corpus)
{
    const char *only = getenv("KVC_FUZZ_FILE");
    struct dirent **entries;
    char folder[64], path[400];
    int n;

    if (only != NULL) {
        run_file(only);
        finish();
        return;
    }
    snprintf(folder, sizeof(folder), "tests/fuzz/corpus/%s", fuzz_name);
    n = scandir(folder, &entries, is_input, alphasort);
    ck_assert_msg(n > 0, "%s holds no inputs", folder);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        run_file(path);
        free(entries[i]);
    }
    free(entries);
    finish();
}
END_TEST

CHECK_MAIN("fuzz/corpus", CHECK_LONG_S, test_corpus)
