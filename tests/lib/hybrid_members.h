// What the members of a hybrid's crew do in their own processes; for hybrid.c only. Functions stand
// with what they are given.
#ifndef KVC_TESTS_LIB_HYBRID_MEMBERS_H
#define KVC_TESTS_LIB_HYBRID_MEMBERS_H

#include "tests/lib/hybrid.h"

#define GROUPS HYBRID_GROUPS

kvc_client *hybrid_connect(const char *socket, kvc_role role);

struct hybrid_open {
    char socket[128];
    uint32_t rank;
};

struct hybrid_lease {
    uint64_t request;
    kvc_lease lease;
    kvc_status status;
};

struct hybrid_layer {
    struct step step;
    uint32_t layer;
    kvc_status status;
};

struct hybrid_end {
    bool cancel;
    kvc_outcome outcomes[GROUPS];
};

struct hybrid_load {
    uint32_t spoil, layers, invalid;
};

// struct hybrid_open
crew_fn hybrid_in_open_scheduler, hybrid_in_open_worker;
// struct hybrid_lease
crew_fn hybrid_in_look_up, hybrid_in_release, hybrid_in_extend, hybrid_in_adopt;
// struct step; struct hybrid_layer; struct hybrid_end
crew_fn hybrid_in_begin_step, hybrid_in_prefill;
crew_fn hybrid_in_next_layer;
crew_fn hybrid_in_end_step;
// struct hybrid_load
crew_fn hybrid_in_load;
// uint64_t, how many blocks went; uint32_t, how many keys, and then how many there were; or which
crew_fn hybrid_in_reset;
crew_fn hybrid_in_pin, hybrid_in_lose;
// none
crew_fn hybrid_in_close_up, hybrid_in_register_again, hybrid_in_let_go, hybrid_in_overwrite;

#endif
