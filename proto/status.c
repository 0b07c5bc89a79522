#include "proto/status.h"

const char *kvc_status_text(kvc_status status)
{
    switch (status) {
    case KVC_OK:
        return "ok";
    case KVC_E_INVALID:
        return "invalid value";
    case KVC_E_LIMIT:
        return "over a limit";
    case KVC_E_UNSUPPORTED:
        return "not supported by this daemon";
    case KVC_E_UNKNOWN:
        return "no such object";
    case KVC_E_DENIED:
        return "not allowed";
    case KVC_E_STALE:
        return "stale epoch or generation";
    case KVC_E_EXPIRED:
        return "lease has ended";
    case KVC_E_NO_ROOM:
        return "no room in a table of the daemon";
    case KVC_E_DUPLICATE:
        return "given twice";
    case KVC_E_CANCELLED:
        return "cancelled";
    case KVC_E_DEADLINE:
        return "deadline passed";
    case KVC_E_CHECKSUM:
        return "checksum does not match";
    case KVC_E_BUSY:
        return "busy";
    case KVC_E_PROTOCOL:
        return "protocol violated";
    case KVC_E_DISCONNECTED:
        return "not connected to a daemon";
    case KVC_E_VERSION:
        return "no common protocol version";
    case KVC_E_FORKED:
        return "used in a forked child";
    case KVC_E_DEVICE:
        return "device failed";
    case KVC_E_NO_DEVICE:
        return "no such device";
    case KVC_E_MAP:
        return "memory cannot be mapped";
    case KVC_E_PEER:
        return "peer failed";
    case KVC_E_NO_MEMORY:
        return "out of memory";
    case KVC_E_NO_FDS:
        return "out of file descriptors";
    case KVC_E_SYSTEM:
        return "system call failed";
    case KVC_E_STOPPING:
        return "daemon is stopping";
    }
    /* Numbers come off the wire: a newer daemon may send one that this build does not know. */
    return "unknown status";
}
