/*
 * Signals that ask this program to end, for commands that have something to take down first: they
 * are noted, and the command looks from time to time.
 */
#ifndef KVC_CTL_INTERRUPT_H
#define KVC_CTL_INTERRUPT_H

#include <stdbool.h>

/* From now on SIGINT, SIGTERM and SIGHUP are noted, and output that nobody reads is an error. */
void interrupt_catch(void);

/* Whether one of them has come. */
bool interrupt_came(void);

/* For a child of this program: they, and SIGPIPE, do what they did at first. */
void interrupt_restore(void);

#endif
