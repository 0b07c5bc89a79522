// Streams and events of the driver without a GPU: what is enqueued is done when the call returns,
// but for functions of the host, which a thread of the driver calls.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/stream.h"

#define DEVICE_STREAM ((void *)0x10)

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

// Functions of the host that are to be called, in their order; one thread calls them.
struct host_call {
    struct host_call *next;
    void (*call)(void *arg);
    void *arg;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_once_t once;
    struct host_call *first, **last;
} calls = {.lock = PTHREAD_MUTEX_INITIALIZER,
           .wake = PTHREAD_COND_INITIALIZER,
           .once = PTHREAD_ONCE_INIT,
           .last = &calls.first};

static void *make_calls(void *arg)
{
    (void)arg;
    for (;;) {
        struct host_call *c;

        pthread_mutex_lock(&calls.lock);
        while (calls.first == NULL)
            pthread_cond_wait(&calls.wake, &calls.lock);
        c = calls.first;
        calls.first = c->next;
        if (calls.first == NULL)
            calls.last = &calls.first;
        pthread_mutex_unlock(&calls.lock);
        fake_hang("hold-calls");
        c->call(c->arg);
        free(c);
    }
    return NULL;
}

static void start_calls(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, make_calls, NULL) == 0)
        pthread_detach(thread);
}

int fake_stream_call(void *stream, void (*call)(void *arg), void *arg)
{
    struct host_call *c;

    (void)stream;
    NEED_CONTEXT;
    if (fake_switch("lose-calls")) // what becomes of them after an error of the context
        return 0;
    pthread_once(&calls.once, start_calls);
    c = malloc(sizeof(*c));
    *c = (struct host_call){NULL, call, arg};
    pthread_mutex_lock(&calls.lock);
    *calls.last = c;
    calls.last = &c->next;
    pthread_cond_signal(&calls.wake);
    pthread_mutex_unlock(&calls.lock);
    return 0;
}

static int open_page(uint64_t name, bool make)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/event-%llx", folder != NULL ? folder : "/tmp",
             (unsigned long long)name);
    fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT | O_EXCL : 0), 0666);
    if (fd >= 0 && make && ftruncate(fd, 4096) != 0)
        return -1;
    return fd;
}

int fake_event_open(uint64_t name, bool make, void **event)
{
    struct fake_event *e = malloc(sizeof(*e));
    const int fd = name != 0 ? open_page(name, make) : -1;

    *e = (struct fake_event){name, make, MAP_FAILED};
    if (name == 0 || fd >= 0)
        e->pending = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                          fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0)
        close(fd);
    if (e->pending == MAP_FAILED) {
        free(e);
        return INVALID;
    }
    *event = e;
    return 0;
}

int fake_event_create(void **event, unsigned flags)
{
    uint64_t name = 0;

    NEED_CONTEXT;
    if (flags & CUDA_EVENT_INTERPROCESS && getrandom(&name, sizeof(name), 0) != sizeof(name))
        return INVALID;
    return fake_event_open(name, true, event);
}

int fake_event_destroy(void *event)
{
    struct fake_event *e = event;
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[512];

    NEED_CONTEXT;
    munmap(e->pending, 4096);
    snprintf(path, sizeof(path), "%s/event-%llx", folder != NULL ? folder : "/tmp",
             (unsigned long long)e->name);
    if (e->name != 0 && e->made)
        unlink(path);
    free(e);
    return 0;
}

int fake_event_record(void *event, void *stream)
{
    struct fake_event *e = event;

    (void)stream;
    NEED_CONTEXT;
    atomic_store(e->pending, e->name != 0 && kvc_fake_hold);
    return 0;
}

int fake_event_query(void *event)
{
    struct fake_event *e = event;

    NEED_CONTEXT;
    if (fake_switch("hold-calls"))
        return CUDA_NOT_READY;
    if (fake_switch("fail-query"))
        return 719; // CUDA_ERROR_LAUNCH_FAILED
    return atomic_load(e->pending) ? CUDA_NOT_READY : 0;
}

int fake_event_elapsed(float *ms, void *start, void *end)
{
    (void)start;
    (void)end;
    NEED_CONTEXT;
    *ms = 0.1f;
    return 0;
}

int fake_event_synchronize(void *event)
{
    struct fake_event *e = event;

    NEED_CONTEXT;
    while (atomic_load(e->pending))
        usleep(1000);
    return 0;
}
