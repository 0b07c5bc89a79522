/*
 * Messages between daemons. The first byte says whether what follows is a frame, whose header is
 * read first, or (with the type in that byte) a body by itself. What is accepted must be written
 * again as it was read.
 */
#include "daemon/peer/message.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "peer";

static uint8_t out[MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX];

/* Every element that a reader of the message would look at. */
static uint64_t touch(const struct message *m)
{
    uint64_t sum = 0;

    switch (m->type) {
    case MESSAGE_READY:
        sum += m->ready.caller + m->ready.port;
        for (uint32_t i = 0; i < m->ready.n_regions; i++)
            for (uint32_t j = 0; j < m->ready.regions[i].rkey_len; j++)
                sum += m->ready.regions[i].rkey[j];
        break;
    case MESSAGE_QUERY:
        for (uint32_t i = 0; i < m->query.n_keys * KVC_KEY_BYTES; i++)
            sum += m->query.keys[i];
        break;
    case MESSAGE_FETCH:
        for (uint32_t i = 0; i < m->fetch.n; i++)
            sum += message_u32(m->fetch.places, i);
        for (uint32_t i = 0; i < m->fetch.n && m->fetch.mode == MESSAGE_PUT; i++)
            sum += message_u64(m->fetch.destinations, i) + m->fetch.regions[i];
        break;
    case MESSAGE_RESULT:
        for (uint32_t i = 0; i < m->result.n; i++)
            sum += message_u64(m->result.checksums, i) + message_u64(m->result.offsets, i) +
                   m->result.checked[i] + m->result.regions[i];
        break;
    default:
        break;
    }
    return sum;
}

static void body(uint16_t type, const uint8_t *bytes, size_t len)
{
    struct message m;
    volatile uint64_t sum;
    uint16_t written_type;
    uint32_t written_len;

    if (message_read(type, bytes, len, &m) != NULL)
        return;
    sum = touch(&m);
    (void)sum;
    FUZZ_REQUIRE(message_write(&m, out) == MESSAGE_HEADER_BYTES + len);
    FUZZ_REQUIRE(message_read_header(out, &written_type, &written_len) == NULL);
    FUZZ_REQUIRE(written_type == type && written_len == len);
    FUZZ_REQUIRE(memcmp(out + MESSAGE_HEADER_BYTES, bytes, len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint16_t type;
    uint32_t len;

    if (size < 1)
        return 0;
    if (data[0] != 0) {
        body(data[0], data + 1, size - 1);
        return 0;
    }
    data++;
    size--;
    if (size < MESSAGE_HEADER_BYTES || message_read_header(data, &type, &len) != NULL)
        return 0;
    FUZZ_REQUIRE(len <= MESSAGE_BODY_MAX);
    if (size - MESSAGE_HEADER_BYTES >= len)
        body(type, data + MESSAGE_HEADER_BYTES, len);
    return 0;
}
