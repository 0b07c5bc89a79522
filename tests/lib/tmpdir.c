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
#define UNIQUE       "XXXXXX" // of mkdtemp(): numbers of processes come again, also within one run

static char root[48];   // the program's: <base>/kvc-test.UNIQUE
static char folder[56]; // the test's: <root>/UNIQUE
static char files[TMPDIR_FILES][128];
static unsigned next_file;

static const char *base(void)
{
    const char *s = getenv("TMPDIR");

    // A socket's path holds 107 characters.
    return s && *s && strlen(s) < 24 ? s : "/tmp";
}

void tmpdir_open(void)
{
    snprintf(root, sizeof(root), "%s/kvc-test." UNIQUE, base());
    // Passed through by daemons and workers of other users, of tests that open their own folder.
    if (mkdtemp(root) != NULL && chmod(root, 0711) == 0)
        return;
    fprintf(stderr, "mkdtemp in %s: %s\n", base(), strerror(errno));
    exit(1);
}

void tmpdir_begin(void)
{
    snprintf(folder, sizeof(folder), "%s/" UNIQUE, root);
    ck_assert_msg(mkdtemp(folder) != NULL, "mkdtemp in %s: %s", root, strerror(errno));
}

const char *tmpdir_path(void)
{
    // CK_FORK=no: nobody begins.
    if (!folder[0])
        tmpdir_begin();
    return folder;
}

const char *tmpdir_name(void)
{
    return strrchr(tmpdir_path(), '/') + 1;
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

void tmpdir_end(void)
{
    remove_tree(folder);
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

int tmpdir_close(void)
{
    char pattern[64];
    glob_t found;
    int n = 0;

    // Without forks it is this process's own.
    if (folder[0])
        tmpdir_end();
    snprintf(pattern, sizeof(pattern), "%s/*", root);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            print_logs(found.gl_pathv[i]);
        n = (int)found.gl_pathc;
        globfree(&found);
    }
    remove_tree(root);
    return n;
}
