// Lookups and leases, against a scripted daemon.
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define KEYS 3000u

static struct fake *fake;
static kvc_client *client;
static struct kv kv;
static kvc_part part;
static uint8_t keys[KEYS * KVC_KEY_BYTES];
static kvc_lease lease;
static uint32_t remote_ms;

static void begin(fake_hook *hook, uint32_t lookup_ms)
{
    kvc_options options = {.role = KVC_ROLE_SCHEDULER,
                           .lookup_ms = lookup_ms ? lookup_ms : wait_patient_ms(5000)};

    fake = fake_start(hook);
    options.socket = fake->socket;
    options.connect_ms = wait_patient_ms(5000);
    options.remote_ms = remote_ms;
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    kv_init(&kv, (const uint32_t[]){512}, 1, 1);
    kv.slices[0].base = NULL;
    kv.desc.n_blocks = 0;
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    kv_keys(1, 0, KEYS, keys);
}

static void end(void)
{
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}

static kvc_status lookup(uint64_t request, uint32_t n)
{
    return kvc_lookup(client, request, &part, 1, keys, n, 0, &lease);
}

START_TEST(lookup_gives_a_lease)
{
    begin(NULL, 0);
    ck_assert_int_eq(lookup(5, 20), KVC_OK);
    ck_assert_uint_eq(lease.id, 77);
    ck_assert_uint_eq(lease.blocks, 20);
    ck_assert_uint_eq(lease.gpu, 20);
    ck_assert_uint_eq(lease.ms, 30000);
    ck_assert_mem_eq(lease.token, "a lease's token", KVC_TOKEN_BYTES);
    ck_assert_uint_eq(fake->shared->lookup_request, 5);
    end();
}
END_TEST

START_TEST(no_keys_are_a_miss)
{
    begin(NULL, 0);
    ck_assert_int_eq(kvc_lookup(client, 0, &part, 1, NULL, 0, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.id, 0);
    ck_assert_uint_eq(fake_count(fake, WIRE_LOOKUP), 0);
    end();
}
END_TEST

START_TEST(bad_lookups_are_refused_here)
{
    kvc_part parts[KVC_PARTS_MAX + 1];
    uint32_t blocks;

    begin(NULL, 0);
    for (uint32_t i = 0; i <= KVC_PARTS_MAX; i++)
        parts[i] = part;
    ck_assert_int_eq(kvc_lookup(client, 0, parts, KVC_PARTS_MAX + 1, keys, 1, 0, &lease),
                     KVC_E_LIMIT);
    parts[2] = 40;
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 3, keys, 1, 0, &lease), KVC_E_UNKNOWN);
    ck_assert_str_eq(kvc_error(client), "parts[2]: no part 40");
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 0, keys, 1, 0, &lease), KVC_E_INVALID);
    ck_assert_int_eq(kvc_lookup(client, 0, NULL, 1, keys, 1, 0, &lease), KVC_E_INVALID);
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 1, NULL, 1, 0, &lease), KVC_E_INVALID);
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 1, keys, 1, 0, NULL), KVC_E_INVALID);
    ck_assert_int_eq(kvc_probe(client, parts, 1, keys, 1, NULL), KVC_E_INVALID);
    ck_assert_int_eq(kvc_probe(client, parts, 3, keys, 1, &blocks), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_adopt(client, NULL, part, 0, &lease), KVC_E_INVALID);
    ck_assert_int_eq(kvc_adopt(client, lease.token, 40, 0, &lease), KVC_E_UNKNOWN);
    ck_assert_uint_eq(fake_count(fake, WIRE_LOOKUP), 0);
    end();
}
END_TEST

START_TEST(long_prompts_are_appended)
{
    begin(NULL, 0);
    ck_assert_int_eq(lookup(9, 2500), KVC_OK);
    ck_assert_uint_eq(lease.blocks, 2500);
    wait_for(fake_count(fake, WIRE_LOOKUP) == 3, 2000);
    ck_assert_uint_eq(fake->shared->lookup_lease, 77);
    ck_assert_uint_eq(fake->shared->lookup_offset, 2048);
    ck_assert_uint_eq(fake->shared->lookup_keys, 452);
    end();
}
END_TEST

#define LOOKUP_MS 1000u
#define SLOW_US   600000 /* an answer: the second one of a lookup is late, the first is not... */
#define TRIES     20     /* ... unless others kept it from the processor: then it is asked again */

enum {
    SHORT_SECOND = 1,
    REFUSED_SECOND,
    SILENT_SECOND,
    SLOW,
    SLOW_PROBE,
    EMPTY,
    OTHER_LEASE,
    LESS_THAN_BEFORE,
    MORE_THAN_ASKED,
    FIRST_TOO_MANY,
    SHORT_TOKEN,
    MISS
};

static bool hook(struct fake *f, const struct wire_packet *request)
{
    const Kvcache__Lookup *asked;
    static uint8_t token[KVC_TOKEN_BYTES];
    Kvcache__LookupReply reply = KVCACHE__LOOKUP_REPLY__INIT;

    if (request->type == WIRE_RELEASE && f->shared->mode[0] == EMPTY) {
        f->shared->released = 77;
        return true;
    }
    if (request->type != WIRE_LOOKUP)
        return false;
    asked = fake_body(request, &kvcache__lookup__descriptor);
    reply.lease = 77;
    reply.token = (ProtobufCBinaryData){sizeof(token), token};
    reply.count = asked->offset + (uint32_t)(asked->keys.len / KVC_KEY_BYTES);
    switch (f->shared->mode[0]) {
    case FIRST_TOO_MANY:
        reply.count++;
        break;
    case SHORT_TOKEN:
        reply.token.len = 15;
        break;
    case SLOW:
        usleep(SLOW_US);
        break;
    case SLOW_PROBE:
        usleep(SLOW_US);
        reply.lease = 0;
        reply.token.len = 0;
        break;
    case EMPTY:
        reply.count = 0;
        break;
    case MISS:
        reply.lease = 0;
        reply.count = 0;
        reply.token.len = 0;
        reply.pending = 4;
        break;
    default:
        break;
    }
    if (asked->offset > 0) {
        switch (f->shared->mode[0]) {
        case SHORT_SECOND:
            reply.count = 1500;
            break;
        case REFUSED_SECOND:
            fake_error(f, request, KVC_E_EXPIRED, "lease", "ended");
            return true;
        case SILENT_SECOND:
            return true;
        case OTHER_LEASE:
            reply.lease = 78;
            break;
        case LESS_THAN_BEFORE:
            reply.count = 1023;
            break;
        case MORE_THAN_ASKED:
            reply.count++;
            break;
        default:
            break;
        }
    }
    fake_reply(f, request, &reply.base);
    return true;
}

// What is granted stands, whatever becomes of the rest.
START_TEST(half_an_append_is_a_shorter_prefix)
{
    begin(hook, _i == SILENT_SECOND ? 200 : 5000);
    fake->shared->mode[0] = _i;
    ck_assert_int_eq(lookup(9, 2500), KVC_OK);
    ck_assert_uint_eq(lease.id, 77);
    ck_assert_uint_eq(lease.blocks, _i == SHORT_SECOND ? 1500 : 1024);
    end();
}
END_TEST

// A scheduling step waits for it.
START_TEST(packets_of_a_lookup_share_its_time)
{
    kvc_status status = KVC_E_DEADLINE;

    begin(hook, LOOKUP_MS);
    fake->shared->mode[0] = SLOW;
    for (int i = 0; i < TRIES && status == KVC_E_DEADLINE; i++)
        status = lookup(9, 2500);
    ck_assert_int_eq(status, KVC_OK);
    ck_assert_uint_eq(lease.blocks, 1024);
    end();
}
END_TEST

START_TEST(packets_of_a_probe_share_its_time)
{
    kvc_status status = KVC_E_DEADLINE;
    uint32_t blocks = 0;

    begin(hook, LOOKUP_MS);
    fake->shared->mode[0] = SLOW_PROBE;
    for (int i = 0; i < TRIES && status == KVC_E_DEADLINE; i++)
        status = kvc_probe(client, &part, 1, keys, 2500, &blocks);
    ck_assert_int_eq(status, KVC_OK);
    ck_assert_uint_eq(blocks, 1024);
    end();
}
END_TEST

// Nor does it wait for the answer to what follows from the first one.
START_TEST(a_lease_of_nothing_is_released_without_a_wait)
{
    begin(hook, LOOKUP_MS);
    fake->shared->mode[0] = EMPTY;
    ck_assert_int_eq(lookup(9, 2500), KVC_OK);
    ck_assert_uint_eq(lease.id, 0);
    wait_for(fake->shared->released == 77, 2000);
    end();
}
END_TEST

START_TEST(impossible_counts_end_the_session)
{
    begin(hook, 0);
    fake->shared->mode[0] = _i;
    memset(&lease, 0xee, sizeof(lease));
    ck_assert_int_eq(lookup(9, 2500), KVC_E_PROTOCOL);
    ck_assert_uint_eq(lease.id, 0xeeeeeeeeeeeeeeee);
    end();
}
END_TEST

START_TEST(miss_tells_what_is_pending)
{
    begin(hook, 0);
    fake->shared->mode[0] = MISS;
    memset(&lease, 0xee, sizeof(lease));
    ck_assert_int_eq(lookup(0, 100), KVC_OK);
    ck_assert_uint_eq(lease.id, 0);
    ck_assert_uint_eq(lease.blocks, 0);
    ck_assert_uint_eq(lease.pending, 4);
    end();
}
END_TEST

START_TEST(probe_counts_without_a_lease)
{
    uint32_t blocks = 0;

    begin(NULL, 0);
    ck_assert_int_eq(kvc_probe(client, &part, 1, keys, 2500, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 2500);
    ck_assert_uint_eq(fake->shared->lookup_offset, 0);
    ck_assert_int_eq(kvc_probe(client, &part, 1, NULL, 0, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    end();
}
END_TEST

static bool count_remote(struct fake *f, const struct wire_packet *request)
{
    if (request->type == WIRE_LOOKUP)
        f->shared->mode[1] +=
            ((const Kvcache__Lookup *)fake_body(request, &kvcache__lookup__descriptor))->remote_ms >
            0;
    return false;
}

// Peers are not asked by who only asks what is here, however that is done: 0 is by full parts.
START_TEST(no_probe_asks_peers)
{
    uint32_t blocks = 0;

    remote_ms = 50;
    begin(count_remote, 0);
    if (_i == 1) {
        kv.desc.rule = KVC_RULE_WINDOW;
        kv.desc.window = 64;
        kv.desc.namespace_digest[0]++;
        ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    }
    ck_assert_int_eq(kvc_probe(client, &part, 1, keys, 2500, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 2500);
    ck_assert_int_eq(fake->shared->mode[1], 0);
    ck_assert_int_eq(lookup(0, 20), KVC_OK);
    ck_assert_int_eq(fake->shared->mode[1], 1);
    end();
}
END_TEST

START_TEST(extend_release_adopt)
{
    uint32_t granted = 0;
    uint8_t token[KVC_TOKEN_BYTES] = {1};

    begin(NULL, 0);
    ck_assert_int_eq(kvc_extend(client, 77, 5000, &granted), KVC_OK);
    ck_assert_uint_eq(granted, 2500);
    ck_assert_int_eq(kvc_extend(client, 77, 5000, NULL), KVC_OK);
    ck_assert_int_eq(kvc_release(client, 77), KVC_OK);
    ck_assert_uint_eq(fake->shared->released, 77);
    ck_assert_int_eq(kvc_release(client, 0), KVC_OK);
    ck_assert_int_eq(kvc_adopt(client, token, part, 100, &lease), KVC_OK);
    ck_assert_uint_eq(lease.id, 78);
    ck_assert_uint_eq(lease.blocks, 4);
    end();
}
END_TEST

// Replies to LOOKUP and ADOPT come with the next PING.
static bool late_hook(struct fake *f, const struct wire_packet *request)
{
    static struct wire_packet late;

    if (request->type == WIRE_LOOKUP || request->type == WIRE_ADOPT) {
        static uint8_t body[KVC_WIRE_BODY_MAX];

        late = *request;
        memcpy(body, request->body, request->body_len);
        late.body = body;
        return true;
    }
    if (request->type == WIRE_PING && late.seq != 0) {
        fake_usual(f, &late);
        late.seq = 0;
    }
    return false;
}

// Nobody knows the lease that a late reply brings, unless it can be asked for by its request.
START_TEST(late_lease_is_released)
{
    const uint8_t token[KVC_TOKEN_BYTES] = {1};

    begin(late_hook, 30);
    ck_assert_int_eq(lookup(0, 5), KVC_E_DEADLINE);
    wait_for(kvc_ping(client) == KVC_OK && fake->shared->released == 77, 2000);
    ck_assert_int_eq(kvc_adopt(client, token, part, 0, &lease), KVC_E_DEADLINE);
    wait_for(kvc_ping(client) == KVC_OK && fake->shared->released == 78, 2000);
    fake->shared->released = 0;
    ck_assert_int_eq(lookup(12, 5), KVC_E_DEADLINE);
    for (int i = 0; i < 3; i++)
        wait_for(kvc_ping(client) == KVC_OK, 2000);
    ck_assert_uint_eq(fake->shared->released, 0);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("client/lookup", CHECK_LIFE_S, {lookup_gives_a_lease, 0, 0},
                 {no_keys_are_a_miss, 0, 0}, {bad_lookups_are_refused_here, 0, 0},
                 {long_prompts_are_appended, 0, 0},
                 {half_an_append_is_a_shorter_prefix, SHORT_SECOND, SILENT_SECOND},
                 {packets_of_a_lookup_share_its_time, 0, 0},
                 {packets_of_a_probe_share_its_time, 0, 0},
                 {a_lease_of_nothing_is_released_without_a_wait, 0, 0},
                 {impossible_counts_end_the_session, OTHER_LEASE, SHORT_TOKEN},
                 {miss_tells_what_is_pending, 0, 0}, {probe_counts_without_a_lease, 0, 0},
                 {no_probe_asks_peers, 0, 1}, {extend_release_adopt, 0, 0},
                 {late_lease_is_released, 0, 0})
