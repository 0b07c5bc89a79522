/*
 * The library against a daemon that means it no good. The first byte says how many of the next
 * bytes are calls; the rest is what the daemon, a thread, makes of each request: the right reply,
 * the same with bytes changed, a refusal, any body, descriptors that are none to be trusted, a
 * notice, another number, or the end. Whatever it does, calls come back, in time, and nothing is
 * written outside the blocks that a call names.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "daemon/conn/codec.h"
#include "kernels/pack.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "client";

#define EXTENT_BYTES KVC_EXTENT_BYTES_MIN
#define EXTENTS      2u /* of each tier */
#define PAGE_BYTES   ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)
#define SLICE_BYTES  4096u
#define SLOT_BYTES   (2u * SLICE_BYTES)
#define BLOCKS       8u
#define GUARD_BYTES  4096u
#define PATIENCE_MS  2 /* after a reply that the client may go on waiting for */
#define CALLS_MAX    24u

struct hostile {
    struct fuzz_input in;
    struct codec *codec;
    int listener, sock, stop;
    uint32_t served;
};

static uint8_t request_buffer[KVC_WIRE_PACKET_MAX], spoiled[KVC_WIRE_BODY_MAX];
static char socket_path[64];

/* Memory that the daemon gives away, made once. */
static struct {
    bool made;
    int page, extents[2 * EXTENTS];
} memory;

static int make_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    FUZZ_REQUIRE(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    FUZZ_REQUIRE(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void make_memory(void)
{
    if (memory.made)
        return;
    memory.made = true;
    memory.page = make_memfd(PAGE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
    for (uint32_t i = 0; i < 2 * EXTENTS; i++)
        memory.extents[i] = make_memfd(EXTENT_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
}

/* Right replies. */

static struct bytes right_hello(struct hostile *h)
{
    struct msg_hello_reply reply = {.version = 1,
                                    .session = 1 + h->served,
                                    .secret = (const uint8_t *)"sixteen secrets",
                                    .boot_epoch = 7,
                                    .device = "host",
                                    .tenant = "t",
                                    .build = "b",
                                    .page = true,
                                    .lease_ms_max = 1000};

    for (uint32_t t = 0; t < MSG_TIERS; t++) {
        reply.tiers[t].bytes = EXTENTS * EXTENT_BYTES;
        reply.tiers[t].extent_bytes = EXTENT_BYTES;
        reply.tiers[t].extents = EXTENTS;
    }
    return codec_hello(h->codec, &reply);
}

static struct bytes right_register(struct hostile *h, const struct msg_register *request)
{
    uint64_t offsets[KVC_SLICES_MAX];
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES] = {0};
    struct pack_layout layout = {.slice_offsets = offsets};
    struct msg_register_reply reply = {
        .part = 1, .epoch = 1, .fingerprint = fingerprint, .extents = 2 * EXTENTS};

    if (pack_layout_init(&layout, request->slice_bytes.values, (uint32_t)request->slice_bytes.n) ==
        KVC_OK) {
        reply.slot_bytes = layout.slot_bytes;
        pack_layout_fingerprint(&layout, request->block_tokens, NULL, fingerprint);
    }
    return codec_register(h->codec, &reply);
}

static struct bytes right_map(struct hostile *h, const struct msg_map *request, int *fds,
                              uint32_t *n_fds)
{
    static const uint32_t extents[] = {0, 1, 1u << 31, 1u << 31 | 1};
    static const uint8_t kinds[] = {1, 1, 1, 1};
    struct msg_map_reply reply = {.extents = extents, .kinds = kinds, .cursor = 4};

    if (request->cursor == 0) {
        reply.n = *n_fds = 2 * EXTENTS;
        memcpy(fds, memory.extents, sizeof(memory.extents));
    }
    return codec_map(h->codec, &reply);
}

static uint32_t keys_of(struct bytes keys)
{
    uint32_t n = (uint32_t)(keys.len / KVC_KEY_BYTES);

    return n < KVC_KEYS_MAX ? n : KVC_KEYS_MAX;
}

static struct bytes right_save(struct hostile *h, const struct msg_save *request)
{
    static uint8_t states[KVC_KEYS_MAX], tiers[KVC_KEYS_MAX];
    static uint64_t offsets[KVC_KEYS_MAX];
    static uint32_t generations[KVC_KEYS_MAX];
    struct msg_save_entry_reply entries[KVC_ENTRIES_MAX];
    uint32_t blocks = 0, word = h->served % KVC_PAGE_WORDS;
    uint64_t number = 1000 + h->served;
    struct msg_save_reply reply = {.save = 5 + h->served,
                                   .entries = entries,
                                   .chunk_blocks = &blocks,
                                   .chunk_words = &word,
                                   .chunk_numbers = &number,
                                   .n_chunks = 1};

    memset(states, 1, sizeof(states));
    for (uint32_t i = 0; i < KVC_KEYS_MAX; i++) {
        tiers[i] = i % 2;
        offsets[i] = i / 2 % 8 * SLOT_BYTES;
    }
    for (; reply.n_entries < request->n_entries && reply.n_entries < KVC_ENTRIES_MAX;
         reply.n_entries++) {
        uint32_t n = keys_of(request->entries[reply.n_entries].keys);

        entries[reply.n_entries] =
            (struct msg_save_entry_reply){states, n, tiers, offsets, generations, n};
        blocks += n;
    }
    return codec_save(h->codec, &reply);
}

static struct bytes right_load(struct hostile *h, const struct msg_load *request)
{
    static uint8_t tiers[KVC_KEYS_MAX], checked[KVC_KEYS_MAX];
    static uint64_t offsets[KVC_KEYS_MAX], checksums[KVC_KEYS_MAX];
    static uint32_t generations[KVC_KEYS_MAX];
    struct msg_load_reply reply = {.word = h->served % KVC_PAGE_WORDS,
                                   .number = 3000 + h->served,
                                   .tiers = tiers,
                                   .offsets = offsets,
                                   .generations = generations,
                                   .checksums = checksums,
                                   .checked = checked,
                                   .n = request->count < KVC_KEYS_MAX ? request->count
                                                                      : KVC_KEYS_MAX};

    checked[0] = 1;
    offsets[1] = EXTENT_BYTES - SLOT_BYTES;
    offsets[2] = EXTENT_BYTES;
    tiers[3] = 1;
    return codec_load(h->codec, &reply);
}

static struct bytes right_lookup(struct hostile *h, const struct msg_lookup *request)
{
    struct msg_lookup_reply reply = {.count = request->offset + keys_of(request->keys),
                                     .lease = request->probe ? 0 : 17,
                                     .token = (const uint8_t *)"a lease's token",
                                     .lease_ms = 1000};

    return codec_lookup(h->codec, &reply);
}

static struct bytes right_reply(struct hostile *h, const struct request *r, int *fds,
                                uint32_t *n_fds)
{
    const struct msg_outcome outcome = {.save = 5, .published = 1};
    const struct msg_adopt_reply adopt = {.lease = 18, .count = 3, .lease_ms = 5};
    const struct msg_stats_reply stats = {.version = "v", .device = "host"};
    const struct msg_list_reply list = {0};
    const struct msg_ping_reply ping = {.payload = r->ping.payload, .boot_epoch = 7};

    switch (r->type) {
    case WIRE_HELLO:
        fds[0] = memory.page;
        *n_fds = 1;
        return right_hello(h);
    case WIRE_REGISTER:
        return right_register(h, &r->register_);
    case WIRE_MAP:
        return right_map(h, &r->map, fds, n_fds);
    case WIRE_LOOKUP:
        return right_lookup(h, &r->lookup);
    case WIRE_SAVE:
        return right_save(h, &r->save);
    case WIRE_LOAD:
        return right_load(h, &r->load);
    case WIRE_ABORT:
        return codec_abort(h->codec, &outcome);
    case WIRE_ADOPT:
        return codec_adopt(h->codec, &adopt);
    case WIRE_EXTEND:
        return codec_extend(h->codec, 3);
    case WIRE_STATS:
        return codec_stats(h->codec, &stats);
    case WIRE_LIST:
        return codec_list(h->codec, &list);
    case WIRE_PING:
        return codec_ping(h->codec, &ping);
    default:
        return codec_empty(h->codec);
    }
}

static void send_packet(struct hostile *h, uint16_t type, uint32_t seq, struct bytes body,
                        const int *fds, uint32_t n_fds)
{
    struct wire_packet packet = {.type = type, .seq = seq, .body = body.data, .n_fds = n_fds};

    packet.body_len = (uint32_t)body.len;
    for (uint32_t i = 0; i < n_fds; i++)
        packet.fds[i] = fds[i];
    (void)wire_send(h->sock, &packet);
}

static struct bytes changed(struct hostile *h, struct bytes body)
{
    memcpy(spoiled, body.data, body.len);
    for (uint32_t n = 1 + fuzz_u8(&h->in) % 4; n > 0 && body.len > 0; n--) {
        uint32_t at = fuzz_u8(&h->in);

        spoiled[at < 128 ? at % body.len : body.len - 1 - (at - 128) % body.len] ^=
            (uint8_t)fuzz_u8(&h->in);
    }
    return (struct bytes){spoiled, body.len};
}

/* A descriptor that must not be mapped: whoever does is killed when it is shrunk. */
static void send_bad_fd(struct hostile *h, uint16_t type, uint32_t seq, struct bytes body, int *fds,
                        uint32_t n_fds)
{
    uint32_t how = fuzz_u8(&h->in), at = n_fds > 0 ? how / 8 % n_fds : 0;
    int fd = -1;

    switch (how % 8) {
    case 0:
        fd = make_memfd(EXTENT_BYTES, 0);
        break;
    case 1:
        fd = make_memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW);
        break;
    case 2:
        fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
        break;
    case 3:
        fd = dup(h->sock);
        break;
    case 4:
        fd = open("/", O_RDONLY | O_CLOEXEC);
        break;
    case 5:
        fd = make_memfd(EXTENT_BYTES, F_SEAL_GROW);
        break;
    case 6: /* one too many */
        fd = dup(memory.extents[0]);
        at = n_fds;
        break;
    default: /* one too few */
        n_fds -= n_fds > 0;
        at = KVC_WIRE_FDS_MAX;
        break;
    }
    if (at < KVC_WIRE_FDS_MAX)
        fds[at] = fd;
    if (at < KVC_WIRE_FDS_MAX && n_fds <= at)
        n_fds = at + 1;
    send_packet(h, type, seq, body, fds, n_fds);
    if (how % 8 == 0 || how % 8 == 5)
        FUZZ_REQUIRE(ftruncate(fd, 0) == 0);
    close(fd);
}

static void send_notice(struct hostile *h)
{
    static const uint16_t types[] = {WIRE_SAVE_DONE, WIRE_EXTENTS, WIRE_STOPPING, WIRE_NOTICE | 9};
    uint16_t type = types[fuzz_u8(&h->in) % 4];
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&h->in, fuzz_u8(&h->in) % 32, &len);

    send_packet(h, type, 0, (struct bytes){bytes, len}, NULL, 0);
}

/* Whether the client may go on waiting for the reply that it wants. */
static bool answer(struct hostile *h, const struct request *r, struct bytes body, int *fds,
                   uint32_t n_fds)
{
    const uint16_t type = r->type | WIRE_REPLY;
    struct msg_error error = {.field = "f", .detail = "d"};
    const uint8_t *bytes;
    size_t len;

    switch (fuzz_u8(&h->in) % 16) {
    case 8:
    case 9:
    case 10:
        send_packet(h, type, r->seq, changed(h, body), fds, n_fds);
        return false;
    case 11:
        error.status = fuzz_u8(&h->in);
        send_packet(h, WIRE_ERROR, r->seq, codec_error(h->codec, &error), NULL, 0);
        return false;
    case 12:
        bytes = fuzz_bytes(&h->in, fuzz_u8(&h->in), &len);
        send_packet(h, type, r->seq, (struct bytes){bytes, len}, fds, n_fds);
        return false;
    case 13:
        send_bad_fd(h, type, r->seq, body, fds, n_fds);
        return false;
    case 14:
        send_notice(h);
        send_packet(h, type, r->seq, body, fds, n_fds);
        return false;
    case 15:
        send_packet(h, type ^ (fuzz_u8(&h->in) & 1), r->seq + (int8_t)fuzz_u8(&h->in), body, fds,
                    n_fds);
        return true;
    default:
        send_packet(h, type, r->seq, body, fds, n_fds);
        return false;
    }
}

static bool wait_for_input(struct hostile *h, int fd, int ms)
{
    struct pollfd polled[] = {{.fd = fd, .events = POLLIN}, {.fd = h->stop, .events = POLLIN}};

    return poll(polled, 2, ms) > 0 && !(polled[1].revents & POLLIN);
}

static void serve(struct hostile *h)
{
    struct wire_packet packet;
    const char *why;
    bool owed = false;

    while (wait_for_input(h, h->sock, owed ? PATIENCE_MS : -1)) {
        struct request request;
        int fds[KVC_WIRE_FDS_MAX];
        uint32_t n_fds = 0;

        enum wire_result result = wire_recv(h->sock, request_buffer, &packet, &why);
        if (result == WIRE_AGAIN)
            continue;
        if (result != WIRE_OK)
            return;
        request = (struct request){.type = packet.type, .seq = packet.seq};
        FUZZ_REQUIRE(packet.n_fds == 0);
        if (packet.type != WIRE_UNMAP)
            FUZZ_REQUIRE(codec_unpack(h->codec, &packet, &request) == NULL,
                         "the library sent a malformed %s", wire_type_name(packet.type));
        h->served++;
        if (packet.type == WIRE_NUDGE || packet.type == WIRE_REPORT)
            continue;
        if (h->in.left > 0 && fuzz_u8(&h->in) >= 250)
            return;
        owed = answer(h, &request, right_reply(h, &request, fds, &n_fds), fds, n_fds);
    }
}

static void *run_daemon(void *arg)
{
    struct hostile *h = arg;

    while (wait_for_input(h, h->listener, -1)) {
        h->sock = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (h->sock < 0)
            continue;
        serve(h);
        close(h->sock);
    }
    return NULL;
}

static void open_daemon(struct hostile *h)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    make_memory();
    snprintf(socket_path, sizeof(socket_path), "/tmp/kvc-fuzz-%d", (int)getpid());
    unlink(socket_path);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    h->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    h->stop = eventfd(0, EFD_CLOEXEC);
    FUZZ_REQUIRE(h->listener >= 0 && h->stop >= 0);
    FUZZ_REQUIRE(bind(h->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
    FUZZ_REQUIRE(listen(h->listener, 8) == 0);
    FUZZ_REQUIRE(codec_create(&h->codec) == KVC_OK);
}

static void close_daemon(struct hostile *h)
{
    unlink(socket_path);
    close(h->listener);
    close(h->stop);
    codec_destroy(h->codec);
}

/* The client's side. */

struct user {
    kvc_client *client;
    struct fuzz_input calls;
    uint8_t *cache; /* GUARD_BYTES, BLOCKS of two slices, GUARD_BYTES */
    kvc_part part;
    kvc_lease lease;
    uint64_t save;
};

static void register_part(struct user *u)
{
    kvc_slice slices[2];
    kvc_part_desc desc = {.namespace_digest = "n",
                          .name = "fuzz",
                          .block_tokens = 16,
                          .slices = slices,
                          .n_slices = 2,
                          .n_blocks = BLOCKS};

    for (uint32_t s = 0; s < 2; s++)
        slices[s] = (kvc_slice){.base = u->cache + GUARD_BYTES + (size_t)s * BLOCKS * SLICE_BYTES,
                                .stride = SLICE_BYTES,
                                .bytes = SLICE_BYTES};
    (void)kvc_register(u->client, &desc, &u->part);
}

static void save(struct user *u, uint32_t n)
{
    static const uint32_t blocks[BLOCKS] = {3, 1, 2, 0, 7, 6, 5, 4};
    uint8_t keys[BLOCKS * KVC_KEY_BYTES] = {0}, states[BLOCKS];
    kvc_save_entry entry = {u->part, keys, blocks, n, states};
    kvc_save_args args = {.entries = &entry, .n_entries = 1};

    for (uint32_t i = 0; i < n; i++)
        keys[i * KVC_KEY_BYTES] = (uint8_t)(i + 1);
    (void)kvc_save(u->client, &args, &u->save);
}

static void load(struct user *u, uint32_t n)
{
    static const uint32_t blocks[BLOCKS] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint8_t valid[BLOCKS];
    kvc_load_args args = {
        .lease = u->lease.id, .part = u->part, .count = n, .blocks = blocks, .valid = valid};

    (void)kvc_load(u->client, &args);
}

static void lookup(struct user *u, uint32_t n, bool probe)
{
    uint8_t keys[BLOCKS * KVC_KEY_BYTES] = {0};
    uint32_t blocks;

    for (uint32_t i = 0; i < n; i++)
        keys[i * KVC_KEY_BYTES] = (uint8_t)(i + 1);
    if (probe)
        (void)kvc_probe(u->client, &u->part, 1, keys, n, &blocks);
    else if (kvc_lookup(u->client, 3, &u->part, 1, keys, n, 0, &u->lease) == KVC_OK)
        FUZZ_REQUIRE(u->lease.blocks <= n);
}

static void call(struct user *u, uint32_t what, uint32_t n)
{
    struct admin_stats stats;
    struct admin_list list;
    kvc_outcome outcome;
    uint32_t ms;

    switch (what) {
    case 0:
    case 1:
        lookup(u, n, what == 1);
        break;
    case 2:
        load(u, n);
        break;
    case 3:
        save(u, n);
        break;
    case 4:
        (void)kvc_wait(u->client, u->save, 1, &outcome);
        break;
    case 5:
        (void)kvc_cancel(u->client, u->save, 3, &outcome);
        break;
    case 6:
        (void)kvc_drain(u->client);
        break;
    case 7:
        (void)kvc_extend(u->client, u->lease.id, 5, &ms);
        break;
    case 8:
        (void)kvc_release(u->client, u->lease.id);
        break;
    case 9:
        (void)kvc_adopt(u->client, u->lease.token, u->part, 0, &u->lease);
        break;
    case 10:
        (void)kvc_reconnect(u->client);
        break;
    case 11:
        (void)kvc_dispatch(u->client);
        break;
    case 12:
        (void)kvc_unregister(u->client, u->part);
        break;
    case 13:
        (void)admin_stats(u->client, &stats);
        (void)admin_list(u->client, "clients", 0, 10, &list);
        break;
    case 14:
        (void)kvc_ping(u->client);
        break;
    default:
        register_part(u);
        break;
    }
    (void)strlen(kvc_error(u->client));
}

static void use(struct user *u, uint32_t n_calls, uint32_t role)
{
    kvc_options options = {.socket = socket_path,
                           .role = role % 4 == 3 ? KVC_ROLE_READER : KVC_ROLE_WORKER,
                           .connect_ms = 20,
                           .lookup_ms = 10,
                           .save_ms = 5};

    if (kvc_connect(&options, &u->client) != KVC_OK)
        return;
    register_part(u);
    while (n_calls-- > 0) {
        uint32_t code = fuzz_u8(&u->calls);

        call(u, code % 16, code / 16 % (BLOCKS + 1));
    }
    kvc_close(u->client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t cache_bytes = 2 * GUARD_BYTES + (size_t)2 * BLOCKS * SLICE_BYTES;
    struct fuzz_input in = {data, size};
    struct hostile hostile = {0};
    struct user user = {0};
    const uint64_t one = 1;
    pthread_t thread;
    uint32_t head;
    size_t n_calls;

    if (size < 2)
        return 0;
    head = fuzz_u8(&in);
    user.calls.at = fuzz_bytes(&in, head / 4 % (CALLS_MAX + 1), &n_calls);
    user.calls.left = n_calls;
    hostile.in = in;
    open_daemon(&hostile);
    user.cache = malloc(cache_bytes);
    FUZZ_REQUIRE(user.cache != NULL);
    memset(user.cache, 0xa5, cache_bytes);
    FUZZ_REQUIRE(pthread_create(&thread, NULL, run_daemon, &hostile) == 0);
    use(&user, (uint32_t)n_calls, head);
    FUZZ_REQUIRE(write(hostile.stop, &one, sizeof(one)) == sizeof(one));
    pthread_join(thread, NULL);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        FUZZ_REQUIRE(user.cache[i] == 0xa5 && user.cache[cache_bytes - 1 - i] == 0xa5);
    free(user.cache);
    close_daemon(&hostile);
    return 0;
}

void fuzz_end(void)
{
    close(memory.page);
    for (uint32_t i = 0; i < 2 * EXTENTS; i++)
        close(memory.extents[i]);
}
