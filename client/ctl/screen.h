/*
 * A screen of text on a terminal that is rewritten, and keys. It needs five sequences of ECMA-48
 * and xterm's alternate screen, which every terminal of today has, so that no library is asked for
 * them.
 *
 * However the program ends, the terminal is as it was before: on return from main and exit(), on
 * signals that end or stop a process, also those of its own faults. SIGKILL is beyond that. One
 * screen a program.
 */
#ifndef KVC_CTL_SCREEN_H
#define KVC_CTL_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

/* false: standard input or output is no terminal. */
bool screen_open(void);
void screen_close(void);

void screen_size(int *rows, int *columns);

/* Shows lines, each ended by a newline, from the top; false: nobody can see it any more. */
bool screen_show(const char *text);

/* A key, or one of these. Waits at most so long. */
enum { SCREEN_NONE = -1, SCREEN_OVER = -2, SCREEN_CHANGED = -3 /* its size, or it was away */ };
int screen_key(uint32_t ms);

#endif
