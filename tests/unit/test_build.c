// What is shipped: the public header alone, what the libraries export, and that the release build
// has no switches.
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/check_main.h"
#include "tests/lib/tmpdir.h"

// Runs a shell command; whether it succeeded. It prints to the test's output.
static bool shell(const char *format, const char *argument)
{
    char command[1024];

    snprintf(command, sizeof(command), format, argument);
    fflush(NULL);
    return system(command) == 0;
}

static const char *source(const char *name)
{
    const char *path = tmpdir_file(name);
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    fputs("#include <kvcache.h>\n"
          "int main(void)\n"
          "{\n"
          "    return kvc_version()[0] == '\\0';\n"
          "}\n",
          f);
    fclose(f);
    return path;
}

#define STRICT "-pedantic -Wall -Wextra -Werror -Ibuild/include"

START_TEST(header_compiles_alone_as_c)
{
    ck_assert(shell("gcc -std=c99 " STRICT " -fsyntax-only %s", source("alone.c")));
}
END_TEST

START_TEST(header_compiles_alone_as_cxx)
{
    ck_assert(shell("g++ -std=c++11 " STRICT " -fsyntax-only %s", source("alone.cc")));
}
END_TEST

START_TEST(shared_library_links_and_exports_kvc_only)
{
    ck_assert(shell("gcc " STRICT
                    " %1$s -Lbuild -lkvcache -Wl,-rpath,$PWD/build -o $(dirname %1$s)/a"
                    " && $(dirname %1$s)/a",
                    source("shared.c")));
    ck_assert(
        shell("nm -D --defined-only %s | grep -q ' T kvc_connect@@'", "build/libkvcache.so.0"));
    ck_assert(!shell("nm -D --defined-only %s | grep -v ' kvc_' | grep -v ' A KVCACHE_0$'",
                     "build/libkvcache.so.0"));
}
END_TEST

START_TEST(static_library_links_and_exports_kvc_only)
{
    ck_assert(shell("gcc " STRICT " %1$s build/libkvcache.a -lprotobuf-c -lxxhash"
                    " -o $(dirname %1$s)/a && $(dirname %1$s)/a",
                    source("static.c")));
    ck_assert(!shell("nm -g --defined-only %s | grep -E '^[0-9a-f]+ ' | grep -v ' kvc_'",
                     "build/libkvcache.a"));
}
END_TEST

START_TEST(release_build_has_no_switches)
{
    ck_assert(!shell("nm %s | grep -E ' (fault_|clock_advance|debug_)'", "build/kvcached"));
    ck_assert(!shell("grep -l KVC_DEBUG_SWITCHES %s", "build/kvcached"));
    ck_assert(shell("nm %s | grep -q ' fault_fires'", "build/debug*/kvcached"));
}
END_TEST

START_TEST(release_build_starts_without_a_gpu_driver)
{
    ck_assert(!shell("readelf -d %s | grep NEEDED | grep -iE 'cuda|nvidia|nvml'",
                     "build/kvcached build/libkvcache.so.0 build/kvcachectl"));
}
END_TEST

CHECK_MAIN("build", CHECK_LIFE_S, header_compiles_alone_as_c, header_compiles_alone_as_cxx,
           shared_library_links_and_exports_kvc_only, static_library_links_and_exports_kvc_only,
           release_build_has_no_switches, release_build_starts_without_a_gpu_driver)
