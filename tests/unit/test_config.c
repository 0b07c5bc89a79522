#include "daemon/config.h"

#include <string.h>

#include "tests/lib/check_main.h"

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

    ck_assert_msg(config_parse_size(sizes[_i].text, &bytes), "%s", sizes[_i].text);
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

    ck_assert_msg(!config_parse_size(no_sizes[_i], &bytes), "%s", no_sizes[_i]);
    ck_assert_uint_eq(bytes, 1234);
}
END_TEST

START_TEST(test_format)
{
    char text[24];

    ck_assert_str_eq(config_format_size(0, text), "0");
    ck_assert_str_eq(config_format_size(1000, text), "1000");
    ck_assert_str_eq(config_format_size(1024, text), "1K");
    ck_assert_str_eq(config_format_size(1536, text), "1536");
    ck_assert_str_eq(config_format_size(256ull << 20, text), "256M");
    ck_assert_str_eq(config_format_size(1ull << 50, text), "1024T");
    ck_assert_str_eq(config_format_size(UINT64_MAX, text), "18446744073709551615");
}
END_TEST

START_TEST(test_defaults)
{
    struct config config;

    config_init(&config);
    ck_assert_str_eq(config.socket, "/run/kvcached/kvcached.sock");
    ck_assert_uint_eq(config.socket_mode, 0660);
    ck_assert_uint_eq(config.device, CONFIG_DEVICE_AUTO);
    ck_assert_uint_eq(config.gpu_bytes, 256ull << 20);
    ck_assert_uint_eq(config.host_bytes, 1ull << 30);
    ck_assert_uint_eq(config.log_level, LOG_LEVEL_INFO);
}
END_TEST

START_TEST(test_arguments)
{
    char *const argv[] = {"kvcached", "--gpu-bytes", "32M",   "--host-bytes=64M", "--socket",
                          "/s",       "--log-level", "debug", "--gpu-bytes",      "48M"};
    struct config config;
    char why[CONFIG_WHY_MAX];

    config_init(&config);
    ck_assert_int_eq(config_arguments(&config, 10, argv, why), CONFIG_RUN);
    ck_assert_uint_eq(config.gpu_bytes, 48u << 20); // the later one wins
    ck_assert_uint_eq(config.host_bytes, 64u << 20);
    ck_assert_str_eq(config.socket, "/s");
    ck_assert_uint_eq(config.log_level, LOG_LEVEL_DEBUG);
}
END_TEST

START_TEST(test_a_bad_value_changes_nothing)
{
    struct config config, before;
    char why[CONFIG_WHY_MAX];
    char path[CONFIG_TEXT_MAX + 1];

    config_init(&config);
    before = config;
    ck_assert(!config_set(&config, "gpu-bytes", "12x", why));
    ck_assert(!config_set(&config, "device", "", why));
    ck_assert(!config_set(&config, "socket-mode", "-1", why));
    ck_assert(!config_set(&config, "sockte", "/x", why));
    ck_assert_ptr_nonnull(strstr(why, "did you mean \"socket\"?"));
    memset(path, 'p', sizeof(path) - 1);
    path[CONFIG_TEXT_MAX] = '\0';
    ck_assert(!config_set(&config, "socket", path, why));
    ck_assert_mem_eq(&config, &before, sizeof(config));
}
END_TEST

// Nothing that a user writes is too long for the line that says so.
START_TEST(test_long_arguments)
{
    static char arg[4096] = "--";
    char *argv[] = {"kvcached", arg, "x"};
    struct config config;
    char why[CONFIG_WHY_MAX];

    config_init(&config);
    memset(arg + 2, 'a', sizeof(arg) - 3);
    ck_assert_int_eq(config_arguments(&config, 3, argv, why), CONFIG_BAD);
    ck_assert_uint_lt(strlen(why), CONFIG_WHY_MAX);
    arg[20] = '=';
    ck_assert_int_eq(config_arguments(&config, 2, argv, why), CONFIG_BAD);
}
END_TEST

CHECK_MAIN_LOOPS("config", CHECK_UNIT_S, {test_sizes, 0, 11}, {test_no_sizes, 0, 19},
                 {test_format, 0, 0}, {test_defaults, 0, 0}, {test_arguments, 0, 0},
                 {test_a_bad_value_changes_nothing, 0, 0}, {test_long_arguments, 0, 0})
