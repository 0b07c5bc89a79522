// What every test of a death needs: a daemon, somebody who looks at its figures, and a second
// worker, the witness, whose operations must succeed throughout.
//
// stage_open() plays one ordinary worker to its end, so that everything that is made once is there;
// what the daemon then has open and allocated is what it must come back to (stage_settled).
#ifndef KVC_TESTS_LIB_STAGE_H
#define KVC_TESTS_LIB_STAGE_H

#include "tests/lib/actor.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"

// Keys from here on are the witness's.
#define STAGE_WITNESS_KEYS 1000000u

// The namespace of those who do without the library, whose layout and keys are others.
#define STAGE_RAW_NS 2u

struct stage {
    struct daemon *daemon;
    const char *socket;
    kvc_client *figures;
    struct engine witness;
    uint32_t next_key; // of the witness
    uint64_t live_allocations, fds;
    // The tiers are full: what was saved first may be evicted, a save may have to be asked for
    // again, and tables have grown.
    bool crowded;
};

// args as for daemon_start(); NULL: tiers of 8 MiB each.
void stage_open(struct stage *s, const char *const args[]);
// The same on a daemon without a witness, for tests that bring their own.
void stage_open_bare(struct stage *s, const char *const args[]);

// Connects anew to a daemon that was started again; who was connected before is closed by the test.
void stage_open_figures(struct stage *s);

// The witness saves, looks up and loads something new, and finds what it saved first.
void stage_witness_works(struct stage *s);

struct admin_stats stage_stats(const struct stage *s);
// Everything that DEBUG tells; fails the test when an invariant of the store is broken.
struct admin_debug_reply stage_check(const struct stage *s);
// From now on the baseline is what is there now.
void stage_baseline(struct stage *s);

// Waits until as many sessions are left, witness included.
void stage_wait_sessions(const struct stage *s, uint32_t sessions);

// Nobody but the witness has anything: waits until no slot fills or waits for proof, no lease or
// load is open, and descriptors and allocations are back at the baseline. Then the witness works.
void stage_settled(struct stage *s);

// Settles, and stops the daemon.
void stage_close(struct stage *s);

#endif
