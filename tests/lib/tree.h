// Files of the source tree, which tests are run from the top of.
#ifndef KVC_TESTS_LIB_TREE_H
#define KVC_TESTS_LIB_TREE_H

#include <stddef.h>

// The whole of it, which must fit with a zero behind it.
void tree_read(const char *path, char *text, size_t size);

#endif
