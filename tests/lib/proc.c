#include "tests/lib/proc.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/wait.h"

void proc_die_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // 0: the parent is outside of this pid namespace.
    if (getppid() != parent && getppid() != 0)
        _exit(125);
}

pid_t proc_fork(void)
{
    pid_t parent = getpid();
    pid_t pid;

    fflush(NULL);
    pid = fork();
    ck_assert_msg(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0)
        proc_die_with_parent(parent);
    return pid;
}

int proc_wait(pid_t pid, int deadline_ms)
{
    int status = 0;
    pid_t got = 0;

    ck_assert_msg(wait_until((got = waitpid(pid, &status, WNOHANG)) != 0, deadline_ms),
                  "process %d still runs after %d ms", (int)pid, deadline_ms);
    ck_assert_msg(got == pid, "waitpid(%d): %s", (int)pid, strerror(errno));
    return status;
}

void proc_wait_ok(pid_t pid, int deadline_ms)
{
    int status = proc_wait(pid, deadline_ms);

    ck_assert_msg(!WIFSIGNALED(status), "process %d died of signal %d", (int)pid, WTERMSIG(status));
    ck_assert_msg(WEXITSTATUS(status) == 0, "process %d exited with status %d", (int)pid,
                  WEXITSTATUS(status));
}

void proc_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

int proc_count_fds(pid_t pid)
{
    char path[32];
    DIR *dir;
    int n = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    if (!dir)
        return -1;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

long proc_anonymous_kb(pid_t pid)
{
    char path[48], line[256];
    long kb = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return -1;
    while (kb < 0 && fgets(line, sizeof(line), f))
        if (sscanf(line, "Anonymous: %ld kB", &kb) != 1)
            kb = -1;
    fclose(f);
    return kb;
}

long proc_cpu_ms(pid_t pid)
{
    char path[48];
    unsigned long user, system;
    FILE *f;
    int n;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return -1;
    // Fields 14 and 15; the command, in brackets, has no blanks here.
    n = fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    fclose(f);
    return n == 2 ? (long)((user + system) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK)) : -1;
}

double proc_waited_ms(pid_t pid)
{
    char path[48];
    unsigned long long ran_ns, waited_ns;
    FILE *f;
    int n;

    snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return 0;
    n = fscanf(f, "%llu %llu", &ran_ns, &waited_ns);
    fclose(f);
    return n == 2 ? (double)waited_ns / 1e6 : 0;
}

// Of a thread: PID (COMMAND) STATE ...
static bool task_sleeps(const char *path)
{
    char state = 'S';
    FILE *f = fopen(path, "re");

    if (!f)
        return true; // it has ended
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = 'S';
    fclose(f);
    return state != 'R' && state != 'D';
}

bool proc_sleeps(pid_t pid)
{
    char path[300];
    bool all = true;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    if (!dir)
        return true;
    for (struct dirent *e = readdir(dir); e && all; e = readdir(dir)) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, e->d_name);
        all = e->d_name[0] == '.' || task_sleeps(path);
    }
    closedir(dir);
    return all;
}

// The pid of some child, or 0. Orphans that come to a subreaper are not known by number, so the
// kernel is asked.
static pid_t some_child(void)
{
    siginfo_t info = {0};
    char path[64];
    FILE *f;
    int pid = 0;

    // A child that has ended already is reaped by its number.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
        return info.si_pid;
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%d", &pid) != 1)
        pid = 0;
    fclose(f);
    return pid;
}

int proc_kill_children(void)
{
    int n = 0;

    for (pid_t pid = some_child(); pid > 0; pid = some_child()) {
        proc_kill(pid);
        n++;
    }
    return n;
}
