// Streams and events of the driver without a GPU: what is enqueued is done when the call returns,
// but for functions of the host, which a thread of the driver calls.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/gpu/fake/fake.h"

static atomic_uintptr_t streams = 0x1000; // their handles are told apart, and that is all

int fake_context_priorities(int *least, int *greatest)
{
    NEED_CONTEXT;
    *least = 0;
    *greatest = -5;
    return 0;
}

int fake_stream_create(void **stream, unsigned flags)
{
    NEED_CONTEXT;
    if (flags != CUDA_STREAM_NON_BLOCKING)
        fake_note("blocking-stream");
    fake_alive(1);
    *stream = (void *)atomic_fetch_add(&streams, 1);
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
    fake_alive(-1);
    return 0;
}

int fake_stream_synchronize(void *stream)
{
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    return 0;
}

int fake_stream_capturing(void *stream, int *status)
{
    NEED_CONTEXT;
    *status = stream == (void *)0xca;
    return 0;
}

// What streams share has to be handed over: by an event behind the last use, for which the next one
// waits. Uses, records and waits are numbered in their order.
struct event {
    const void *stream;
    uint64_t at;
};

#define MARKS_MAX 64u

static struct {
    pthread_mutex_t lock;
    uint64_t now;
    struct mark {
        uint64_t shared; // what is shared, where it is
        const void *stream;
        uint64_t at;
    } uses[MARKS_MAX];
    struct {
        const void *stream;
        struct event event;
    } waits[MARKS_MAX]; // the last ones
    uint32_t n_uses, n_waits;
} order = {.lock = PTHREAD_MUTEX_INITIALIZER};

int fake_stream_wait(void *stream, void *event, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    fake_catch_up();
    pthread_mutex_lock(&order.lock);
    order.waits[order.n_waits % MARKS_MAX].stream = stream;
    order.waits[order.n_waits++ % MARKS_MAX].event = *(struct event *)event;
    pthread_mutex_unlock(&order.lock);
    return 0;
}

// Whether a stream waits for what another one had used by then.
static bool waits_for(const void *stream, const struct mark *use)
{
    for (uint32_t i = 0; i < MARKS_MAX && i < order.n_waits; i++)
        if (order.waits[i].stream == stream && order.waits[i].event.stream == use->stream &&
            order.waits[i].event.at > use->at)
            return true;
    return false;
}

bool fake_share(uint64_t shared, const void *stream)
{
    struct mark *use = order.uses;
    bool fine;

    pthread_mutex_lock(&order.lock);
    while (use < order.uses + order.n_uses && use->shared != shared)
        use++;
    fine = use == order.uses + order.n_uses || use->stream == stream || waits_for(stream, use);
    if (use < order.uses + MARKS_MAX)
        *use = (struct mark){shared, stream, ++order.now};
    if (use == order.uses + order.n_uses && order.n_uses < MARKS_MAX)
        order.n_uses++;
    pthread_mutex_unlock(&order.lock);
    return fine;
}

void fake_share_anew(uint64_t at, uint64_t bytes)
{
    pthread_mutex_lock(&order.lock);
    for (uint32_t i = 0; i < order.n_uses;)
        if (order.uses[i].shared - at < bytes)
            order.uses[i] = order.uses[--order.n_uses];
        else
            i++;
    pthread_mutex_unlock(&order.lock);
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

    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
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

// Writes behind launches that never run, until something is written behind launches that did.
#define HELD_MAX 64

static struct {
    uint64_t to, value;
} held[HELD_MAX];
static int n_held;

static void write_word(uint64_t to, uint64_t value)
{
    __atomic_store_n((uint64_t *)(uintptr_t)to, value, __ATOMIC_RELEASE);
}

int fake_stream_write(void *stream, uint64_t to, uint64_t value, unsigned flags)
{
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    if (flags != 0 || to % 8 != 0 || (kvc_fake_hold && n_held == HELD_MAX))
        return INVALID;
    if (kvc_fake_hold) {
        held[n_held].to = to;
        held[n_held++].value = value;
        return 0;
    }
    for (int i = 0; i < n_held; i++)
        write_word(held[i].to, held[i].value);
    n_held = 0;
    write_word(to, value);
    return 0;
}

int fake_event_create(void **event, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    *event = calloc(1, sizeof(struct event));
    fake_alive(1);
    return *event != NULL ? 0 : CUDA_OUT_OF_MEMORY;
}

int fake_event_destroy(void *event)
{
    NEED_CONTEXT;
    free(event);
    fake_alive(-1);
    return 0;
}

int fake_event_record(void *event, void *stream)
{
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    if (fake_more)
        abort(); // whatever comes next on the stream would have begun already
    pthread_mutex_lock(&order.lock);
    *(struct event *)event = (struct event){stream, ++order.now};
    pthread_mutex_unlock(&order.lock);
    return 0;
}

int fake_event_query(void *event)
{
    (void)event;
    NEED_CONTEXT;
    if (fake_switch("hold-calls"))
        return CUDA_NOT_READY;
    if (fake_switch("fail-query"))
        return 719; // CUDA_ERROR_LAUNCH_FAILED
    return 0;
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
    (void)event;
    NEED_CONTEXT;
    return 0;
}
