#include "tests/lib/tree.h"

#include <check.h>
#include <stdio.h>

void tree_read(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    size_t n;

    ck_assert_msg(file != NULL, "no %s: run it from the top of the tree", path);
    n = fread(text, 1, size - 1, file);
    ck_assert_msg(n < size - 1, "%s is longer than expected", path);
    text[n] = '\0';
    fclose(file);
}
