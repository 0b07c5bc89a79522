/* What a replay prints with --json. */
#include "client/ctl/report.h"

#define COUNT(path, help)                                                                          \
    {                                                                                              \
        path, FIELD_UINT64, FIELD_APART, help                                                      \
    }
#define REAL(path, help)                                                                           \
    {                                                                                              \
        path, FIELD_REAL, FIELD_APART, help                                                        \
    }

static const struct field fields[] = {
    COUNT("requests", "of the trace that were replayed"),
    COUNT("blocks", "of those requests"),
    COUNT("hit_blocks", "of those, that were loaded"),
    REAL("hit_ratio", "their share"),
    COUNT("hits.gpu", "from the gpu tier"),
    COUNT("hits.host", "from the host tier"),
    COUNT("hits.peer", "that came from a peer"),
    COUNT("saved_blocks", "that were copied"),
    COUNT("skipped_blocks", "for which there was no room"),
    COUNT("pending_blocks", "that another save was filling"),
    COUNT("present_blocks", "that were there already"),
    COUNT("bytes_saved", "of saved blocks"),
    COUNT("bytes_loaded", "of loaded blocks"),
    COUNT("verified_bytes", "that were compared"),
    COUNT("mismatches", "slices that were wrong"),
    COUNT("demotions", "of the daemon meanwhile"),
    COUNT("promotions", "likewise"),
    COUNT("evictions", "likewise"),
    COUNT("admitted_blocks", "that the daemon gave a slot meanwhile"),
    COUNT("admitted_at_once", "of them without waiting"),
    REAL("lookup_us.p50", "microseconds: half were faster"),
    REAL("lookup_us.p99", "99 of 100 were"),
    REAL("save_us.p50", "likewise"),
    REAL("save_us.p99", "likewise"),
    REAL("load_us.p50", "likewise"),
    REAL("load_us.p99", "likewise"),
    COUNT("late_saves", "given up because the answer came too late"),
    COUNT("refused_loads", "for example because the block was gone"),
    COUNT("errors", "requests of the trace that met one"),
    COUNT("skipped_lines", "that were no requests"),
    COUNT("killed_workers", "with --kill-every"),
    COUNT("killed_daemon.after_requests", "only with --kill-daemon"),
    REAL("killed_daemon.hit_ratio_before", "only with --kill-daemon"),
    REAL("killed_daemon.hit_ratio_after", "only with --kill-daemon"),
    REAL("cpu_s.daemon", "processor time"),
    REAL("cpu_s.daemon_user", "of that, outside the kernel"),
    REAL("cpu_s.daemon_system", "in the kernel"),
    REAL("cpu_s.workers", "processor time of all workers"),
    REAL("cpu_s.workers_user", "of that, outside the kernel"),
    REAL("cpu_s.workers_system", "in the kernel"),
    REAL("cpu_s.daemon_share", "the daemon's share of both"),
    REAL("phases.*.elapsed_s", "of workers in lookups, loads, verifying, generating, saves, rest"),
    REAL("phases.*.cpu_s", "their processor time there"),
    REAL("seconds", "that it took"),
    REAL("blocks_per_s", "of the trace"),
};

const struct shape report_shape = {"an object", SHAPE_FIELDS(fields)};
