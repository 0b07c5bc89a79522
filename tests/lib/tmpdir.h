// A private temporary folder of a test, removed with all that is in it when the test ends, however
// it ends.
#ifndef KVC_TESTS_LIB_TMPDIR_H
#define KVC_TESTS_LIB_TMPDIR_H

#include <sys/types.h>

// The folder's path, the same at each call within a test; short enough for a socket's name in it.
const char *tmpdir_path(void);

// "<folder>/<name>", good until fifteen more were asked for.
const char *tmpdir_file(const char *name);

// For check_main: at the end of a test; and of all that tests of this runner left.
void tmpdir_remove_all(void);
void tmpdir_remove_leftovers(pid_t runner);

#endif
