#include "client/admin.h"

#include <string.h>

#include "client/client.h"

kvc_status admin_stats(kvc_client *client, struct admin_stats *stats)
{
    struct call call = {.type = WIRE_STATS};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status == KVC_OK)
        status = client_call(client, &call, KVC_OK, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_stats_reply(&client->scratch, &reply, stats))
        return client_distrust(client, "StatsReply", "malformed");
    return KVC_OK;
}

kvc_status admin_list_query(kvc_client *client, const struct admin_list_query *query,
                            struct admin_list *list)
{
    struct call call = {.type = WIRE_LIST};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_list(query, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_list_reply(&client->scratch, &reply, list))
        return client_distrust(client, "ListReply", "malformed");
    if (list->more && list->after <= query->after)
        return client_distrust(client, "after", "a list that does not come to an end");
    return KVC_OK;
}

kvc_status admin_list(kvc_client *client, const char *what, uint64_t after, uint32_t limit,
                      struct admin_list *list)
{
    const struct admin_list_query query = {.what = what, .after = after, .limit = limit};

    return admin_list_query(client, &query, list);
}

kvc_status admin_quota(kvc_client *client, const uint8_t digest[KVC_NAMESPACE_BYTES],
                       const struct admin_quota *quota, uint32_t *namespaces)
{
    struct call call = {.type = WIRE_QUOTA};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_quota(digest, quota, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_quota_reply(&client->scratch, &reply, namespaces))
        return client_distrust(client, "QuotaReply", "malformed");
    return KVC_OK;
}

kvc_status admin_config(kvc_client *client, const char *name, const char *value)
{
    struct call call = {.type = WIRE_CONFIG};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_config(name, value, client->rpc.body, &call.len);
    return client_call(client, &call, status, client->connect_ms, &reply);
}

kvc_status admin_watch(kvc_client *client, const struct admin_watch *watch,
                       struct admin_watch_reply *reply)
{
    struct call call = {.type = WIRE_WATCH};
    struct wire_packet packet;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_watch(watch, client->rpc.body, &call.len);
    status = client_call(client, &call, status, watch->wait_ms + client->connect_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_watch_reply(&client->scratch, &packet, reply))
        return client_distrust(client, "WatchReply", "malformed");
    return KVC_OK;
}

kvc_status admin_drain(kvc_client *client, enum admin_action action, struct admin_drain *drain)
{
    struct call call = {.type = WIRE_DRAIN};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_drain(action, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_drain_reply(&client->scratch, &reply, drain))
        return client_distrust(client, "DrainReply", "malformed");
    return KVC_OK;
}

kvc_status admin_verify(kvc_client *client, enum admin_action action, uint64_t bytes_per_s,
                        struct admin_verify *verify)
{
    struct call call = {.type = WIRE_VERIFY};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_verify(action, bytes_per_s, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_verify_reply(&client->scratch, &reply, verify))
        return client_distrust(client, "VerifyReply", "malformed");
    return KVC_OK;
}

kvc_status admin_ping(kvc_client *client, const void *payload, size_t len)
{
    struct call call = {.type = WIRE_PING};
    struct wire_packet reply;
    const uint8_t *back;
    size_t back_len;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_ping(payload, len, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->lookup_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_ping_reply(&client->scratch, &reply, &back, &back_len))
        return client_distrust(client, "PingReply", "malformed");
    if (back_len != len || (len > 0 && memcmp(back, payload, len) != 0))
        return client_distrust(client, "payload", "not what was sent");
    return KVC_OK;
}

kvc_status kvc_ping(kvc_client *client)
{
    return admin_ping(client, NULL, 0);
}

kvc_status admin_debug(kvc_client *client, const struct admin_debug *debug,
                       struct admin_debug_reply *reply)
{
    struct call call = {.type = WIRE_DEBUG};
    struct wire_packet packet;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_debug(debug, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->connect_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_debug_reply(&client->scratch, &packet, reply))
        return client_distrust(client, "DebugReply", "malformed");
    return KVC_OK;
}
