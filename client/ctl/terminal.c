#include "client/ctl/terminal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH_USUAL 80
#define WIDTH_MIN   40

static bool has_colours(void)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(STDOUT_FILENO) && !(none && *none) && term && strcmp(term, "dumb") != 0;
}

const char *terminal_paint(enum paint paint)
{
    /* SGR of ECMA-48, and only what every terminal has. */
    static const char *const sequences[] = {
        [PAINT_NONE] = "\033[0m",  [PAINT_HEAD] = "\033[1m", [PAINT_GOOD] = "\033[32m",
        [PAINT_WARN] = "\033[33m", [PAINT_BAD] = "\033[31m", [PAINT_GREY] = "\033[2m",
    };

    return has_colours() ? sequences[paint] : "";
}

int terminal_width(void)
{
    struct winsize size;

    if (!isatty(STDOUT_FILENO))
        return INT_MAX;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return WIDTH_USUAL;
    return size.ws_col < WIDTH_MIN ? WIDTH_MIN : size.ws_col;
}
