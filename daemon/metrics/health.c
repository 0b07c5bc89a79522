/*
 * Whether the daemon makes progress. That it answers at all shows little: what counts is the age of
 * what is under way, and what has been lost.
 */
#include <inttypes.h>

#include "daemon/conn/message.h"
#include "daemon/metrics/figures.h"

#define SECOND_US 1000000.0

/* Whether it is as it should be; says so only if not. */
static bool within(struct text *text, const char *what, uint64_t us, uint64_t limit_us)
{
    if (us <= limit_us)
        return true;
    text_add(text, "wrong: %s for %.1f s\n", what, (double)us / SECOND_US);
    return false;
}

static bool none(struct text *text, const char *what, uint64_t n)
{
    if (n == 0)
        return true;
    text_add(text, "wrong: %s: %" PRIu64 "\n", what, n);
    return false;
}

bool health_write(const struct metrics_config *config, uint64_t lag_us, struct text *text)
{
    const uint64_t copies = copier_oldest_us(config->copier),
                   moves = mover_oldest_us(config->mover);
    struct msg_stats_reply stats;
    bool well = true;

    api_figures(config->api, &stats);
    well &= within(text, "a worker's copy is not proved", stats.oldest_op_us, METRICS_STUCK_US);
    well &= within(text, "a copy for a worker has not ended", copies, METRICS_STUCK_US);
    well &= within(text, "a copy between tiers has not ended", moves, METRICS_STUCK_US);
    well &=
        within(text, "slots are in quarantine", stats.quarantine_oldest_us, METRICS_QUARANTINE_US);
    well &= within(text, "the event loop did not run", lag_us, METRICS_LAG_US);
    if (stats.draining) {
        text_add(text, "wrong: the daemon drains, nothing new begins\n");
        well = false;
    }
    well &= none(text, "GPUs whose driver does not come back", stats.hanging_gpus);
    well &= none(text, "GPUs that have failed", stats.lost_gpus);
    well &= none(text, "descriptors whose close does not come back", stats.stuck_fds);
    well &= none(text, "extents without memory", stats.lost_extents);
    text_add(text,
             "%s\noldest_operation_seconds %.1f\noldest_copy_for_workers_seconds %.1f\n"
             "oldest_copy_between_tiers_seconds %.1f\noldest_driver_call_seconds %.1f\n"
             "event_loop_lag_seconds %.3f\nquarantined_slots %" PRIu64
             "\nquarantine_oldest_seconds %.1f\n",
             well ? "ok" : "not well", (double)stats.oldest_op_us / SECOND_US,
             (double)copies / SECOND_US, (double)moves / SECOND_US,
             (double)stats.driver_call_us / SECOND_US, (double)lag_us / SECOND_US,
             stats.quarantined_slots, (double)stats.quarantine_oldest_us / SECOND_US);
    return well;
}
