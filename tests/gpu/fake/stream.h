// Events of the driver without a GPU.
#ifndef KVC_TESTS_GPU_FAKE_STREAM_H
#define KVC_TESTS_GPU_FAKE_STREAM_H

#include <stdatomic.h>

struct fake_event {
    int fd;              // the page, of one that other processes open; else -1
    atomic_int *pending; // whether it was recorded behind launches that never run
};

// Takes the descriptor over.
int fake_event_from(int fd, void **event);

#endif
