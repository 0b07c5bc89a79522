#include "client/ctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"

#define ENTER         "\033[?1049h\033[?25l" /* the other screen, no cursor */
#define LEAVE         "\033[0m\033[?25h\033[?1049l"
#define HOME          "\033[H"
#define CLEAR         "\033[J" /* what is below */
#define ERASE         "\033[K" /* the rest of the line */
#define ROWS_USUAL    24
#define COLUMNS_USUAL 80

/* Signal handlers need them, so they are here: one screen a program. */
static struct termios before;
static volatile sig_atomic_t is_open, is_changed;

static const int faults[] = {SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

static bool write_all(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);

        if (done < 0 && errno == EINTR && !interrupt_came())
            continue;
        if (done <= 0)
            return false;
        text += done;
        n -= (size_t)done;
    }
    return true;
}

/* Only what a signal handler may call. */
static void leave(void)
{
    ssize_t done;

    if (!is_open)
        return;
    is_open = 0;
    done = write(STDOUT_FILENO, LEAVE, sizeof(LEAVE) - 1);
    (void)done; /* nothing helps if it fails */
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static bool enter(void)
{
    struct termios raw = before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    /* Open from here on: a signal in the midst of it restores all. */
    is_open = 1;
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0 && write_all(ENTER, sizeof(ENTER) - 1))
        return true;
    leave();
    return false;
}

static void on_fault(int number)
{
    leave();
    signal(number, SIG_DFL);
    raise(number);
}

static void on_stop(int number)
{
    const int error = errno;

    (void)number;
    leave();
    raise(SIGSTOP);
    /* Somebody has said SIGCONT. */
    (void)enter();
    is_changed = 1;
    errno = error;
}

static void on_resize(int number)
{
    (void)number;
    is_changed = 1;
}

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

    sigfillset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

bool screen_open(void)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) < 0)
        return false;
    interrupt_catch();
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        handle(faults[i], on_fault, 0);
    handle(SIGTSTP, on_stop, 0);
    handle(SIGWINCH, on_resize, 0);
    atexit(screen_close);
    return enter();
}

void screen_close(void)
{
    leave();
}

void screen_size(int *rows, int *columns)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;

    *rows = known && size.ws_row > 0 ? size.ws_row : ROWS_USUAL;
    *columns = known && size.ws_col > 0 ? size.ws_col : COLUMNS_USUAL;
}

/* Line by line over what was there, so that nothing flickers. */
bool screen_show(const char *text)
{
    bool shown = write_all(HOME, sizeof(HOME) - 1);

    for (const char *end; shown && (end = strchr(text, '\n')); text = end + 1) {
        shown = write_all(text, (size_t)(end - text)) && write_all(ERASE, sizeof(ERASE) - 1);
        /* No newline behind the last one: the screen would scroll. */
        if (shown && end[1])
            shown = write_all("\r\n", 2);
    }
    return shown && write_all(CLEAR, sizeof(CLEAR) - 1);
}

int screen_key(uint32_t ms)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    unsigned char key;
    int ready;

    if (interrupt_came())
        return SCREEN_OVER;
    ready = is_changed ? -1 : poll(&input, 1, (int)ms);
    if (interrupt_came())
        return SCREEN_OVER;
    if (is_changed) {
        is_changed = 0;
        return SCREEN_CHANGED;
    }
    if (ready <= 0)
        return ready < 0 && errno != EINTR ? SCREEN_OVER : SCREEN_NONE;
    return read(STDIN_FILENO, &key, 1) == 1 ? key : SCREEN_OVER;
}
