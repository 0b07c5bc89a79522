// Processes of a test: all of them die when the process that started them does.
#ifndef KVC_TESTS_LIB_PROC_H
#define KVC_TESTS_LIB_PROC_H

#include <stdbool.h>
#include <sys/types.h>

// fork() whose child gets SIGKILL when the parent ends. Fails the test when it fails.
pid_t proc_fork(void);

// For a child that was just forked: SIGKILL when `parent` ends, or now if it has.
void proc_die_with_parent(pid_t parent);

// Waits until the child has ended, at most deadline_ms (times the multiplier); fails the test when
// it has not. Returns the status of waitpid().
int proc_wait(pid_t pid, int deadline_ms);

// Waits as above and fails the test unless the child exited with status 0.
void proc_wait_ok(pid_t pid, int deadline_ms);

// kill -9 and reap.
void proc_kill(pid_t pid);

// Descriptors that the process has open; -1 when it is gone.
int proc_count_fds(pid_t pid);

// Anonymous memory of the process in KiB, and processor time it has used; -1 when it is gone.
long proc_anonymous_kb(pid_t pid);
long proc_cpu_ms(pid_t pid);
// For how long its first thread could have run and had no processor; 0 where nobody says.
double proc_waited_ms(pid_t pid);

// Whether every thread of it waits for something now: none has work that it has not come to yet.
bool proc_sleeps(pid_t pid);

// Kills and reaps all children of this process; how many there were.
int proc_kill_children(void);

#endif
