/*
 * Points at which a test stops this process, to kill it there. Debug builds only.
 *
 * The points: save.before_chunk, save.before_word, load.before_copy, load.before_word.
 */
#ifndef KVC_CLIENT_PAUSE_H
#define KVC_CLIENT_PAUSE_H

#ifdef KVC_DEBUG
/*
 * Stops the process (SIGSTOP) at this thread's n-th pass of point from now, counted from 1; 0:
 * never. One point at a time. $KVC_DEBUG_PAUSE="point:n" does the same from the start.
 */
void pause_arm(const char *point, unsigned n);
void pause_pass(const char *point);
#else
#define pause_pass(point) ((void)0)
#endif

#endif
