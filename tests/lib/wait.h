// Waiting for something to become true, never for a time to pass.
//
//     ck_assert(wait_until(store_blocks(s) == 4, 2000));
#ifndef KVC_TESTS_LIB_WAIT_H
#define KVC_TESTS_LIB_WAIT_H

#include <stdbool.h>
#include <stdint.h>

// Polls the condition each 0.2 ms, then ever more rarely up to each 10 ms; whether it became true
// within deadline_ms (times CHECK_PATIENCE and KVC_TEST_TIMEOUT_MULTIPLIER, check_main.h). Real
// time: the movable clock has no part in it.
#define wait_until(condition, deadline_ms)                                                         \
    __extension__({                                                                                \
        struct wait_poll wait_poll_ = wait_start(deadline_ms);                                     \
        bool wait_true_;                                                                           \
        while (!(wait_true_ = (condition)) && wait_more(&wait_poll_))                              \
            ;                                                                                      \
        wait_true_;                                                                                \
    })

// wait_until() that fails the test, showing the condition.
#define wait_for(condition, deadline_ms)                                                           \
    ck_assert_msg(wait_until(condition, deadline_ms), "not within %d ms: %s", (int)(deadline_ms),  \
                  #condition)

// What a call of the library is given as its deadline, likewise.
uint32_t wait_patient_ms(int deadline_ms);

struct wait_poll {
    uint64_t deadline_us;
    uint64_t pause_us;
};

struct wait_poll wait_start(int deadline_ms);
bool wait_more(struct wait_poll *poll);

#endif
