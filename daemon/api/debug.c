/* DEBUG: switches for tests. Debug builds only. */
#include "daemon/api/session.h"

#ifdef KVC_DEBUG

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/mem.h"

#define SITE_MAX 47u /* a site's name, as fault.c keeps it */

kvc_status debug_debug(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_debug *debug = &request->debug;
    struct msg_debug_reply reply = {0};
    size_t len = 0;

    while (debug->fault[len] != '\0')
        len++;
    if (len > SITE_MAX)
        return refuse(why, KVC_E_LIMIT, "longer than a fault site's name", "fault");
    if (len > 0) {
        reply.passed = fault_passed(debug->fault);
        reply.fired = fault_fired(debug->fault);
        if (debug->count > 0)
            fault_arm(debug->fault, debug->skip, debug->count);
        else
            fault_off(debug->fault);
    }
    if (debug->advance_us > 0)
        clock_advance(debug->advance_us);
    if (debug->check)
        reply.broken = store_check(s->api->store);
    reply.live_allocations = mem_live_count();
    reply.fds = (uint64_t)fd_count_open();
    session_reply(s, WIRE_DEBUG, request->seq, codec_debug(s->api->codec, &reply));
    return KVC_OK;
}

#else

typedef int debug_is_off_in_release_builds;

#endif
