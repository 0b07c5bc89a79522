// kvcachectl of the build under test as its users run it: the program, its output, its exit status.
// Functions fail the test when something is not as it says.
#ifndef KVC_TESTS_LIB_CTL_H
#define KVC_TESTS_LIB_CTL_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#define CTL_RUN_MS 20000 // before the multiplier

// Runs it to its end: the exit status. Its output is in ctl_out() and ctl_err() then.
int ctl_run(const char *const args[]);
#define CTL_RUN(...) ctl_run((const char *const[]){__VA_ARGS__, NULL})

// The same in two steps; its output goes to descriptor `to`, or, -1, where ctl_run puts it.
pid_t ctl_start(int to, const char *const args[]);
int ctl_end(pid_t pid);

// $TMPDIR of what is started from now on; NULL: the test's folder.
void ctl_set_tmpdir(const char *path);

// What the last one printed; good until the next call of the same.
const char *ctl_out(void);
const char *ctl_err(void);
// ctl_out() as JSON; the caller's.
json_t *ctl_json(void);

// A number, and a text, of an object.
int64_t ctl_number(const json_t *object, const char *name);
const char *ctl_text(const json_t *object, const char *name);
void ctl_expect_fields(const json_t *object, const char *const *names, size_t n);

#endif
