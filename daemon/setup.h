/*
 * What the process sets for itself, once or for a while: limits, threads, signals, its epoch.
 */
#ifndef KVC_DAEMON_SETUP_H
#define KVC_DAEMON_SETUP_H

#include <stdint.h>

void setup_descriptor_limit(void);

/* The calling thread will run the loop. */
void setup_loop_slice(void);

/* Before the loop's pool has its first work. */
void setup_pool(void);

/*
 * Whether this thread, and the threads that it starts from now on, get the signals that stop us and
 * have us reload: SIG_BLOCK or SIG_UNBLOCK.
 */
void setup_mask_signals(int how);

/* A number of this start of the daemon; 62 bits. */
uint64_t setup_boot_epoch(void);

#endif
