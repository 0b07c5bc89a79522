// Streams and events of the driver without a GPU: what is enqueued is done when the call returns,
// but for functions of the host, which a thread of the driver calls.
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/stream.h"

#define DEVICE_STREAM ((void *)0x10)
#define NOT_RECORDED  0

int fake_context_priorities(int *least, int *greatest)
{
    NEED_CONTEXT;
    *least = 0;
    *greatest = -5;
    return 0;
}

int fake_stream_create(void **stream, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    *stream = DEVICE_STREAM;
    return 0;
}

int fake_stream_create_low(void **stream, unsigned flags, int priority)
{
    return priority == 0 ? fake_stream_create(stream, flags) : INVALID;
}

int fake_stream_destroy(void *stream)
{
    (void)stream;
    NEED_CONTEXT;
    return 0;
}

int fake_stream_synchronize(void *stream)
{
    (void)stream;
    NEED_CONTEXT;
    return 0;
}

int fake_stream_capturing(void *stream, int *status)
{
    NEED_CONTEXT;
    *status = stream == (void *)0xca;
    return 0;
}

int fake_stream_wait(void *stream, void *event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    NEED_CONTEXT;
    return 0;
}

struct host_call {
    void (*call)(void *arg);
    void *arg;
};

static void *make_call(void *arg)
{
    struct host_call *c = arg;

    while (fake_switch("hold-calls"))
        usleep(1000);
    c->call(c->arg);
    free(c);
    return NULL;
}

int fake_stream_call(void *stream, void (*call)(void *arg), void *arg)
{
    struct host_call *c = malloc(sizeof(*c));
    pthread_t thread;

    (void)stream;
    NEED_CONTEXT;
    *c = (struct host_call){call, arg};
    if (fake_switch("lose-calls")) { // what becomes of them after an error of the context
        free(c);
        return 0;
    }
    if (pthread_create(&thread, NULL, make_call, c) != 0)
        return CUDA_OUT_OF_MEMORY;
    pthread_detach(thread);
    return 0;
}

int fake_event_from(int fd, void **event)
{
    struct fake_event *e = malloc(sizeof(*e));

    e->fd = fd;
    e->pending = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                      fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (e->pending == MAP_FAILED) {
        free(e);
        return INVALID;
    }
    *event = e;
    return 0;
}

int fake_event_create(void **event, unsigned flags)
{
    int fd = -1;

    NEED_CONTEXT;
    if (flags & CUDA_EVENT_INTERPROCESS) {
        fd = memfd_create("fake-event", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, 4096) != 0)
            return CUDA_OUT_OF_MEMORY;
    }
    return fake_event_from(fd, event);
}

int fake_event_destroy(void *event)
{
    struct fake_event *e = event;

    NEED_CONTEXT;
    munmap(e->pending, 4096);
    if (e->fd >= 0)
        close(e->fd);
    free(e);
    return 0;
}

int fake_event_record(void *event, void *stream)
{
    struct fake_event *e = event;

    (void)stream;
    NEED_CONTEXT;
    atomic_store(e->pending, e->fd >= 0 && kvc_fake_hold);
    return 0;
}

int fake_event_query(void *event)
{
    struct fake_event *e = event;

    NEED_CONTEXT;
    if (fake_switch("fail-query"))
        return 719; // CUDA_ERROR_LAUNCH_FAILED
    return atomic_load(e->pending) ? CUDA_NOT_READY : 0;
}

int fake_event_synchronize(void *event)
{
    struct fake_event *e = event;

    NEED_CONTEXT;
    while (atomic_load(e->pending))
        usleep(1000);
    return 0;
}
