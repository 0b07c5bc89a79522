// A private debug kvcached for a test: its own socket, log and fault switches in the test's
// temporary folder. It dies with the test.
//
//     struct daemon *d = daemon_start((const char *[]){"--gpu-bytes", "16M", NULL});
//     ... kvc_connect(daemon_socket(d)) ...
//     daemon_log_expect(d, "malformed packet");
//     daemon_stop(d);
//
// Functions fail the test when something is wrong.
#ifndef KVC_TESTS_LIB_DAEMON_H
#define KVC_TESTS_LIB_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct daemon;

// Starts it with `--socket <folder>/s1 --device host --gpu-bytes 16M --host-bytes 32M
// --metrics off` and the
// extra arguments (NULL-terminated; NULL for none; a later option wins), and waits until it accepts
// connections.
struct daemon *daemon_start(const char *const extra_args[]);

// Daemons that are started from now on get sock as a service manager passes it, as descriptor 3
// (-1: none any more). It and its file stay the test's, which has bound it.
void daemon_pass_socket(int sock);
// The same for n of them, at most DAEMON_PASSED_MAX, from descriptor 3 on, with their names, colons
// between, as the manager gives them (NULL: none). The daemon's socket, for daemon_socket(), is the
// first of them.
#define DAEMON_PASSED_MAX 4
void daemon_pass_sockets(const int socks[], int n, const char *names);

// Runs it to its end instead, for starts that are to be refused: its exit status, with what it
// printed in `ret_output` (at most `size` bytes with the NUL). Extra arguments as above.
int daemon_run(const char *const extra_args[], char *ret_output, size_t size);

// daemon_start() with a fault that is armed before it begins. NULL when it ended instead: then
// ret_output has what it printed, it exited with status 1, said why in one line, and left nothing
// alive and no socket. *ret_fired says how often the fault did.
struct daemon *daemon_start_armed(const char *const extra_args[], const char *site, uint32_t skip,
                                  uint32_t count, uint64_t *ret_fired, char *ret_output,
                                  size_t size);

// What the last line of its log is to say: nothing is alive, and no descriptor is open but the
// three that it was started with.
const char *daemon_last_words(void);

// Where a program of the build under test is.
void daemon_program(char *ret_path, size_t size, const char *name);

const char *daemon_socket(const struct daemon *d);
pid_t daemon_pid(const struct daemon *d);

// Announces that a warning or error whose line contains `text` will come. daemon_stop() fails the
// test for each announced line that did not come, and for each unannounced one that did.
// An announcement stands for any number of lines.
void daemon_log_expect(struct daemon *d, const char *text);

// The same for lines that may come or not.
void daemon_log_allow(struct daemon *d, const char *text);

// How many lines of its log so far, of any level, contain `text`.
int daemon_log_count(const struct daemon *d, const char *text);

// SIGTERM. Fails the test unless the daemon exits with status 0 within 8 s, logged no unannounced
// warning or error, and its last line says that nothing is alive:
// "exit live_allocations=0 live_bytes=0 fds=N", N being what it was started with.
// Frees d; so does daemon_kill().
void daemon_stop(struct daemon *d);

// kill -9. Warnings and errors in the log are judged as by daemon_stop(); nothing else is.
void daemon_kill(struct daemon *d);

// kill -9, and nobody is there; daemon_restart_killed() must follow.
void daemon_end_killed(struct daemon *d);

// kill -9 and a new start with the same arguments and socket, keeping log and announcements.
void daemon_restart_killed(struct daemon *d);

// Fault switches and clock of the running daemon (daemon/base/fault.h says what they mean).
void daemon_fault_arm(struct daemon *d, const char *site, uint32_t skip, uint32_t count);
void daemon_fault_random(struct daemon *d, uint64_t seed, uint32_t per_mille);
void daemon_fault_off(struct daemon *d, const char *pattern);
uint64_t daemon_fault_passed(struct daemon *d, const char *site);
uint64_t daemon_fault_fired(struct daemon *d, const char *site);
void daemon_clock_advance(struct daemon *d, uint64_t us);

// Descriptors that the daemon has open now; and room for so many more than these.
int daemon_fds(const struct daemon *d);
void daemon_limit_fds(const struct daemon *d, int more);

// SIGSTOP and SIGCONT.
void daemon_freeze(struct daemon *d);
void daemon_thaw(struct daemon *d);

#endif
