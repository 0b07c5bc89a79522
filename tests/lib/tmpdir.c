#include "tests/lib/tmpdir.h"

#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/log_file.h"

#define TMPDIR_FILES 16

// Folders are named kvc-test.<runner>.<test>: what a killed test leaves is found by the runner.
#define TMPDIR_PATTERN "%s/kvc-test.%d."

static char folder[64];
static char files[TMPDIR_FILES][128];
static unsigned next_file;

static const char *base(void)
{
    const char *s = getenv("TMPDIR");

    // A socket's path holds 107 characters.
    return s && *s && strlen(s) < 24 ? s : "/tmp";
}

const char *tmpdir_path(void)
{
    if (folder[0])
        return folder;
    snprintf(folder, sizeof(folder), TMPDIR_PATTERN "%d", base(), (int)getppid(), (int)getpid());
    ck_assert_msg(mkdir(folder, 0700) == 0, "mkdir %s: %s", folder, strerror(errno));
    return folder;
}

const char *tmpdir_file(const char *name)
{
    char *s = files[next_file];
    int n;

    next_file = (next_file + 1) % TMPDIR_FILES;
    n = snprintf(s, sizeof(files[0]), "%s/%s", tmpdir_path(), name);
    ck_assert(n > 0 && (size_t)n < sizeof(files[0]));
    return s;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

void tmpdir_remove_all(void)
{
    if (!folder[0])
        return;
    remove_tree(folder);
    folder[0] = '\0';
}

// A folder that was left is that of a test that failed, and its logs are what tells why.
static void print_logs(const char *path)
{
    char pattern[160];
    struct log_file log;
    glob_t found;

    snprintf(pattern, sizeof(pattern), "%s/*.log", path);
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        printf("log of a test that failed, %s:\n", found.gl_pathv[i]);
        snprintf(log.path, sizeof(log.path), "%s", found.gl_pathv[i]);
        log_file_print(&log);
    }
    globfree(&found);
}

void tmpdir_remove_leftovers(pid_t runner)
{
    char pattern[96];
    glob_t found;

    snprintf(pattern, sizeof(pattern), TMPDIR_PATTERN "*", base(), (int)runner);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        print_logs(found.gl_pathv[i]);
        remove_tree(found.gl_pathv[i]);
    }
    globfree(&found);
}
