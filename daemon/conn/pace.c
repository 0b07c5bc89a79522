#include "daemon/conn/pace.h"

#include "daemon/base/clock.h"

/* Its row, or else the one of who owes least, which is nothing if there is one to spare. */
static struct pace_row *row_of(struct pace *pace, pid_t pid, uid_t uid)
{
    struct pace_row *least = &pace->rows[0];

    for (uint32_t i = 0; i < PACE_ROWS; i++) {
        struct pace_row *row = &pace->rows[i];

        if (row->pid == pid && row->uid == uid)
            return row;
        if (row->until_us < least->until_us)
            least = row;
    }
    *least = (struct pace_row){.pid = pid, .uid = uid};
    return least;
}

void pace_charge(struct pace *pace, pid_t pid, uid_t uid, uint64_t us)
{
    struct pace_row *row = row_of(pace, pid, uid);
    const uint64_t now = clock_now_us(), most = now + PACE_FREE_US + PACE_MOST_US;

    row->until_us = (row->until_us > now ? row->until_us : now) + us;
    if (row->until_us > most)
        row->until_us = most;
    if (row->until_us > pace->last_us)
        pace->last_us = row->until_us;
}

static uint64_t until(const struct pace *pace, pid_t pid, uid_t uid)
{
    for (uint32_t i = 0; i < PACE_ROWS; i++)
        if (pace->rows[i].pid == pid && pace->rows[i].uid == uid)
            return pace->rows[i].until_us;
    return 0;
}

bool pace_is_suspect(const struct pace *pace, pid_t pid, uid_t uid)
{
    const uint64_t free_us = clock_now_us() + PACE_FREE_US / 2;

    return pace->last_us > free_us && until(pace, pid, uid) > free_us;
}

uint64_t pace_wait_us(const struct pace *pace, pid_t pid, uid_t uid)
{
    const uint64_t free_us = clock_now_us() + PACE_FREE_US;
    uint64_t until_us;

    if (pace->last_us <= free_us)
        return 0;
    until_us = until(pace, pid, uid);
    return until_us > free_us ? until_us - free_us : 0;
}
