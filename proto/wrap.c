#include "proto/wrap.h"

#include <limits.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH_USUAL 80
#define WIDTH_MIN   40

int wrap_width(FILE *to)
{
    struct winsize size;

    if (!isatty(fileno(to)))
        return INT_MAX;
    if (ioctl(fileno(to), TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return WIDTH_USUAL;
    return size.ws_col < WIDTH_MIN ? WIDTH_MIN : size.ws_col;
}

/* Bytes of the line up to the last space behind `least` of them that leaves it no longer than most;
 * or to the first space there is. */
static size_t cut(const char *line, size_t least, size_t most)
{
    const size_t len = strlen(line);
    size_t at = 0;

    if (len <= most)
        return len;
    for (size_t i = least; i < len; i++) {
        if (line[i] != ' ')
            continue;
        if (i > most && at > 0)
            break;
        at = i;
        if (i > most)
            break;
    }
    return at > 0 ? at : len;
}

void wrap_line(FILE *to, const char *line, int column)
{
    const size_t indent = (size_t)column, width = (size_t)wrap_width(to);
    /* The first line's own columns are not a place to break it. */
    size_t n = cut(line, indent, width);

    fprintf(to, "%.*s\n", (int)n, line);
    while (line[n] != '\0') {
        line += n + strspn(line + n, " ");
        n = cut(line, 0, width > indent ? width - indent : 1);
        if (n > 0)
            fprintf(to, "%*s%.*s\n", column, "", (int)n, line);
    }
}
