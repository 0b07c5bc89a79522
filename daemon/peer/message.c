#include "daemon/peer/message.h"

#include <endian.h>
#include <string.h>

static const uint8_t magic[4] = {'K', 'V', 'P', MESSAGE_FRAMES};

uint32_t message_u32(const uint8_t *array, uint32_t i)
{
    uint32_t value;

    memcpy(&value, array + (size_t)i * sizeof(value), sizeof(value));
    return le32toh(value);
}

uint64_t message_u64(const uint8_t *array, uint32_t i)
{
    uint64_t value;

    memcpy(&value, array + (size_t)i * sizeof(value), sizeof(value));
    return le64toh(value);
}

void message_set_u32(uint8_t *array, uint32_t i, uint32_t value)
{
    value = htole32(value);
    memcpy(array + (size_t)i * sizeof(value), &value, sizeof(value));
}

void message_set_u64(uint8_t *array, uint32_t i, uint64_t value)
{
    value = htole64(value);
    memcpy(array + (size_t)i * sizeof(value), &value, sizeof(value));
}

/* Reading: `at` stays in front of `end`; once something is missing everything after it is zero. */
struct reader {
    const uint8_t *at, *end;
    bool short_of;
};

static const uint8_t zeros[8];

static const uint8_t *take(struct reader *r, uint64_t n)
{
    const uint8_t *at = r->at;

    if (r->short_of || n > (uint64_t)(r->end - r->at)) {
        r->short_of = true;
        return NULL;
    }
    r->at += n;
    return at;
}

static uint64_t take_number(struct reader *r, uint32_t bytes)
{
    const uint8_t *at = take(r, bytes);
    uint64_t value = 0;

    memcpy(&value, at ? at : zeros, bytes);
    return le64toh(value);
}

static uint32_t take_u32(struct reader *r)
{
    return (uint32_t)take_number(r, 4);
}

static uint64_t take_u64(struct reader *r)
{
    return take_number(r, 8);
}

static const char *read_hello(struct reader *r, struct message_hello *hello)
{
    uint32_t secret;

    hello->version = take_u32(r);
    secret = take_u32(r);
    hello->epoch = take_u64(r);
    hello->nonce = take(r, MESSAGE_NONCE_BYTES);
    hello->secret = secret == 1;
    return secret > 1 ? "neither with a secret nor without" : NULL;
}

static const char *read_ready(struct reader *r, struct message_ready *ready)
{
    ready->modes = take_u32(r);
    ready->n_regions = take_u32(r);
    ready->view_bytes[0] = take_u64(r);
    ready->view_bytes[1] = take_u64(r);
    ready->caller = take_u64(r);
    ready->port = take_u32(r);
    if (ready->port > UINT16_MAX)
        return "no port";
    if (ready->n_regions > MESSAGE_REGIONS_MAX)
        return "too many regions";
    for (uint32_t i = 0; i < ready->n_regions; i++) {
        struct message_region *region = &ready->regions[i];

        region->tier = take_u32(r);
        region->base = take_u64(r);
        region->bytes = take_u64(r);
        region->rkey_len = take_u32(r);
        if (region->rkey_len > MESSAGE_RKEY_MAX)
            return "a key of memory that is too long";
        if (region->base + region->bytes < region->base)
            return "a region without an end";
        region->rkey = take(r, region->rkey_len);
    }
    return NULL;
}

static const char *read_query(struct reader *r, struct message_query *query)
{
    query->id = take_u64(r);
    query->rule = take_u32(r);
    query->window = take_u32(r);
    query->lease_ms = take_u32(r);
    query->n_keys = take_u32(r);
    query->namespace_digest = take(r, KVC_NAMESPACE_BYTES);
    query->fingerprint = take(r, KVC_FINGERPRINT_BYTES);
    if (query->n_keys == 0 || query->n_keys > KVC_KEYS_MAX)
        return "no keys, or too many";
    query->keys = take(r, (uint64_t)query->n_keys * KVC_KEY_BYTES);
    return NULL;
}

static const char *read_answer(struct reader *r, struct message_answer *answer)
{
    answer->id = take_u64(r);
    answer->lease = take_u64(r);
    answer->status = take_u32(r);
    answer->first = take_u32(r);
    answer->count = take_u32(r);
    answer->part = take_u32(r);
    answer->load = take_u64(r);
    answer->n_keys = take_u32(r);
    if (answer->n_keys > KVC_KEYS_MAX)
        return "more keys than can be asked for";
    answer->has = take(r, (answer->n_keys + 63) / 64 * 8ull);
    answer->on_gpu = take_u32(r);
    if (answer->first > KVC_KEYS_MAX || answer->count > KVC_KEYS_MAX - answer->first)
        return "more blocks than can be asked for";
    return NULL;
}

static const char *read_fetch(struct reader *r, struct message_fetch *fetch)
{
    fetch->id = take_u64(r);
    fetch->lease = take_u64(r);
    fetch->part = take_u32(r);
    fetch->mode = take_u32(r);
    fetch->view_bytes = take_u64(r);
    fetch->n = take_u32(r);
    if (fetch->mode >= MESSAGE_MODES)
        return "no such mode";
    if (fetch->n == 0 || fetch->n > KVC_CHUNK_BLOCKS)
        return "no blocks, or too many";
    fetch->places = take(r, fetch->n * 4ull);
    if (!message_has_destinations(fetch->mode))
        return NULL;
    fetch->destinations = take(r, fetch->n * 8ull);
    fetch->regions = take(r, fetch->n);
    return NULL;
}

static const char *read_result(struct reader *r, struct message_result *result)
{
    result->id = take_u64(r);
    result->status = take_u32(r);
    result->n = take_u32(r);
    if (result->n > KVC_CHUNK_BLOCKS)
        return "too many blocks";
    if ((result->status == KVC_OK) != (result->n > 0))
        return "blocks of a refusal, or a result of none";
    result->checksums = take(r, result->n * 8ull);
    result->offsets = take(r, result->n * 8ull);
    result->checked = take(r, result->n);
    result->regions = take(r, result->n);
    return NULL;
}

static const char *read_keys(struct reader *r, struct message_keys *keys)
{
    keys->extent_bytes = take_u64(r);
    keys->n_extents = take_u32(r);
    keys->first = take_u32(r);
    keys->n = take_u32(r);
    if (keys->n == 0 || keys->n > MESSAGE_KEYS_MAX)
        return "no keys of extents, or too many";
    if (keys->first > keys->n_extents || keys->n > keys->n_extents - keys->first)
        return "keys of extents that are not there";
    for (uint32_t i = 0; i < keys->n; i++) {
        struct message_key *key = &keys->keys[i];

        key->base = take_u64(r);
        key->rkey_len = take_u32(r);
        if (key->rkey_len > MESSAGE_RKEY_MAX)
            return "a key of memory that is too long";
        if (key->base + keys->extent_bytes < key->base)
            return "an extent without an end";
        key->rkey = take(r, key->rkey_len);
    }
    return NULL;
}

static const char *read_body(struct reader *r, struct message *m)
{
    switch (m->type) {
    case MESSAGE_HELLO:
        return read_hello(r, &m->hello);
    case MESSAGE_PROOF:
        m->mac = take(r, MESSAGE_MAC_BYTES);
        return NULL;
    case MESSAGE_READY:
        return read_ready(r, &m->ready);
    case MESSAGE_QUERY:
        return read_query(r, &m->query);
    case MESSAGE_ANSWER:
        return read_answer(r, &m->answer);
    case MESSAGE_FETCH:
        return read_fetch(r, &m->fetch);
    case MESSAGE_RESULT:
        return read_result(r, &m->result);
    case MESSAGE_BYE:
        m->status = take_u32(r);
        return NULL;
    case MESSAGE_KEYS:
        return read_keys(r, &m->keys);
    default:
        m->id = take_u64(r);
        return NULL;
    }
}

const char *message_read_header(const uint8_t header[MESSAGE_HEADER_BYTES], uint16_t *type,
                                uint32_t *body_len)
{
    uint32_t len = message_u32(header, 3);

    if (memcmp(header, magic, 3) != 0)
        return "no frame of a peer";
    if (header[3] != MESSAGE_FRAMES)
        return "another version of frames";
    if (header[6] != 0 || header[7] != 0 || message_u32(header, 2) != 0)
        return "reserved bytes that are not zero";
    if (len > MESSAGE_BODY_MAX)
        return "a body that is too long";
    *type = (uint16_t)(header[4] | header[5] << 8);
    *body_len = len;
    return NULL;
}

const char *message_read(uint16_t type, const uint8_t *body, size_t len, struct message *message)
{
    struct reader r = {.at = body, .end = body + len};
    const char *wrong;

    if (type == 0 || type > MESSAGE_TYPE_MAX)
        return "no such message";
    memset(message, 0, sizeof(*message));
    message->type = type;
    wrong = read_body(&r, message);
    if (wrong == NULL && r.short_of)
        wrong = "a body that is too short";
    if (wrong == NULL && r.at != r.end)
        wrong = "a body that is too long";
    return wrong;
}

/* Writing. */

struct writer {
    uint8_t *at, *end;
    bool full;
};

static void put(struct writer *w, const void *bytes, uint64_t n)
{
    if (w->full || n > (uint64_t)(w->end - w->at)) {
        w->full = true;
        return;
    }
    if (n > 0)
        memcpy(w->at, bytes, n);
    w->at += n;
}

static void put_u32(struct writer *w, uint32_t value)
{
    value = htole32(value);
    put(w, &value, sizeof(value));
}

static void put_u64(struct writer *w, uint64_t value)
{
    value = htole64(value);
    put(w, &value, sizeof(value));
}

static void write_ready(struct writer *w, const struct message_ready *ready)
{
    put_u32(w, ready->modes);
    put_u32(w, ready->n_regions);
    put_u64(w, ready->view_bytes[0]);
    put_u64(w, ready->view_bytes[1]);
    put_u64(w, ready->caller);
    put_u32(w, ready->port);
    for (uint32_t i = 0; i < ready->n_regions; i++) {
        const struct message_region *region = &ready->regions[i];

        put_u32(w, region->tier);
        put_u64(w, region->base);
        put_u64(w, region->bytes);
        put_u32(w, region->rkey_len);
        put(w, region->rkey, region->rkey_len);
    }
}

static void write_query(struct writer *w, const struct message_query *query)
{
    put_u64(w, query->id);
    put_u32(w, query->rule);
    put_u32(w, query->window);
    put_u32(w, query->lease_ms);
    put_u32(w, query->n_keys);
    put(w, query->namespace_digest, KVC_NAMESPACE_BYTES);
    put(w, query->fingerprint, KVC_FINGERPRINT_BYTES);
    put(w, query->keys, (uint64_t)query->n_keys * KVC_KEY_BYTES);
}

static void write_answer(struct writer *w, const struct message_answer *answer)
{
    put_u64(w, answer->id);
    put_u64(w, answer->lease);
    put_u32(w, answer->status);
    put_u32(w, answer->first);
    put_u32(w, answer->count);
    put_u32(w, answer->part);
    put_u64(w, answer->load);
    put_u32(w, answer->n_keys);
    put(w, answer->has, (answer->n_keys + 63) / 64 * 8ull);
    put_u32(w, answer->on_gpu);
}

static void write_fetch(struct writer *w, const struct message_fetch *fetch)
{
    put_u64(w, fetch->id);
    put_u64(w, fetch->lease);
    put_u32(w, fetch->part);
    put_u32(w, fetch->mode);
    put_u64(w, fetch->view_bytes);
    put_u32(w, fetch->n);
    put(w, fetch->places, fetch->n * 4ull);
    if (!message_has_destinations(fetch->mode))
        return;
    put(w, fetch->destinations, fetch->n * 8ull);
    put(w, fetch->regions, fetch->n);
}

static void write_result(struct writer *w, const struct message_result *result)
{
    put_u64(w, result->id);
    put_u32(w, result->status);
    put_u32(w, result->n);
    put(w, result->checksums, result->n * 8ull);
    put(w, result->offsets, result->n * 8ull);
    put(w, result->checked, result->n);
    put(w, result->regions, result->n);
}

static void write_keys(struct writer *w, const struct message_keys *keys)
{
    put_u64(w, keys->extent_bytes);
    put_u32(w, keys->n_extents);
    put_u32(w, keys->first);
    put_u32(w, keys->n);
    for (uint32_t i = 0; i < keys->n; i++) {
        put_u64(w, keys->keys[i].base);
        put_u32(w, keys->keys[i].rkey_len);
        put(w, keys->keys[i].rkey, keys->keys[i].rkey_len);
    }
}

static void write_body(struct writer *w, const struct message *m)
{
    switch (m->type) {
    case MESSAGE_HELLO:
        put_u32(w, m->hello.version);
        put_u32(w, m->hello.secret);
        put_u64(w, m->hello.epoch);
        put(w, m->hello.nonce, MESSAGE_NONCE_BYTES);
        break;
    case MESSAGE_PROOF:
        put(w, m->mac, MESSAGE_MAC_BYTES);
        break;
    case MESSAGE_READY:
        write_ready(w, &m->ready);
        break;
    case MESSAGE_QUERY:
        write_query(w, &m->query);
        break;
    case MESSAGE_ANSWER:
        write_answer(w, &m->answer);
        break;
    case MESSAGE_FETCH:
        write_fetch(w, &m->fetch);
        break;
    case MESSAGE_RESULT:
        write_result(w, &m->result);
        break;
    case MESSAGE_BYE:
        put_u32(w, m->status);
        break;
    case MESSAGE_KEYS:
        write_keys(w, &m->keys);
        break;
    default:
        put_u64(w, m->id);
    }
}

size_t message_write(const struct message *message, uint8_t *out)
{
    struct writer w = {.at = out + MESSAGE_HEADER_BYTES,
                       .end = out + MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX};
    size_t len;

    write_body(&w, message);
    if (w.full)
        return 0;
    len = (size_t)(w.at - out);
    memset(out, 0, MESSAGE_HEADER_BYTES);
    memcpy(out, magic, sizeof(magic));
    out[4] = (uint8_t)message->type;
    out[5] = (uint8_t)(message->type >> 8);
    message_set_u32(out, 3, (uint32_t)(len - MESSAGE_HEADER_BYTES));
    return len;
}

const char *message_name(uint16_t type)
{
    static const char *const names[] = {
        "unknown", "HELLO",   "PROOF", "READY", "QUERY", "ANSWER",   "FETCH", "RESULT",
        "DONE",    "RELEASE", "PING",  "PONG",  "BYE",   "ASK_KEYS", "KEYS",
    };

    return names[type <= MESSAGE_TYPE_MAX ? type : 0];
}

bool message_has_destinations(uint32_t mode)
{
    return mode == MESSAGE_PUT || mode == MESSAGE_SEND;
}

const char *message_mode_name(uint32_t mode)
{
    static const char *const names[] = {"views", "exact, get", "exact, put", "exact, send",
                                        "exact, gpu"};

    return mode < MESSAGE_MODES ? names[mode] : "unknown";
}
