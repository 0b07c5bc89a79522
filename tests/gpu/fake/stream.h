// Events of the driver without a GPU.
#ifndef KVC_TESTS_GPU_FAKE_STREAM_H
#define KVC_TESTS_GPU_FAKE_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_event {
    uint64_t name;       // of one that other processes open; else 0
    bool made;           // here
    atomic_int *pending; // whether it was recorded behind launches that never run
};

// name 0: of this process alone.
int fake_event_open(uint64_t name, bool make, void **event);

#endif
