/*
 * The figures of the daemon as metrics, and what health follows from them.
 */
#ifndef KVC_METRICS_FIGURES_H
#define KVC_METRICS_FIGURES_H

#include "daemon/metrics/metrics.h"
#include "daemon/metrics/self.h"
#include "daemon/metrics/text.h"

/* What takes longer than this has stopped: a save that is not proved by then is aborted. */
#define METRICS_STUCK_US      (40u * UINT64_C(1000000))
#define METRICS_QUARANTINE_US (300u * UINT64_C(1000000))
/* A loop that does not run for so long makes every worker wait. */
#define METRICS_LAG_US UINT64_C(1000000)

void figures_write(const struct metrics_config *config, const struct self *self,
                   const struct histogram *lag, struct text *text);

/*
 * Whether all is well, and in lines what is not, with the ages that progress is judged by. lag_us:
 * how late the loop was of late, at worst.
 */
bool health_write(const struct metrics_config *config, uint64_t lag_us, struct text *text);

#endif
