/*
 * When the store wants to be woken: one timer, set anew each time before the loop goes to sleep. A
 * store that waits for nothing wakes nobody.
 */
#ifndef KVC_API_WAKE_H
#define KVC_API_WAKE_H

#include <uv.h>

#include "daemon/store/store.h"

struct wake;

kvc_status wake_create(uv_loop_t *loop, struct store *store, struct wake **wake);
/* The store is not called any more. NULL is fine. */
void wake_close(struct wake *wake);

#endif
