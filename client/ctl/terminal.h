/*
 * What the output goes to: whether it is a terminal, how wide, and whether colours are wanted
 * there. JSON has none, nor has what goes to a file or a pipe; NO_COLOR and TERM=dumb switch them
 * off.
 */
#ifndef KVC_CTL_TERMINAL_H
#define KVC_CTL_TERMINAL_H

#include <stdbool.h>

enum paint { PAINT_NONE, PAINT_HEAD, PAINT_GOOD, PAINT_WARN, PAINT_BAD, PAINT_GREY };

/* The sequence that begins a colour, or ends all of them (PAINT_NONE); "" where there are none. */
const char *terminal_paint(enum paint paint);

/* Columns of standard output; INT_MAX when it is no terminal. */
int terminal_width(void);

#endif
