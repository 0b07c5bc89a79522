#include "proto/spelling.h"

#include <string.h>

/* The first of the words that it has. */
static bool begins(const char *given, const char *known)
{
    const size_t n = strlen(given);

    return n > 1 && strncmp(given, known, n) == 0 && known[n] == '-';
}

size_t spelling_distance(const char *given, const char *known)
{
    size_t row[SPELLING_NAME_MAX + 1], n = strlen(known);

    if (n > SPELLING_NAME_MAX)
        return n;
    if (begins(given, known))
        return 1;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; *given != '\0'; given++, i++) {
        size_t left_above = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t above = row[j], best = left_above + (*given != known[j - 1]);

            best = above + 1 < best ? above + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            left_above = above;
        }
    }
    return row[n];
}

bool spelling_is_near(const char *given, const char *known)
{
    size_t distance = spelling_distance(given, known);

    return distance <= 3 && 2 * distance <= strlen(given);
}
