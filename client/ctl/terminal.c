#include "client/ctl/terminal.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/human.h"

#define BAR_CELLS 20

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

void terminal_progress(uint64_t done, uint64_t total, const char *text)
{
    char bar[HUMAN_MAX];

    if (!isatty(STDERR_FILENO))
        return;
    /* A line that wraps could not be rewritten: the text has what 80 columns leave. */
    fprintf(stderr, "\r[%s] %.56s\033[K", human_bar(done, total, BAR_CELLS, bar), text);
    fflush(stderr);
}

void terminal_progress_end(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}
