/* Flushes and pins: blocks by name, beyond one request's life. */
#include <string.h>

#include "client/admin.h"
#include "client/client.h"

static kvc_status ask_flush(kvc_client *client, const struct codec_scope *scope, uint64_t *blocks)
{
    struct call call = {.type = WIRE_FLUSH};
    struct wire_packet reply;
    kvc_status status = codec_put_flush(scope, client->rpc.body, &call.len);

    status = client_call(client, &call, status, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_flush_reply(&client->scratch, &reply, blocks))
        return client_distrust(client, "FlushReply", "malformed");
    return KVC_OK;
}

static kvc_status ask_pin(kvc_client *client, const struct codec_scope *scope, uint32_t seconds,
                          bool unpin, uint32_t *count)
{
    struct call call = {.type = WIRE_PIN};
    struct wire_packet reply;
    kvc_status status = codec_put_pin(scope, seconds, unpin, client->rpc.body, &call.len);

    status = client_call(client, &call, status, client->connect_ms, &reply);
    if (status != KVC_OK)
        return status;
    if (!codec_get_pin_reply(&client->scratch, &reply, count))
        return client_distrust(client, "PinReply", "malformed");
    return KVC_OK;
}

/* The next keys of a call that may need several packets; false: there are no more. */
static bool next_keys(const kvc_client *client, const uint8_t *keys, uint32_t n_keys, uint32_t *at,
                      struct codec_scope *scope)
{
    const uint32_t left = n_keys - *at;

    scope->keys = keys + (size_t)*at * KVC_KEY_BYTES;
    scope->n_keys = left < client->keys_max ? left : client->keys_max;
    *at += scope->n_keys;
    return left > 0;
}

static kvc_status flush_keys(kvc_client *client, struct codec_scope *scope, const uint8_t *keys,
                             uint32_t n_keys, uint64_t *blocks)
{
    uint64_t total = 0, some;
    uint32_t at = 0;
    kvc_status status = KVC_OK;

    while (status == KVC_OK && next_keys(client, keys, n_keys, &at, scope)) {
        status = ask_flush(client, scope, &some);
        total += status == KVC_OK ? some : 0;
    }
    if (status == KVC_OK && blocks != NULL)
        *blocks = total;
    return status;
}

static kvc_status pin_keys(kvc_client *client, struct codec_scope *scope, const uint8_t *keys,
                           uint32_t n_keys, uint32_t seconds, bool unpin, uint32_t *count)
{
    uint32_t total = 0, some, at = 0;
    kvc_status status = KVC_OK;

    while (status == KVC_OK && next_keys(client, keys, n_keys, &at, scope)) {
        status = ask_pin(client, scope, seconds, unpin, &some);
        total += status == KVC_OK ? some : 0;
    }
    if (status == KVC_OK && count != NULL)
        *count = total;
    return status;
}

static kvc_status enter(kvc_client *client, kvc_part handle, const uint8_t *keys, uint32_t n_keys,
                        struct codec_scope *scope)
{
    struct part *part;
    kvc_status status = client_enter(client);

    if (status == KVC_OK)
        status = part_find(client, handle, &part);
    if (status != KVC_OK)
        return status;
    if (keys == NULL && n_keys > 0)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "keys", "NULL");
    *scope = (struct codec_scope){.part = part->id};
    return KVC_OK;
}

/* Its parts of the namespace go on under the new epoch. */
static kvc_status announce_again(kvc_client *client, const uint8_t *digest)
{
    kvc_status status = KVC_OK;
    uint32_t extents;

    for (uint32_t i = 0; i < KVC_PARTS_MAX && status == KVC_OK; i++)
        if (client->parts[i].used &&
            memcmp(client->parts[i].namespace_digest, digest, KVC_NAMESPACE_BYTES) == 0)
            status = part_again(client, &client->parts[i], &extents);
    return status;
}

kvc_status kvc_flush(kvc_client *client, kvc_part part, uint64_t *blocks)
{
    struct codec_scope scope;
    uint64_t dropped;
    kvc_status status = enter(client, part, NULL, 0, &scope);

    if (status == KVC_OK)
        status = ask_flush(client, &scope, &dropped);
    if (status == KVC_OK)
        status = announce_again(client, part_of(client, part)->namespace_digest);
    if (status == KVC_OK && blocks != NULL)
        *blocks = dropped;
    return status;
}

kvc_status kvc_flush_keys(kvc_client *client, kvc_part part, const uint8_t *keys, uint32_t n_keys,
                          uint64_t *blocks)
{
    struct codec_scope scope;
    kvc_status status = enter(client, part, keys, n_keys, &scope);

    return status == KVC_OK ? flush_keys(client, &scope, keys, n_keys, blocks) : status;
}

kvc_status kvc_pin(kvc_client *client, kvc_part part, const uint8_t *keys, uint32_t n_keys,
                   uint32_t seconds, uint32_t *pinned)
{
    struct codec_scope scope;
    kvc_status status = enter(client, part, keys, n_keys, &scope);

    if (status != KVC_OK)
        return status;
    return pin_keys(client, &scope, keys, n_keys, seconds, false, pinned);
}

kvc_status kvc_unpin(kvc_client *client, kvc_part part, const uint8_t *keys, uint32_t n_keys,
                     uint32_t *unpinned)
{
    struct codec_scope scope;
    kvc_status status = enter(client, part, keys, n_keys, &scope);

    return status == KVC_OK ? pin_keys(client, &scope, keys, n_keys, 0, true, unpinned) : status;
}

kvc_status admin_flush(kvc_client *client, const uint8_t *digest, const uint8_t *keys,
                       uint32_t n_keys, uint64_t *blocks)
{
    struct codec_scope scope = {.namespace_digest = digest, .all = digest == NULL};
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    if (keys != NULL)
        return flush_keys(client, &scope, keys, n_keys, blocks);
    return ask_flush(client, &scope, blocks);
}

kvc_status admin_pin(kvc_client *client, const uint8_t digest[KVC_NAMESPACE_BYTES],
                     const uint8_t *keys, uint32_t n_keys, uint32_t seconds, uint32_t *count)
{
    struct codec_scope scope = {.namespace_digest = digest};
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    return pin_keys(client, &scope, keys, n_keys, seconds, false, count);
}

kvc_status admin_unpin(kvc_client *client, const uint8_t digest[KVC_NAMESPACE_BYTES],
                       const uint8_t *keys, uint32_t n_keys, uint32_t *count)
{
    struct codec_scope scope = {.namespace_digest = digest};
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    if (keys != NULL)
        return pin_keys(client, &scope, keys, n_keys, 0, true, count);
    return ask_pin(client, &scope, 0, true, count);
}
