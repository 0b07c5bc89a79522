// Fault switches: named places in the code that a test can make fail. They exist in debug builds
// only; in a release build fault_fires() is the constant false and the rest is not there.
//
// A name says room and operation ("slot.alloc"). A site becomes known when it is armed or passed
// for the first time. fault_passed() and fault_fired() let a test prove that its fault happened.
//
// The switches, and how far the clock was moved, live in one page of memory. A daemon started with
// KVC_DEBUG_SWITCHES=FILE in its environment shares that page with the test that made the file
// (daemon/base/debug.h), so a test can arm a fault, or move the clock, in a daemon that runs.
#ifndef KVC_DAEMON_BASE_FAULT_H
#define KVC_DAEMON_BASE_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef KVC_DEBUG

// Whether this passage of the site is to fail. Any thread.
bool fault_fires(const char *site);

// Lets `skip` passages through, then fails the next `count`. Arming again starts anew.
void fault_arm(const char *site, uint32_t skip, uint32_t count);

// Every passage of every site fails with a probability of per_mille / 1000. 0 switches it off.
void fault_random(uint64_t seed, uint32_t per_mille);

// Disarms the sites that match; a trailing * stands for anything ("*" is all, and the random mode).
// The counters stay.
void fault_off(const char *pattern);

// How often the site was reached, and how often it failed, since the start of the process or the
// latest fault_arm() of it.
uint64_t fault_passed(const char *site);
uint64_t fault_fired(const char *site);

// A site that was armed and that the code never came to, whether it was to fail there or not: most
// likely there is none of that name. NULL: none.
const char *fault_unknown(void);

// How far the clock was moved, in microseconds; daemon/base/clock.h has the calls to use.
uint64_t fault_clock_offset_us(void);
void fault_clock_move_us(uint64_t us);

// The page itself, for a test that steers another process.
struct fault_page;

// Maps the page in a file, which is made when missing. 0 or -errno.
int fault_page_map(const char *path, struct fault_page **ret);
void fault_page_unmap(struct fault_page *page);

// Makes it this process's page, for good: what was armed before is forgotten. Before any thread is
// started.
void fault_page_use(struct fault_page *page);

// As the functions above.
void fault_page_arm(struct fault_page *page, const char *site, uint32_t skip, uint32_t count);
void fault_page_random(struct fault_page *page, uint64_t seed, uint32_t per_mille);
void fault_page_off(struct fault_page *page, const char *pattern);
uint64_t fault_page_passed(struct fault_page *page, const char *site);
uint64_t fault_page_fired(struct fault_page *page, const char *site);
void fault_page_move_clock_us(struct fault_page *page, uint64_t us);

#else

static inline bool fault_fires(const char *site)
{
    (void)site;
    return false;
}

#endif
#endif
