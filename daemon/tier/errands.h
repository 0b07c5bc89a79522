/*
 * Errands: calls that may hang, of the driver or of anything else, made one after the other on a
 * thread of their own. Whoever asked for one is called back on the loop; while one hangs, those
 * behind it wait and nobody else does.
 */
#ifndef KVC_TIER_ERRANDS_H
#define KVC_TIER_ERRANDS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/list.h"
#include "proto/status.h"

#define ERRANDS_LATE_MS 5000u /* one that takes longer is said to hang */

struct errands;

/* Part of the caller's struct, which stays until done is called. */
struct errand {
    struct list link;
    void (*work)(struct errand *errand); /* on the thread */
    void (*done)(struct errand *errand); /* on the loop; it may ask for more */
    void *arg;                           /* the caller's */
};

kvc_status errands_create(uv_loop_t *loop, const char *name, struct errands **errands);

/* Never calls back from inside. In the order in which they were asked for. */
void errands_run(struct errands *errands, struct errand *errand);

uint32_t errands_count(const struct errands *errands); /* whose done is owed */
/* For how long the one under way has been; 0: there is none. */
uint64_t errands_since_us(const struct errands *errands);
bool errands_hang(const struct errands *errands);

/*
 * What was asked for and is not done is dropped, once the one under way has ended. False: it hangs,
 * and what it uses, the errand too, must be left behind. NULL is fine.
 */
bool errands_destroy(struct errands *errands);

#endif
