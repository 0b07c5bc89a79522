/*
 * What the output goes to: whether it is a terminal, how wide, and whether colours are wanted
 * there. JSON has none, nor has what goes to a file or a pipe; NO_COLOR and TERM=dumb switch them
 * off.
 */
#ifndef KVC_CTL_TERMINAL_H
#define KVC_CTL_TERMINAL_H

#include <stdint.h>

enum paint { PAINT_NONE, PAINT_HEAD, PAINT_GOOD, PAINT_WARN, PAINT_BAD, PAINT_GREY };

/* The sequence that begins a colour, or ends all of them (PAINT_NONE); "" where there are none. */
const char *terminal_paint(enum paint paint);

/*
 * One line on standard error, rewritten each time, if that is a terminal: a bar and a text. The end
 * wipes it away.
 */
void terminal_progress(uint64_t done, uint64_t total, const char *text);
void terminal_progress_end(void);
#endif
