/* Settings: values, rows, and where they are read from. */
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/config_shares.h"
#include "daemon/config_source.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tmpdir.h"

static const char *size_text(uint64_t bytes, char text[VALUE_TEXT_MAX])
{
    return value_format(VALUE_SIZE, bytes, NULL, text);
}

static const struct {
    const char *text;
    uint64_t bytes;
} sizes[] = {
    {"0", 0},
    {"1", 1},
    {"4096", 4096},
    {"1K", 1024},
    {"1k", 1024},
    {"256M", 256ull << 20},
    {"1G", 1ull << 30},
    {"3T", 3ull << 40},
    {"0G", 0},
    {"007M", 7ull << 20},
    {"18446744073709551615", UINT64_MAX},
    {"16777215T", 16777215ull << 40},
};

START_TEST(test_sizes)
{
    uint64_t bytes = 1234;

    ck_assert_msg(value_parse(VALUE_SIZE, sizes[_i].text, NULL, &bytes), "%s", sizes[_i].text);
    ck_assert_uint_eq(bytes, sizes[_i].bytes);
}
END_TEST

static const char *const no_sizes[] = {
    "",          " ",
    "-1",        "+1",
    "1.5G",      "1,5G",
    "G",         "1GB",
    "1 G",       "1G ",
    "0x1",       "1e9",
    "inf",       "1P",
    "M1",        "1\x80",
    "1GiB",      "18446744073709551616",
    "16777216T", "99999999999999999999999999999999K",
};

START_TEST(test_no_sizes)
{
    uint64_t bytes = 1234;

    ck_assert_msg(!value_parse(VALUE_SIZE, no_sizes[_i], NULL, &bytes), "%s", no_sizes[_i]);
    ck_assert_uint_eq(bytes, 1234);
}
END_TEST

START_TEST(test_format)
{
    char text[24];

    ck_assert_str_eq(size_text(0, text), "0");
    ck_assert_str_eq(size_text(1000, text), "1000");
    ck_assert_str_eq(size_text(1024, text), "1K");
    ck_assert_str_eq(size_text(1536, text), "1536");
    ck_assert_str_eq(size_text(256ull << 20, text), "256M");
    ck_assert_str_eq(size_text(1ull << 50, text), "1024T");
    ck_assert_str_eq(size_text(UINT64_MAX, text), "18446744073709551615");
}
END_TEST

#define DIGEST "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

START_TEST(test_quotas)
{
    struct config_quota quotas[CONFIG_QUOTAS_MAX];
    char why[CONFIG_WHY_MAX];
    uint32_t n = 9;

    ck_assert(config_quotas_parse("", quotas, &n, why));
    ck_assert_uint_eq(n, 0);
    ck_assert(config_quotas_parse("default gpu=1G;" DIGEST " leases=70 host=3M", quotas, &n, why));
    ck_assert_uint_eq(n, 2);
    ck_assert(quotas[0].all && quotas[0].gpu_bytes == 1u << 30 && quotas[0].host_bytes == 0);
    ck_assert(!quotas[1].all && quotas[1].digest[31] == 0xff && quotas[1].digest[1] == 0x11);
    ck_assert(quotas[1].leases == 70 && quotas[1].host_bytes == 3u << 20);
}
END_TEST

static const char *const no_quotas[] = {
    "gpu=1G",
    "default",
    "default gpu",
    "default gpu=",
    "default gpu=0",
    "default gpu=-1",
    "default gpu=1P",
    "default gpu=1 gpu=2",
    "default disk=1",
    "default leases=4294967296",
    "default gpu=1;default host=1",
    "default gpu=1;",
    ";default gpu=1",
    DIGEST "0 gpu=1",
    "0011 gpu=1",
    DIGEST " gpu=1;" DIGEST " host=1",
};

START_TEST(test_no_quotas)
{
    struct config_quota quotas[CONFIG_QUOTAS_MAX];
    char why[CONFIG_WHY_MAX] = "";
    uint32_t n = 9;
    bool trailing = _i == 11; /* a list may end with a semicolon */

    ck_assert_msg(config_quotas_parse(no_quotas[_i], quotas, &n, why) == trailing, "%s",
                  no_quotas[_i]);
    ck_assert(trailing || strncmp(why, "namespace-quota: ", 17) == 0);
    ck_assert(trailing || n == 9);
}
END_TEST

/* Each adds to those before it in the same place; a later place begins anew. */
START_TEST(test_quotas_add_up)
{
    struct config config, fresh;
    char why[CONFIG_WHY_MAX], differing[64];

    config_init(&config);
    ck_assert(config_set(&config, "namespace-quota", "default gpu=4M", CONFIG_FILE, why));
    ck_assert(config_set(&config, "namespace-quota", DIGEST " host=4M", CONFIG_FILE, why));
    ck_assert_str_eq(config.namespace_quota, "default gpu=4M; " DIGEST " host=4M");
    ck_assert(!config_set(&config, "namespace-quota", "default gpu=5M", CONFIG_FILE, why));
    ck_assert(config_check(&config, why));
    ck_assert(config_set(&config, "namespace-quota", "default gpu=1G", CONFIG_ARGUMENT, why));
    ck_assert_str_eq(config.namespace_quota, "default gpu=1G");
    ck_assert(!config_check(&config, why)); /* larger than the tier */
    ck_assert_ptr_nonnull(strstr(why, "larger than the tier"));
    ck_assert(!config_change(&config, "namespace-quota", "default gpu=2G", why));
    ck_assert_str_eq(config.namespace_quota, "default gpu=1G");
    ck_assert(config_change(&config, "namespace-quota", "default gpu=2M", why));
    ck_assert(config_change(&config, "namespace-quota", "default leases=5", why));
    ck_assert_str_eq(config.namespace_quota, "default leases=5");
    config_init(&fresh);
    config_adopt(&config, &fresh, differing, sizeof(differing));
    ck_assert_str_eq(config.namespace_quota, "");
    ck_assert_str_eq(differing, "");
}
END_TEST

START_TEST(test_defaults)
{
    struct config config;

    config_init(&config);
    ck_assert_str_eq(config.sockets, "/run/kvcached/kvcached.sock");
    ck_assert_uint_eq(config.socket_mode, 0660);
    ck_assert_uint_eq(config.device, CONFIG_DEVICE_AUTO);
    ck_assert_uint_eq(config.gpu_bytes, 256ull << 20);
    ck_assert_uint_eq(config.host_bytes, 1ull << 30);
    ck_assert_uint_eq(config.log_level, LOG_LEVEL_INFO);
    /* Those that PROTOCOL.md tells. */
    ck_assert_uint_eq(config.lease_ms, KVC_LEASE_MS_DEFAULT);
    ck_assert_uint_eq(config.save_proof_ms, KVC_SAVE_PROOF_MS);
    ck_assert_uint_eq(config.promotion_ms, KVC_PROMOTION_MS);
    ck_assert_uint_eq(config.drain_ms, KVC_DRAIN_MS);
}
END_TEST

static const struct {
    enum value_kind kind;
    const char *text;
    uint64_t value;
    const char *back;
} values[] = {
    {VALUE_TIME, "0ms", 0, "0ms"},     {VALUE_TIME, "1500ms", 1500, "1500ms"},
    {VALUE_TIME, "90s", 90000, "90s"}, {VALUE_TIME, "120s", 120000, "2m"},
    {VALUE_TIME, "1H", 3600000, "1h"}, {VALUE_SHARE, "10%", 100, "10%"},
    {VALUE_SHARE, "0.5%", 5, "0.5%"},  {VALUE_SHARE, "100.0%", 1000, "100%"},
    {VALUE_COUNT, "64", 64, "64"},     {VALUE_MODE, "0660", 0660, "0660"},
    {VALUE_MODE, "7", 7, "0007"},
};

START_TEST(test_values)
{
    char text[VALUE_TEXT_MAX];
    uint64_t value = 77;

    ck_assert(value_parse(values[_i].kind, values[_i].text, NULL, &value));
    ck_assert_uint_eq(value, values[_i].value);
    ck_assert_str_eq(value_format(values[_i].kind, value, NULL, text), values[_i].back);
}
END_TEST

static const struct {
    enum value_kind kind;
    const char *text;
} no_values[] = {
    {VALUE_TIME, "5"},
    {VALUE_TIME, ""},
    {VALUE_TIME, "5d"},
    {VALUE_TIME, "-5s"},
    {VALUE_TIME, "5 s"},
    {VALUE_TIME, "1.5s"},
    {VALUE_COUNT, "1K"},
    {VALUE_COUNT, ""},
    {VALUE_SHARE, "10"},
    {VALUE_SHARE, "%"},
    {VALUE_SHARE, "1.25%"},
    {VALUE_SHARE, "-1%"},
    {VALUE_SHARE, "1.%"},
    {VALUE_MODE, "8"},
    {VALUE_MODE, ""},
    {VALUE_MODE, "0x7"},
    {VALUE_TIME, "18446744073709551615h"},
};

START_TEST(test_no_values)
{
    uint64_t value = 77;

    ck_assert(!value_parse(no_values[_i].kind, no_values[_i].text, NULL, &value));
    ck_assert_uint_eq(value, 77);
}
END_TEST

static enum config_action load(struct config *config, char *const argv[], char *const environment[],
                               char *why)
{
    struct config_source source = {.argv = argv, .environment = environment};

    while (argv[source.argc])
        source.argc++;
    return config_load(config, &source, why);
}

static char *write_file(const char *text)
{
    static char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s", tmpdir_file("conf"));
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    return path;
}

START_TEST(test_arguments)
{
    char *const argv[] = {"kvcached",    "--gpu-bytes", "32M",         "--host-bytes=64M",
                          "--socket",    "/s",          "--log-level", "debug",
                          "--gpu-bytes", "48M",         NULL};
    struct config config;
    char why[CONFIG_WHY_MAX];

    ck_assert_int_eq(load(&config, argv, NULL, why), CONFIG_RUN);
    ck_assert_uint_eq(config.gpu_bytes, 48u << 20); // the later one wins
    ck_assert_uint_eq(config.host_bytes, 64u << 20);
    ck_assert_str_eq(config.sockets, "/s");
    ck_assert_uint_eq(config.log_level, LOG_LEVEL_DEBUG);
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", "--help", NULL}, NULL, why), CONFIG_HELP);
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", "--version", NULL}, NULL, why),
                     CONFIG_VERSION);
}
END_TEST

/* Default, file, environment, argument: the later one wins, and each value says where it is from.
 */
START_TEST(test_precedence)
{
    char *file = write_file("# a comment\n[kvcached]\ngpu-bytes = 8M ; here too\n"
                            "host-bytes=16M\nlease-time = 2m\n");
    char *const argv[] = {"kvcached", "--config", file, "--lease-time", "3s", NULL};
    char *const environment[] = {"OTHER=1", "KVCACHED_HOST_BYTES=32M", "KVCACHED_LEASE_TIME=9s",
                                 NULL};
    static const struct {
        const char *name, *value, *origin;
    } expected[] = {{"gpu-bytes", "8M", "file"},
                    {"host-bytes", "32M", "environment"},
                    {"lease-time", "3s", "argument"},
                    {"save-time", "30s", "default"}};
    struct config config;
    struct config_entry entry;
    char why[CONFIG_WHY_MAX];

    ck_assert_msg(load(&config, argv, environment, why) == CONFIG_RUN, "%s", why);
    for (size_t i = 0; i < 4; i++) {
        config_get(&config, config_find(expected[i].name), &entry);
        ck_assert_str_eq(entry.value, expected[i].value);
        ck_assert_str_eq(entry.origin, expected[i].origin);
    }
}
END_TEST

static const struct {
    const char *text, *why;
} bad_files[] = {
    {"gpu-byts = 1M\n", "line 1: unknown option \"gpu-byts\"; did you mean \"gpu-bytes\"?"},
    {"\n\ngpu-bytes = lots\n", "line 3: gpu-bytes: \"lots\" is not digits"},
    {"lease = 7s\n", "line 1: unknown option \"lease\"; did you mean \"lease-time\"?"},
    {"clean = 7%\n", "line 1: unknown option \"clean\"; did you mean \"clean-low\"?"},
    {"secret = x\n", "line 1: unknown option \"secret\""},
    {"gpu-bytes\n", "line 1: is neither"},
    {"[other]\ngpu-bytes = 1M\n", "line 2: unknown section [other]"},
    {"gpu-bytes = 4M\ngpu-bytes = 8M\n", "line 2: gpu-bytes is set twice"},
    {"gpu-bytes = 4M\n  8M\n", "line 2: begins with a space"},
    {"lease-time = 11m\n", "line 1: lease-time: 11m is not between 10ms and 10m"},
    {"gpu-bytes = 1K\n", "gpu-bytes: 1K is less than one extent"},
    {"clean-low = 20%\nclean-high = 10%\n", "clean-low is more than clean-high"},
    {"gpu-bytes = 0\nhost-bytes = 0\n", "both 0"},
};

START_TEST(test_bad_files)
{
    char *file = write_file(bad_files[_i].text);
    char why[CONFIG_WHY_MAX] = "";
    struct config config;

    ck_assert_int_eq(load(&config, (char *[]){"kvcached", "--check-config", file, NULL}, NULL, why),
                     CONFIG_WRONG);
    ck_assert_msg(strstr(why, bad_files[_i].why) != NULL, "%s", why);
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", "--config", file, NULL}, NULL, why),
                     CONFIG_BAD);
    ck_assert_msg(strstr(why, bad_files[_i].why) != NULL, "%s", why);
    ck_assert_ptr_null(strchr(why, '\n'));
}
END_TEST

START_TEST(test_long_and_absent_files)
{
    static char text[4096];
    char why[CONFIG_WHY_MAX];
    struct config config;

    memset(text, 'a', sizeof(text) - 1);
    ck_assert(!config_read_file(&config, write_file(text), why));
    ck_assert_ptr_nonnull(strstr(why, "line 1: longer than 190 bytes"));
    ck_assert(!config_read_file(&config, tmpdir_file("absent"), why));
    ck_assert_ptr_nonnull(strstr(why, "No such file"));
    ck_assert_int_eq(
        load(&config, (char *[]){"kvcached", "--check-config", write_file("gpu-bytes=4M"), NULL},
             NULL, why),
        CONFIG_CHECKED);
}
END_TEST

START_TEST(test_bad_environment)
{
    char *const argv[] = {"kvcached", NULL};
    char why[CONFIG_WHY_MAX];
    struct config config;

    ck_assert_int_eq(load(&config, argv, (char *[]){"KVCACHED_GPU_BYTE=1M", NULL}, why),
                     CONFIG_BAD);
    ck_assert_ptr_nonnull(strstr(why, "KVCACHED_GPU_BYTE: unknown option"));
    ck_assert_int_eq(load(&config, argv, (char *[]){"KVCACHED_DEVICE=tpu", NULL}, why), CONFIG_BAD);
    ck_assert_ptr_nonnull(strstr(why, "none of auto, host, cuda"));
}
END_TEST

/* At run time only what can change does, and only to what the whole allows. */
START_TEST(test_change_and_adopt)
{
    struct config config, fresh;
    char why[CONFIG_WHY_MAX], differing[CONFIG_WHY_MAX];

    config_init(&config);
    ck_assert(config_change(&config, "lease-time", "5s", why));
    ck_assert_uint_eq(config.lease_ms, 5000);
    ck_assert(!config_change(&config, "gpu-bytes", "1G", why));
    ck_assert_ptr_nonnull(strstr(why, "only with a restart"));
    ck_assert(!config_change(&config, "clean-low", "99%", why));
    ck_assert_uint_eq(config.clean_low, 100);
    config_init(&fresh);
    ck_assert(config_set(&fresh, "gpu-bytes", "512M", CONFIG_FILE, why));
    ck_assert(config_set(&fresh, "save-time", "40s", CONFIG_FILE, why));
    config_adopt(&config, &fresh, differing, sizeof(differing));
    ck_assert_str_eq(differing, "gpu-bytes");
    ck_assert_uint_eq(config.gpu_bytes, 256u << 20);
    ck_assert_uint_eq(config.save_proof_ms, 40000);
    ck_assert_uint_eq(config.lease_ms, 30000); // what was changed at run time is as in the file
}
END_TEST

START_TEST(test_a_bad_value_changes_nothing)
{
    struct config config, before;
    char why[CONFIG_WHY_MAX];
    char path[CONFIG_TEXT_MAX + 1];

    config_init(&config);
    before = config;
    ck_assert(!config_set(&config, "gpu-bytes", "12x", CONFIG_ARGUMENT, why));
    ck_assert(!config_set(&config, "device", "", CONFIG_ARGUMENT, why));
    ck_assert(!config_set(&config, "socket-mode", "-1", CONFIG_ARGUMENT, why));
    ck_assert(!config_set(&config, "sockte", "/x", CONFIG_ARGUMENT, why));
    ck_assert_ptr_nonnull(strstr(why, "did you mean \"socket\"?"));
    memset(path, 'p', sizeof(path) - 1);
    path[CONFIG_TEXT_MAX] = '\0';
    ck_assert(!config_set(&config, "socket", path, CONFIG_ARGUMENT, why));
    ck_assert_mem_eq(&config, &before, sizeof(config));
}
END_TEST

// Nothing that a user writes is too long for the line that says so.
START_TEST(test_long_arguments)
{
    static char arg[4096] = "--";
    struct config config;
    char why[CONFIG_WHY_MAX];

    memset(arg + 2, 'a', sizeof(arg) - 3);
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", arg, "x", NULL}, NULL, why), CONFIG_BAD);
    ck_assert_uint_lt(strlen(why), CONFIG_WHY_MAX);
    arg[20] = '=';
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", arg, NULL}, NULL, why), CONFIG_BAD);
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", "x", NULL}, NULL, why), CONFIG_BAD);
    ck_assert_int_eq(load(&config, (char *[]){"kvcached", "--socket", NULL}, NULL, why),
                     CONFIG_BAD);
    ck_assert_ptr_nonnull(strstr(why, "needs a value"));
}
END_TEST

START_TEST(test_shares)
{
    struct store_share shares[CONFIG_SHARES_MAX];
    char why[CONFIG_WHY_MAX];
    uint32_t n = 0;

    ck_assert(config_shares("uid:1000=25%, name = 4G/16G ,*=0", shares, &n, why));
    ck_assert_uint_eq(n, 3);
    ck_assert_str_eq(shares[0].tenant, "uid:1000");
    ck_assert_uint_eq(shares[0].permille[TIER_GPU], 250);
    ck_assert_uint_eq(shares[0].permille[TIER_HOST], 250);
    ck_assert_str_eq(shares[1].tenant, "name");
    ck_assert_uint_eq(shares[1].permille[TIER_GPU], 0);
    ck_assert_uint_eq(shares[1].bytes[TIER_GPU], 4ull << 30);
    ck_assert_uint_eq(shares[1].bytes[TIER_HOST], 16ull << 30);
    ck_assert_str_eq(shares[2].tenant, "*");
    ck_assert_uint_eq(shares[2].bytes[TIER_GPU] + shares[2].permille[TIER_GPU], 0);
}
END_TEST

static const char *const no_shares[] = {
    "a",     "=5%",   "a=",         "a=101%", "a=-1",    "a=5%/", "a=/5%",     "a=1%,a=2",
    "a=1%,", ",a=1%", "a=1%/2%/3%", "a=1x",   "a=1%=2%", "a b",   "*=1%,*=2%", "a=1%%",
};

START_TEST(test_no_shares)
{
    struct store_share shares[CONFIG_SHARES_MAX];
    char why[CONFIG_WHY_MAX] = "";
    struct config config;
    uint32_t n;

    ck_assert_msg(!config_shares(no_shares[_i], shares, &n, why), "%s", no_shares[_i]);
    ck_assert_ptr_nonnull(strstr(why, "tenant-shares"));
    config_init(&config);
    ck_assert(config_check(&config, why));
    ck_assert(config_set(&config, "tenant-shares", no_shares[_i], CONFIG_FILE, why));
    ck_assert(!config_check(&config, why));
}
END_TEST

START_TEST(test_too_many_shares)
{
    struct store_share shares[CONFIG_SHARES_MAX];
    char text[CONFIG_TEXT_MAX] = "", why[CONFIG_WHY_MAX];
    uint32_t n, at = 0;

    for (uint32_t i = 0; i <= CONFIG_SHARES_MAX; i++)
        at += (uint32_t)snprintf(text + at, sizeof(text) - at, "%su%u=1%%", i ? "," : "", i);
    ck_assert(!config_shares(text, shares, &n, why));
    ck_assert_ptr_nonnull(strstr(why, "more than 16"));
}
END_TEST

CHECK_MAIN_LOOPS("config", CHECK_UNIT_S, {test_sizes, 0, 11}, {test_no_sizes, 0, 19},
                 {test_values, 0, 9}, {test_no_values, 0, 14}, {test_format, 0, 0},
                 {test_defaults, 0, 0}, {test_arguments, 0, 0}, {test_precedence, 0, 0},
                 {test_bad_files, 0, 9}, {test_long_and_absent_files, 0, 0},
                 {test_bad_environment, 0, 0}, {test_change_and_adopt, 0, 0}, {test_quotas, 0, 0},
                 {test_no_quotas, 0, 15}, {test_quotas_add_up, 0, 0}, {test_shares, 0, 0},
                 {test_no_shares, 0, 15}, {test_too_many_shares, 0, 0},
                 {test_a_bad_value_changes_nothing, 0, 0}, {test_long_arguments, 0, 0})
