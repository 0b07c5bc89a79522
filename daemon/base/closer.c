#include "daemon/base/closer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

// Enough for close() and a line of the log, also with a sanitizer.
#define STACK_BYTES (256u * 1024u)
#define FAULT_US    1000u

struct entry {
    int fd;
    struct closer_source source;
};

struct lane {
    struct entry entry;
    uint64_t since_us;
    bool busy, stuck;
};

struct closer {
    pthread_mutex_t lock;
    pthread_cond_t work;  // something may be taken, or all is over
    pthread_cond_t ended; // a thread has ended, or has closed something
    struct entry queue[CLOSER_QUEUE];
    uint32_t first, count;
    atomic_uint pressure; // count, for who does not hold the lock
    struct lane lanes[CLOSER_LANES];
    uint32_t threads, idle, stuck;
    uint64_t left_open;
    bool watched; // a thread waits for no longer than the active lane may take
    bool stopping;
    bool abandoned; // the last thread frees it
};

// What waits in the kernel takes no notice of a clock that tests move.
static uint64_t kernel_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * CLOCK_S_US + (uint64_t)now.tv_nsec / 1000;
}

static struct timespec kernel_time_in(uint64_t us)
{
    const uint64_t until = kernel_now_us() + us;

    return (struct timespec){.tv_sec = (time_t)(until / CLOCK_S_US),
                             .tv_nsec = (long)(until % CLOCK_S_US * 1000)};
}

static struct entry *at(struct closer *c, uint32_t i)
{
    return &c->queue[(c->first + i) % CLOSER_QUEUE];
}

static uint32_t stuck_of(const struct closer *c, uint32_t user)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < CLOSER_LANES; i++)
        n += c->lanes[i].stuck && c->lanes[i].entry.source.user == user;
    return n;
}

// The lane that is not stuck: there is one at most, but for those that come to an end just now.
static struct lane *active(struct closer *c)
{
    for (uint32_t i = 0; i < CLOSER_LANES; i++)
        if (c->lanes[i].busy && !c->lanes[i].stuck)
            return &c->lanes[i];
    return NULL;
}

static struct lane *free_lane(struct closer *c)
{
    for (uint32_t i = 0; i < CLOSER_LANES; i++)
        if (!c->lanes[i].busy)
            return &c->lanes[i];
    return NULL;
}

// Those of a user who has had his share of lanes stay where they are.
static bool take(struct closer *c, struct entry *ret)
{
    uint32_t i = 0, refused = CLOSER_NOBODY.user;

    for (; i < c->count; i++) {
        const uint32_t user = at(c, i)->source.user;

        if (c->stuck == 0 || (user != refused && stuck_of(c, user) < CLOSER_LANES_OF_USER))
            break;
        refused = user;
    }
    if (i == c->count)
        return false;
    *ret = *at(c, i);
    for (; i > 0; i--)
        *at(c, i) = *at(c, i - 1);
    c->first = (c->first + 1) % CLOSER_QUEUE;
    atomic_store(&c->pressure, --c->count);
    return true;
}

static void mark_stuck(struct closer *c, struct lane *lane)
{
    lane->stuck = true;
    if (c->stuck++ == 0)
        log_warn("base", "closing a descriptor takes long user=%u", lane->entry.source.user);
}

// As long as the active lane may be at it.
static void wait_for_active(struct closer *c, const struct lane *lane)
{
    const uint64_t age = kernel_now_us() - lane->since_us;
    const uint64_t left = age < CLOSER_LATE_US ? CLOSER_LATE_US - age : 0;
    const struct timespec until = kernel_time_in(left);

    c->watched = true;
    pthread_cond_timedwait(&c->work, &c->lock, &until);
    c->watched = false;
}

// Who sent it may have set SO_LINGER to hours; a socket takes notice of this, nothing else does. He
// may also set it again in between, and then it is this thread that waits.
static void close_foreign(int fd)
{
    const struct linger none = {0};

    while (fault_fires("closer.stuck"))
        usleep(FAULT_US);
    if (!fault_fires("closer.linger"))
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    fd_close(fd);
}

static int start_thread(struct closer *c);

// With the lock held, which is let go for as long as the close takes.
static void close_in(struct closer *c, struct lane *lane)
{
    // Somebody must be there to see that it takes long.
    if (c->idle == 0 && c->threads < CLOSER_LANES + 1)
        start_thread(c);
    lane->busy = true;
    lane->since_us = kernel_now_us();
    if (!c->watched)
        pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
    close_foreign(lane->entry.fd);
    pthread_mutex_lock(&c->lock);
    c->stuck -= lane->stuck;
    lane->busy = lane->stuck = false;
    pthread_cond_broadcast(&c->ended);
}

static void free_closer(struct closer *c)
{
    pthread_cond_destroy(&c->ended);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

// Whether this thread waits for more: one closes, one watches it.
static bool is_wanted(const struct closer *c)
{
    if (c->stopping)
        return !c->abandoned && c->count > 0 && c->idle == 0;
    return c->idle < 2;
}

static void *run(void *arg)
{
    struct closer *c = arg;
    bool last;

    while (fault_fires("closer.late"))
        usleep(FAULT_US);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct lane *lane = active(c);

        if (lane != NULL && kernel_now_us() - lane->since_us >= CLOSER_LATE_US) {
            mark_stuck(c, lane);
            continue;
        }
        if (lane == NULL && c->count > 0 && (lane = free_lane(c)) != NULL &&
            take(c, &lane->entry)) {
            close_in(c, lane);
            continue;
        }
        if (!is_wanted(c))
            break;
        lane = active(c);
        c->idle++;
        if (lane != NULL)
            wait_for_active(c, lane);
        else
            pthread_cond_wait(&c->work, &c->lock);
        c->idle--;
    }
    c->threads--;
    last = c->abandoned && c->threads == 0;
    pthread_cond_broadcast(&c->ended);
    pthread_mutex_unlock(&c->lock);
    if (last)
        free_closer(c);
    return NULL;
}

// The signals that stop the daemon are for its loop.
static int start_thread(struct closer *c)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int error;

    if (fault_fires("closer.thread"))
        return -EAGAIN;
    if (pthread_attr_init(&attr) != 0)
        return -ENOMEM;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attr, run, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    c->threads += error == 0;
    return -error;
}

int closer_create(struct closer **ret)
{
    struct closer *c = mem_zalloc(sizeof(*c));
    pthread_condattr_t attr;
    int error;

    if (c == NULL)
        return -ENOMEM;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->work, &attr);
    pthread_cond_init(&c->ended, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_lock(&c->lock);
    error = start_thread(c);
    pthread_mutex_unlock(&c->lock);
    if (error < 0) {
        free_closer(c);
        return error;
    }
    *ret = c;
    return 0;
}

static bool is_at_one(const struct closer *c)
{
    for (uint32_t i = 0; i < CLOSER_LANES; i++)
        if (c->lanes[i].busy)
            return true;
    return false;
}

// Time is over only for a close that is under way: a thread that is at none, on a busy machine, has
// had no processor to see that all is over, and will.
static void wait_for_threads(struct closer *c, uint64_t wait_us)
{
    struct timespec until = kernel_time_in(wait_us);

    while (c->threads > 0) {
        if (pthread_cond_timedwait(&c->ended, &c->lock, &until) == 0)
            continue;
        if (is_at_one(c))
            return;
        until = kernel_time_in(CLOSER_LATE_US);
    }
}

void closer_destroy(struct closer *c, uint64_t wait_us)
{
    bool last;

    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->work);
    wait_for_threads(c, wait_us);
    if (c->threads > 0)
        log_warn("base", "descriptors are not closed stuck=%u waiting=%u", c->stuck, c->count);
    c->abandoned = true;
    pthread_cond_broadcast(&c->work);
    last = c->threads == 0;
    pthread_mutex_unlock(&c->lock);
    if (last)
        free_closer(c);
}

void closer_close(struct closer *c, int fd, struct closer_source source)
{
    const int saved = errno;

    if (fd < 0)
        return;
    pthread_mutex_lock(&c->lock);
    if (c->count == CLOSER_QUEUE) {
        if (c->left_open++ == 0)
            log_warn("base", "a descriptor is left open user=%u reason=\"%u wait to be closed\"",
                     source.user, c->count);
    } else {
        *at(c, c->count) = (struct entry){fd, source};
        atomic_store(&c->pressure, ++c->count);
        if (c->idle > 0 && active(c) == NULL)
            pthread_cond_signal(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
    errno = saved;
}

bool closer_is_pressed(struct closer *c, struct closer_source source)
{
    uint32_t users = 0, own = 0;
    bool pressed;

    if (atomic_load(&c->pressure) < CLOSER_SHARE)
        return false;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct closer_source *other = &at(c, i)->source;

        users += other->user == source.user;
        own += other->user == source.user && other->process == source.process;
    }
    pressed = own >= CLOSER_SHARE || users >= 2 * CLOSER_SHARE ||
              (users > 0 && c->count >= CLOSER_QUEUE - CLOSER_SHARE);
    pthread_mutex_unlock(&c->lock);
    return pressed;
}

void closer_figures(struct closer *c, struct closer_stats *ret)
{
    pthread_mutex_lock(&c->lock);
    *ret = (struct closer_stats){
        .waiting = c->count + (active(c) != NULL), .stuck = c->stuck, .left_open = c->left_open};
    pthread_mutex_unlock(&c->lock);
}
