/* QUOTA: what a namespace may have before others come first. */
#include "daemon/api/session.h"

#include "daemon/base/log.h"
#include "daemon/store/operate.h"

/* None given is 0, which the store takes for nothing said. */
static kvc_status read_amount(const struct msg_amount *amount, const char *field, uint64_t *value,
                              struct refusal *why)
{
    *value = 0;
    if (amount->n == 0)
        return KVC_OK;
    if (amount->n > 1)
        return refuse(why, KVC_E_INVALID, "more than one amount", "%s", field);
    if (amount->value <= 0)
        return refuse(why, KVC_E_INVALID, "a quota is more than 0; clear ends one", "%s", field);
    *value = (uint64_t)amount->value;
    return KVC_OK;
}

static kvc_status read_quota(const struct msg_quota *msg, struct store_quota *quota,
                             struct refusal *why)
{
    kvc_status status = read_amount(&msg->gpu_bytes, "gpu_bytes", &quota->bytes[TIER_GPU], why);

    if (status == KVC_OK)
        status = read_amount(&msg->host_bytes, "host_bytes", &quota->bytes[TIER_HOST], why);
    if (status == KVC_OK)
        status = read_amount(&msg->leases, "leases", &quota->leases, why);
    if (status != KVC_OK)
        return status;
    if (!msg->clear && msg->gpu_bytes.n + msg->host_bytes.n + msg->leases.n == 0)
        return refuse(why, KVC_E_INVALID, "no amount is given", "gpu_bytes");
    return KVC_OK;
}

kvc_status quota_quota(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_quota *msg = &request->quota;
    struct store_quota quota;
    uint32_t namespaces;
    kvc_status status;

    if (msg->namespace_digest.len != KVC_NAMESPACE_BYTES)
        return refuse(why, KVC_E_INVALID, "not 32 bytes", "namespace_digest");
    status = read_quota(msg, &quota, why);
    if (status == KVC_OK)
        status = store_set_quota(s->api->store, msg->namespace_digest.data, &quota, msg->clear,
                                 &namespaces, why);
    if (status != KVC_OK)
        return status;
    log_info("api",
             "quota session=%llu request=%u pid=%d namespaces=%u gpu_bytes=%llu host_bytes=%llu "
             "leases=%llu clear=%d",
             (unsigned long long)owner_id(s->owner), request->seq, (int)process_pid(s->process),
             namespaces, (unsigned long long)quota.bytes[TIER_GPU],
             (unsigned long long)quota.bytes[TIER_HOST], (unsigned long long)quota.leases,
             msg->clear);
    session_reply(s, WIRE_QUOTA, request->seq, codec_quota(s->api->codec, namespaces));
    return KVC_OK;
}
