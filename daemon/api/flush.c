/* FLUSH, PIN: what an operator, or a session in its own namespaces, does to blocks by name. */
#include "daemon/api/session.h"

#include "daemon/base/log.h"
#include "daemon/store/operate.h"

/* Operators may do it to everybody, sessions that work to what they work on. */
static kvc_status read_scope(const struct session *s, uint32_t part, struct bytes digest, bool all,
                             struct bytes keys, struct store_scope *scope, struct refusal *why)
{
    const bool is_operator = s->role == STORE_ROLE_OPERATOR;
    uint32_t n_keys;
    kvc_status status = keys_count(keys, &n_keys, why, "keys");

    if (digest.len != 0 && digest.len != KVC_NAMESPACE_BYTES)
        return refuse(why, KVC_E_INVALID, "not 32 bytes", "namespace_digest");
    *scope = (struct store_scope){
        .owner = is_operator ? NULL : s->owner,
        .part = part,
        .namespace_digest = digest.len > 0 ? digest.data : NULL,
        .all = all,
        .keys = keys.data,
        .n_keys = n_keys,
    };
    return status;
}

kvc_status flush_flush(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_flush *flush = &request->flush;
    struct store_scope scope;
    uint64_t blocks;
    kvc_status status =
        read_scope(s, flush->part, flush->namespace_digest, flush->all, flush->keys, &scope, why);

    if (status == KVC_OK)
        status = store_flush(s->api->store, &scope, &blocks, why);
    if (status != KVC_OK)
        return status;
    log_info("api", "flushed session=%llu request=%u pid=%d all=%d keys=%u blocks=%llu",
             (unsigned long long)owner_id(s->owner), request->seq, (int)process_pid(s->process),
             flush->all, scope.n_keys, (unsigned long long)blocks);
    session_reply(s, WIRE_FLUSH, request->seq, codec_flush(s->api->codec, blocks));
    return KVC_OK;
}

kvc_status flush_pin(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_pin *pin = &request->pin;
    struct store_scope scope;
    uint32_t count;
    kvc_status status =
        read_scope(s, pin->part, pin->namespace_digest, false, pin->keys, &scope, why);

    if (status != KVC_OK)
        return status;
    if (pin->unpin && pin->seconds != 0)
        return refuse(why, KVC_E_INVALID, "unpinning takes no time", "seconds");
    status = pin->unpin ? store_unpin(s->api->store, &scope, &count, why)
                        : store_pin(s->api->store, &scope, pin->seconds, &count, why);
    if (status == KVC_OK)
        session_reply(s, WIRE_PIN, request->seq, codec_pin(s->api->codec, count));
    return status;
}
