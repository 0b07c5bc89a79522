#include "tests/lib/pty.h"

#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

#define ARGS_MAX  16
#define EXPECT_MS 10000

static void run(const char *const args[], const char *environment)
{
    char program[4096], variable[256];
    const char *argv[ARGS_MAX] = {program};

    daemon_program(program, sizeof(program), "kvcachectl");
    for (size_t i = 0; args[i] && i + 2 < ARGS_MAX; i++)
        argv[i + 1] = args[i];
    unsetenv("KVCACHE_SOCKET");
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    if (environment) {
        snprintf(variable, sizeof(variable), "%s", environment);
        putenv(variable);
    }
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

void pty_start(struct pty *pty, const char *const args[], int rows, int columns,
               const char *environment)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
    pid_t parent = getpid();

    pty->n = 0;
    pty->pid = forkpty(&pty->fd, NULL, NULL, &size);
    ck_assert_int_ge(pty->pid, 0);
    if (pty->pid == 0) {
        proc_die_with_parent(parent);
        run(args, environment);
    }
}

/* What there is, waiting a little for it; false: the other side is closed. */
static bool read_more(struct pty *pty, int ms)
{
    struct pollfd output = {.fd = pty->fd, .events = POLLIN};
    ssize_t n;

    if (poll(&output, 1, ms) <= 0)
        return true;
    ck_assert_uint_lt(pty->n, sizeof(pty->text) - 1);
    n = read(pty->fd, pty->text + pty->n, sizeof(pty->text) - 1 - pty->n);
    if (n <= 0)
        return false;
    pty->n += (size_t)n;
    pty->text[pty->n] = '\0';
    return true;
}

size_t pty_expect(struct pty *pty, size_t from, const char *text)
{
    const char *found = NULL;

    wait_for(((void)read_more(pty, 10),
              found = memmem(pty->text + from, pty->n - from, text, strlen(text))) != NULL,
             EXPECT_MS);
    return (size_t)(found - pty->text) + strlen(text);
}

void pty_press(struct pty *pty, const char *keys)
{
    ck_assert_int_eq(write(pty->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

bool pty_is_usual(const struct pty *pty)
{
    struct termios now;

    return tcgetattr(pty->fd, &now) == 0 && (now.c_lflag & ICANON) && (now.c_lflag & ECHO);
}

int pty_end(struct pty *pty)
{
    int status;

    /* What it writes must be read, or it would not come to its end. */
    wait_for(((void)read_more(pty, 10), waitpid(pty->pid, &status, WNOHANG)) == pty->pid,
             EXPECT_MS);
    while (pty->n < sizeof(pty->text) - 1 && read_more(pty, 50)) {
        int left = 0;

        if (ioctl(pty->fd, FIONREAD, &left) < 0 || left == 0)
            break;
    }
    close(pty->fd);
    return status;
}

size_t pty_widest(const char *text)
{
    size_t widest = 0, at = 0;

    for (; *text; text++) {
        if (*text == '\033') {
            while (*text && !(*text >= 'a' && *text <= 'z') && !(*text >= 'A' && *text <= 'Z'))
                text++;
            /* The start of a screen begins a line. */
            at = *text == 'H' ? 0 : at;
            if (!*text)
                break;
        } else if (*text == '\n' || *text == '\r') {
            at = 0;
        } else {
            at += ((unsigned char)*text & 0xc0) != 0x80;
        }
        widest = at > widest ? at : widest;
    }
    return widest;
}
