/*
 * One packet from anybody: through a socket, the header, and the codec of its type. First byte:
 * descriptors that go along, and in its highest bit whether the header is put right first, so that
 * mutations reach the bodies. A body that is taken must have the shape that message.h promises, and
 * the library's codec must survive the same bytes as a reply.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/codec.h"
#include "daemon/base/fd.h"
#include "daemon/base/mem.h"
#include "daemon/conn/codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/lib/raw.h"

const char fuzz_name[] = "packet";

#define FIX_HEADER 0x80u
#define FDS_MASK   0x7fu

static struct raw raw;
static struct codec *codec; /* for all inputs: it is large */
static struct codec_scratch scratch;
static uint8_t buffer[KVC_WIRE_PACKET_MAX];

static void touch(const void *data, size_t len)
{
    const uint8_t *bytes = data;
    static volatile uint8_t sum;

    for (size_t i = 0; i < len; i++)
        sum = sum ^ bytes[i];
}

static void touch_text(const char *text)
{
    FUZZ_REQUIRE(text != NULL);
    touch(text, strlen(text));
}

static void touch_bytes(struct bytes bytes)
{
    touch(bytes.data, bytes.len);
}

static void touch_numbers(struct numbers numbers)
{
    touch(numbers.values, numbers.n * sizeof(*numbers.values));
}

static void touch_request(const struct request *r)
{
    switch (r->type) {
    case WIRE_HELLO:
        touch_bytes(r->hello.device_uuids);
        touch_text(r->hello.name);
        touch_text(r->hello.build);
        break;
    case WIRE_REGISTER:
        touch_bytes(r->register_.namespace_digest);
        touch_numbers(r->register_.slice_bytes);
        touch_bytes(r->register_.slice_dtypes);
        touch_bytes(r->register_.family);
        touch_text(r->register_.name);
        break;
    case WIRE_MAP:
        touch_numbers(r->map.mapped);
        break;
    case WIRE_LOOKUP:
        touch_bytes(r->lookup.keys);
        for (size_t i = 0; i < r->lookup.n_parts; i++)
            touch_bytes(r->lookup.parts[i].keys);
        break;
    case WIRE_SAVE:
        for (size_t i = 0; i < r->save.n_entries; i++) {
            touch_bytes(r->save.entries[i].keys);
            touch_numbers(r->save.entries[i].blocks);
        }
        touch_bytes(r->save.gate.event);
        break;
    case WIRE_ABORT:
        touch_numbers(r->abort.never);
        break;
    case WIRE_LOAD:
        touch_numbers(r->load.blocks);
        touch_bytes(r->load.gate.event);
        break;
    case WIRE_ADOPT:
        touch_bytes(r->adopt.token);
        break;
    case WIRE_DRAINED:
        touch_bytes(r->drained.secret);
        break;
    case WIRE_REPORT:
        touch_bytes(r->report.key);
        break;
    case WIRE_QUOTA:
        touch_bytes(r->quota.namespace_digest);
        break;
    case WIRE_LIST:
        touch_text(r->list.what);
        touch_bytes(r->list.namespace_digest);
        touch_text(r->list.key_prefix);
        break;
    case WIRE_PING:
        touch_bytes(r->ping.payload);
        break;
    case WIRE_DEBUG:
        touch_text(r->debug.fault);
        break;
    default:
        break;
    }
}

static void as_request(const struct wire_packet *packet)
{
    struct request request = {.type = packet->type, .seq = packet->seq};

    if (codec == NULL)
        FUZZ_REQUIRE(codec_create(&codec) == KVC_OK);
    const uint64_t before = mem_live_count();
    const char *why = codec_unpack(codec, packet, &request);

    FUZZ_REQUIRE(mem_live_count() == before, "a body made the daemon allocate");
    if (why == NULL)
        touch_request(&request);
    else
        touch_text(why);
}

static void get_session(const struct wire_packet *packet)
{
    struct codec_hello_reply hello;
    struct codec_register_reply part;
    struct codec_map_reply map;
    struct codec_extents extents;
    struct codec_error error;

    if (codec_get_hello_reply(&scratch, packet, &hello))
        touch_text(hello.device);
    codec_get_register_reply(&scratch, packet, &part);
    if (codec_get_map_reply(&scratch, packet, &map)) {
        touch(map.extents, map.n_extents * sizeof(*map.extents));
        touch(map.kinds, map.n_extents);
    }
    if (codec_get_extents(&scratch, packet, &extents))
        touch(extents.withdrawn, extents.n_withdrawn * sizeof(*extents.withdrawn));
    if (codec_get_error(packet, &error)) {
        FUZZ_REQUIRE(error.status != KVC_OK);
        touch_text(error.field);
        touch_text(error.detail);
    }
}

static void get_copies(const struct wire_packet *packet)
{
    static struct codec_save_reply save;
    struct codec_load_reply load;
    struct codec_outcome outcome;

    if (codec_get_load_reply(&scratch, packet, &load)) {
        touch(load.tiers, load.count);
        touch(load.checked, load.count);
        touch(load.offsets, load.count * sizeof(*load.offsets));
        touch(load.checksums, load.count * sizeof(*load.checksums));
        touch(load.generations, load.count * sizeof(*load.generations));
    }
    if (codec_get_save_reply(&scratch, packet, &save)) {
        FUZZ_REQUIRE(save.n_entries <= KVC_ENTRIES_MAX);
        for (uint32_t i = 0; i < save.n_entries; i++) {
            const struct codec_save_entry_reply *e = &save.entries[i];

            touch(e->states, e->n_states);
            touch(e->tiers, e->n_assigned);
            touch(e->offsets, e->n_assigned * sizeof(*e->offsets));
        }
        touch(save.chunk_blocks, save.n_chunks * sizeof(*save.chunk_blocks));
        touch(save.chunk_words, save.n_chunks * sizeof(*save.chunk_words));
        touch(save.chunk_numbers, save.n_chunks * sizeof(*save.chunk_numbers));
    }
    codec_get_abort_reply(&scratch, packet, &outcome);
    codec_get_save_done(&scratch, packet, &outcome);
}

/* Every reply's and notice's decoder: a hostile daemon chooses which one gets the bytes. */
static void as_reply(const struct wire_packet *packet)
{
    struct admin_list list;
    struct codec_lookup_reply lookup;
    struct admin_stats stats;
    struct admin_debug_reply debug;
    const uint8_t *payload;
    size_t len;
    uint32_t ms;

    get_session(packet);
    get_copies(packet);
    codec_get_lookup_reply(&scratch, packet, &lookup);
    codec_get_extend_reply(&scratch, packet, &ms);
    codec_get_adopt_reply(&scratch, packet, &lookup);
    codec_get_stats_reply(&scratch, packet, &stats);
    codec_get_list_reply(&scratch, packet, &list);
    codec_get_debug_reply(&scratch, packet, &debug);
    if (codec_get_ping_reply(&scratch, packet, &payload, &len))
        touch(payload, len);
}

static void fix_header(void)
{
    struct wire_packet packet;

    if (raw.len < KVC_WIRE_HEADER_BYTES)
        raw.len = KVC_WIRE_HEADER_BYTES;
    packet.type = (uint16_t)(raw.bytes[4] | raw.bytes[5] << 8);
    packet.seq = 1;
    packet.n_fds = raw.n_fds;
    packet.body_len = (uint32_t)(raw.len - KVC_WIRE_HEADER_BYTES);
    wire_put_header(raw.bytes, &packet);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_packet packet = {0};
    const char *why = NULL;
    int ends[2];

    if (size < 1 || size - 1 > sizeof(raw.bytes))
        return 0;
    raw.len = size - 1;
    raw.n_fds = data[0] & FDS_MASK;
    memset(raw.bytes, 0, KVC_WIRE_HEADER_BYTES);
    memcpy(raw.bytes, data + 1, raw.len);
    if (data[0] & FIX_HEADER)
        fix_header();

    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const int fds = fd_count_open();
    if (raw_send(ends[0], &raw)) {
        enum wire_result result = wire_recv(ends[1], buffer, &packet, &why);

        FUZZ_REQUIRE((why != NULL) == (result == WIRE_BAD));
        FUZZ_REQUIRE(result == WIRE_OK || fd_count_open() == fds, "%s", why ? why : "");
        if (result == WIRE_OK) {
            FUZZ_REQUIRE(packet.n_fds == raw.n_fds);
            FUZZ_REQUIRE(packet.body_len == raw.len - KVC_WIRE_HEADER_BYTES);
            as_request(&packet);
            as_reply(&packet);
            wire_close_fds(&packet);
        }
    }
    FUZZ_REQUIRE(fd_count_open() == fds);
    close(ends[0]);
    close(ends[1]);
    return 0;
}

void fuzz_end(void)
{
    codec_destroy(codec);
    codec_scratch_free(&scratch);
}
