// kvcache.h by itself, as a user's compiler sees it, and what the libraries export.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tmpdir.h"

#define WARNINGS "-Wall -Wextra -pedantic -Werror"

static char output[8192];

// The exit status of a shell's command; what it prints is in `output`.
static int run(const char *command)
{
    FILE *pipe;
    size_t n;
    int status;

    fflush(NULL);
    pipe = popen(command, "re");
    ck_assert_ptr_nonnull(pipe);
    n = fread(output, 1, sizeof(output) - 1, pipe);
    output[n] = '\0';
    status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool have(const char *program)
{
    char command[128];

    snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1", program);
    return run(command) == 0;
}

// The tree: tests run in its root, or below build/debug when a program is called by hand.
static const char *root(void)
{
    static char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *build;

    ck_assert_int_gt(n, 0);
    path[n] = '\0';
    build = strstr(path, "/build/");
    ck_assert_ptr_nonnull(build);
    *build = '\0';
    return path;
}

static const char *build_dir(void)
{
    static char path[512];
    char *tests;
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    ck_assert_int_gt(n, 0);
    path[n] = '\0';
    tests = strstr(path, "/tests/unit/");
    ck_assert_ptr_nonnull(tests);
    *tests = '\0';
    return path;
}

// Installs the three headers as `make install` does, and writes a program that uses them.
static const char *install_headers(const char *suffix)
{
    static char source[256];
    char command[2048];
    FILE *file;

    snprintf(command, sizeof(command),
             "cd %s && mkdir -p %s/kvcache && cp client/kvcache.h %s/ && "
             "cp proto/limits.h proto/status.h %s/kvcache/ 2>&1",
             root(), tmpdir_path(), tmpdir_path(), tmpdir_path());
    ck_assert_msg(run(command) == 0, "%s", output);
    snprintf(source, sizeof(source), "%s/use.%s", tmpdir_path(), suffix);
    file = fopen(source, "we");
    ck_assert_ptr_nonnull(file);
    fputs("#include <kvcache.h>\n"
          "int main(void)\n"
          "{\n"
          "    kvc_options options = {\"/nonexistent/socket\", \"use\", KVC_ROLE_WORKER, 0, 0, 0, "
          "0, 0};\n"
          "    kvc_client *client = 0;\n"
          "    return kvc_connect(&options, &client) == KVC_E_DISCONNECTED ? 0 : 1;\n"
          "}\n",
          file);
    fclose(file);
    return source;
}

struct language {
    const char *compiler, *standard, *suffix;
};
static const struct language languages[] = {
    {"gcc", "-std=c11", "c"},    {"gcc", "-std=c99", "c"},   {"g++", "-std=c++11", "cc"},
    {"g++", "-std=c++20", "cc"}, {"clang", "-std=c11", "c"}, {"clang++", "-std=c++17", "cc"},
};

START_TEST(header_compiles_alone)
{
    const struct language *language = &languages[_i];
    char command[1024];

    if (!have(language->compiler))
        TEST_SKIP("no %s", language->compiler);
    snprintf(command, sizeof(command), "%s %s " WARNINGS " -I%s -fsyntax-only %s 2>&1",
             language->compiler, language->standard, tmpdir_path(),
             install_headers(language->suffix));
    ck_assert_msg(run(command) == 0, "%s", output);
}
END_TEST

// A program of either language, linked with either library, runs.
START_TEST(libraries_link)
{
    const bool is_static = _i % 2 == 0, cxx = _i / 2 == 1;
    char command[2048];

    if (strstr(build_dir(), "/debug-") != NULL)
        TEST_SKIP("a library with sanitizers needs a program with them");
    if (!have(cxx ? "g++" : "gcc"))
        TEST_SKIP("no compiler");
    snprintf(command, sizeof(command),
             "%s " WARNINGS " -I%s %s -o %s/use -L%s %s 2>&1 && LD_LIBRARY_PATH=%s %s/use",
             cxx ? "g++" : "gcc", tmpdir_path(), install_headers(cxx ? "cc" : "c"), tmpdir_path(),
             build_dir(), is_static ? "-l:libkvcache.a -lprotobuf-c -lxxhash" : "-lkvcache",
             build_dir(), tmpdir_path());
    ck_assert_msg(run(command) == 0, "%s: %s", command, output);
}
END_TEST

START_TEST(only_kvc_is_exported)
{
    char command[1024];

    if (!have("nm"))
        TEST_SKIP("no nm");
    snprintf(command, sizeof(command),
             "nm -%s --defined-only %s/libkvcache.%s | "
             "awk 'NF == 3 && $2 ~ /[A-Z]/ && $2 != \"A\" && $3 !~ /^kvc_/'",
             _i == 0 ? "D" : "g", build_dir(), _i == 0 ? "so.0" : "a");
    ck_assert_int_eq(run(command), 0);
    if (strstr(build_dir(), "/debug-") == NULL)
        ck_assert_str_eq(output, "");
    // It did look into a library.
    snprintf(command, sizeof(command), "nm -%s --defined-only %s/libkvcache.%s | grep -q kvc_save",
             _i == 0 ? "D" : "g", build_dir(), _i == 0 ? "so.0" : "a");
    ck_assert_int_eq(run(command), 0);
}
END_TEST

// Every function of the manual is in the library, and has a text of its own where it says so.
START_TEST(manual_and_library_agree)
{
    char command[1024];

    snprintf(command, sizeof(command),
             "cd %s && grep -ohE 'KVC_API [^(]+\\(' client/kvcache.h | "
             "grep -oE 'kvc_[a-z_]+\\(' | tr -d '(' | sort -u | while read f; do "
             "nm -D --defined-only %s/libkvcache.so.0 | grep -q \" T $f@\" || echo $f; done",
             root(), build_dir());
    if (!have("nm"))
        TEST_SKIP("no nm");
    ck_assert_int_eq(run(command), 0);
    ck_assert_str_eq(output, "");
    ck_assert_str_ne(kvc_version(), "");
    ck_assert_str_ne(kvc_text(KVC_E_STALE), kvc_text(KVC_E_BUSY));
    ck_assert_ptr_nonnull(kvc_text((kvc_status)12345));
}
END_TEST

CHECK_MAIN_LOOPS("client/header", CHECK_LIFE_S,
                 {header_compiles_alone, 0, sizeof(languages) / sizeof(languages[0]) - 1},
                 {libraries_link, 0, 3}, {only_kvc_is_exported, 0, 1},
                 {manual_and_library_agree, 0, 0})
