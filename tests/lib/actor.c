#include "tests/lib/actor.h"

#include <check.h>
#include <dirent.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

// A socket of the test's that lived on here would keep its connection open.
static void close_sockets(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct stat st;

    if (dir == NULL)
        return;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        int fd = atoi(e->d_name);

        if (fd > 2 && fd != dirfd(dir) && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode))
            close(fd);
    }
    closedir(dir);
}

struct actor actor_start_numbered(scene_fn *play, const char *socket, int number)
{
    struct actor a = {.told = mmap(NULL, sizeof(*a.told), PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)};

    ck_assert_ptr_ne(a.told, MAP_FAILED);
    a.pid = proc_fork();
    if (a.pid == 0) {
        struct scene scene = {.socket = socket, .told = a.told, .number = number};

        close_sockets();
        play(&scene);
        _exit(0);
    }
    return a;
}

struct actor actor_start(scene_fn *play, const char *socket)
{
    return actor_start_numbered(play, socket, 0);
}

void actor_stop(void)
{
    raise(SIGSTOP);
}

void actor_until_stop(const struct actor *a)
{
    siginfo_t info = {0};

    wait_for(waitid(P_PID, (id_t)a->pid, &info, WSTOPPED | WEXITED | WNOHANG) != 0 ||
                 info.si_pid != 0,
             3 * ENGINE_MS);
    ck_assert_msg(info.si_code == CLD_STOPPED, "the actor ended before it stopped: code %d, %d",
                  info.si_code, info.si_status);
}

void actor_continue(const struct actor *a)
{
    ck_assert_int_eq(kill(a->pid, SIGCONT), 0);
}

static void forget(struct actor *a)
{
    munmap(a->told, sizeof(*a->told));
    *a = (struct actor){0};
}

void actor_end(struct actor *a)
{
    proc_wait_ok(a->pid, 3 * ENGINE_MS);
    forget(a);
}

void actor_strike(const struct actor *a)
{
    ck_assert_int_eq(kill(a->pid, SIGKILL), 0);
}

void actor_kill(struct actor *a)
{
    proc_kill(a->pid);
    forget(a);
}

// Changing the user clears the signal at the parent's death, and closes /proc/self to the process
// itself, which would make the tests below pass for the wrong reason.
void actor_become_somebody_else(void)
{
    pid_t parent = getppid();

    ck_assert_int_eq(setgroups(0, NULL), 0);
    ck_assert_int_eq(setresgid(ACTOR_SOMEBODY_ELSE, ACTOR_SOMEBODY_ELSE, ACTOR_SOMEBODY_ELSE), 0);
    ck_assert_int_eq(setresuid(ACTOR_SOMEBODY_ELSE, ACTOR_SOMEBODY_ELSE, ACTOR_SOMEBODY_ELSE), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0);
    proc_die_with_parent(parent);
}
