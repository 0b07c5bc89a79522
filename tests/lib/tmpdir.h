// A private temporary folder of a test, removed with all that is in it when the test ends, however
// it ends.
#ifndef KVC_TESTS_LIB_TMPDIR_H
#define KVC_TESTS_LIB_TMPDIR_H

// The folder's path, the same at each call within a test; short enough for a socket's name in it.
const char *tmpdir_path(void);

// Its last part: six letters and digits, for what is no file and has a name on this machine too.
const char *tmpdir_name(void);

// "<folder>/<name>", good until fifteen more were asked for.
const char *tmpdir_file(const char *name);

// For check_main: at the start of the program and of a test; at the end of a test, and of the
// program, which returns how many folders of tests were left (of those that failed: their logs are
// printed).
void tmpdir_open(void);
void tmpdir_begin(void);
void tmpdir_end(void);
int tmpdir_close(void);

#endif
