#include "proto/wire.h"

/* Rows are numbers of enum wire_type; a test looks for holes. */
static const struct {
    const char *request;
    const char *reply;
} names[WIRE_TYPE_MAX + 1] = {
    [WIRE_HELLO] = {"HELLO", "HELLO reply"},
    [WIRE_REGISTER] = {"REGISTER", "REGISTER reply"},
    [WIRE_UNREGISTER] = {"UNREGISTER", "UNREGISTER reply"},
    [WIRE_MAP] = {"MAP", "MAP reply"},
    [WIRE_UNMAP] = {"UNMAP", "UNMAP reply"},
    [WIRE_REGION_BEGIN] = {"REGION_BEGIN", "REGION_BEGIN reply"},
    [WIRE_REGION_PART] = {"REGION_PART", "REGION_PART reply"},
    [WIRE_REGION_END] = {"REGION_END", "REGION_END reply"},
    [WIRE_REGION_DROP] = {"REGION_DROP", "REGION_DROP reply"},
    [WIRE_LOOKUP] = {"LOOKUP", "LOOKUP reply"},
    [WIRE_SAVE] = {"SAVE", "SAVE reply"},
    [WIRE_ABORT] = {"ABORT", "ABORT reply"},
    [WIRE_LOAD] = {"LOAD", "LOAD reply"},
    [WIRE_EXTEND] = {"EXTEND", "EXTEND reply"},
    [WIRE_RELEASE] = {"RELEASE", "RELEASE reply"},
    [WIRE_ADOPT] = {"ADOPT", "ADOPT reply"},
    [WIRE_DRAINED] = {"DRAINED", "DRAINED reply"},
    [WIRE_SUSPEND] = {"SUSPEND", "SUSPEND reply"},
    [WIRE_RESUME] = {"RESUME", "RESUME reply"},
    [WIRE_NUDGE] = {"NUDGE", "NUDGE reply"},
    [WIRE_HINT] = {"HINT", "HINT reply"},
    [WIRE_PIN] = {"PIN", "PIN reply"},
    [WIRE_FLUSH] = {"FLUSH", "FLUSH reply"},
    [WIRE_STATS] = {"STATS", "STATS reply"},
    [WIRE_LIST] = {"LIST", "LIST reply"},
    [WIRE_CONFIG] = {"CONFIG", "CONFIG reply"},
    [WIRE_WATCH] = {"WATCH", "WATCH reply"},
    [WIRE_PING] = {"PING", "PING reply"},
    [WIRE_REPORT] = {"REPORT", "REPORT reply"},
    [WIRE_QUOTA] = {"QUOTA", "QUOTA reply"},
    [WIRE_REMOTE] = {"REMOTE", "REMOTE reply"},
    [WIRE_DRAIN] = {"DRAIN", "DRAIN reply"},
    [WIRE_VERIFY] = {"VERIFY", "VERIFY reply"},
};

const char *wire_type_name(uint16_t type)
{
    const uint16_t number = type & (uint16_t)~WIRE_REPLY;
    const char *name = NULL;

    switch (type) {
    case WIRE_DEBUG:
        return "DEBUG";
    case WIRE_DEBUG | WIRE_REPLY:
        return "DEBUG reply";
    case WIRE_SAVE_DONE:
        return "SAVE_DONE";
    case WIRE_EXTENTS:
        return "EXTENTS";
    case WIRE_STOPPING:
        return "STOPPING";
    case WIRE_ERROR:
        return "ERROR";
    default:
        if (number <= WIRE_TYPE_MAX)
            name = type & WIRE_REPLY ? names[number].reply : names[number].request;
        return name != NULL ? name : "unknown";
    }
}
