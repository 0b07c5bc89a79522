/*
 * Help texts on a terminal: lines no wider than it is, and those that go on are indented. Elsewhere
 * (a pipe, a file) a line stays one.
 */
#ifndef KVC_PROTO_WRAP_H
#define KVC_PROTO_WRAP_H

#include <stdio.h>

/* Columns of the terminal that this goes to; INT_MAX when it is none. */
int wrap_width(FILE *to);

/* A line of ASCII, and its end. What goes on begins in this column; a word that is wider than that
 * leaves is not cut. */
void wrap_line(FILE *to, const char *line, int column);

#endif
