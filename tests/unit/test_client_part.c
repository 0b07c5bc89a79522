// Parts, against a scripted daemon.
#include <string.h>
#include <sys/mman.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

static void make_kv(struct kv *kv)
{
    kv_init(kv, (const uint32_t[]){2048, 100, 16}, 3, 8);
}

START_TEST(equal_parts_have_one_handle)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv, other;
    kvc_part a, b, c;

    make_kv(&kv);
    make_kv(&other);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &a), KVC_OK);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &b), KVC_OK);
    ck_assert_uint_eq(a, b);
    // Other memory, and other anything, is another part.
    ck_assert_int_eq(kvc_register(client, &other.desc, &c), KVC_OK);
    ck_assert_uint_ne(a, c);
    kv.desc.namespace_digest[31]++;
    ck_assert_int_eq(kvc_register(client, &kv.desc, &b), KVC_OK);
    ck_assert_uint_ne(a, b);
    kv.desc.namespace_digest[31]--;
    kv.slices[2].dtype = 1;
    ck_assert_int_eq(kvc_register(client, &kv.desc, &c), KVC_OK);
    ck_assert(c != a && c != b);
    ck_assert_int_eq(kvc_unregister(client, a), KVC_OK);
    ck_assert_int_eq(kvc_unregister(client, a), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_unregister(client, 0), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_unregister(client, UINT32_MAX), KVC_E_UNKNOWN);
    kvc_close(client);
    kv_free(&kv);
    kv_free(&other);
    fake_stop(fake);
}
END_TEST

// A flush has made the part's epoch an old one; registering it again is the way on.
START_TEST(registering_again_takes_the_new_epoch)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part;

    make_kv(&kv);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    fake->shared->part_epoch = 2;
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    ck_assert_uint_eq(part_of(client, part)->epoch, 2);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

struct bad_desc {
    const char *error; // how kvc_error begins
    kvc_status status;
    void (*spoil)(struct kv *kv);
};

static void no_slices(struct kv *kv)
{
    kv->desc.n_slices = 0;
}
static void null_slices(struct kv *kv)
{
    kv->desc.slices = NULL;
}
static void many_slices(struct kv *kv)
{
    kv->desc.n_slices = KVC_SLICES_MAX + 1;
}
static void empty_slice(struct kv *kv)
{
    kv->slices[1].bytes = 0;
}
static void long_slice(struct kv *kv)
{
    kv->slices[1].bytes = UINT32_MAX;
    kv->slices[1].stride = UINT32_MAX;
}
static void overlapping_slice(struct kv *kv)
{
    kv->slices[2].stride = 15;
}
static void endless_slice(struct kv *kv)
{
    kv->slices[2].stride = UINT64_MAX / 4;
}
static void high_slice(struct kv *kv)
{
    kv->slices[2].base = (void *)(UINTPTR_MAX - 100);
}
static void half_memory(struct kv *kv)
{
    kv->slices[2].base = NULL;
}
// As addresses of a GPU are for the processor.
static void no_memory(struct kv *kv)
{
    kv->slices[1].base =
        mmap(NULL, 8 * kv->slices[1].stride, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(kv->slices[1].base, MAP_FAILED);
}
static void no_tokens(struct kv *kv)
{
    kv->desc.block_tokens = 0;
}
static void many_tokens(struct kv *kv)
{
    kv->desc.block_tokens = KVC_BLOCK_TOKENS_MAX + 1;
}

static const struct bad_desc bad_descs[] = {
    {"slices: ", KVC_E_INVALID, no_slices},
    {"slices: ", KVC_E_INVALID, null_slices},
    {"slices: ", KVC_E_LIMIT, many_slices},
    {"slices: ", KVC_E_INVALID, empty_slice},
    {"slices: ", KVC_E_LIMIT, long_slice},
    {"slices[2].stride: ", KVC_E_INVALID, overlapping_slice},
    {"slices[2].stride: ", KVC_E_INVALID, endless_slice},
    {"slices[2].stride: ", KVC_E_INVALID, high_slice},
    {"slices[2].base: ", KVC_E_INVALID, half_memory},
    {"slices[1].base: ", KVC_E_INVALID, no_memory},
    {"block_tokens: ", KVC_E_INVALID, no_tokens},
    {"block_tokens: ", KVC_E_INVALID, many_tokens},
};

START_TEST(bad_parts_are_refused_here)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);

    for (size_t i = 0; i < sizeof(bad_descs) / sizeof(bad_descs[0]); i++) {
        const struct bad_desc *bad = &bad_descs[i];
        struct kv kv;
        kvc_part part = 99;

        make_kv(&kv);
        bad->spoil(&kv);
        ck_assert_msg(kvc_register(client, &kv.desc, &part) == bad->status, "%zu: %s", i,
                      kvc_error(client));
        ck_assert_msg(strncmp(kvc_error(client), bad->error, strlen(bad->error)) == 0, "%zu: %s", i,
                      kvc_error(client));
        ck_assert_uint_eq(part, 99);
        kv_free(&kv);
    }
    ck_assert_int_eq(kvc_register(client, NULL, NULL), KVC_E_INVALID);
    ck_assert_uint_eq(fake_count(fake, WIRE_REGISTER), 0);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(parts_have_a_limit)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_SCHEDULER);
    struct kv kv;
    kvc_part part, first = 0;

    make_kv(&kv);
    for (uint32_t i = 0; i < 3; i++)
        kv.slices[i].base = NULL;
    for (uint32_t i = 0; i < KVC_PARTS_MAX; i++) {
        kv.desc.block_tokens = i + 1;
        ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
        first = i == 0 ? part : first;
    }
    kv.desc.block_tokens = 100;
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_E_LIMIT);
    ck_assert_int_eq(kvc_unregister(client, first), KVC_OK);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    ck_assert_uint_eq(fake_count(fake, WIRE_MAP), 0);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

// A daemon that packs differently would make the library write past its slots.
static bool packing_hook(struct fake *fake, const struct wire_packet *request)
{
    static uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    Kvcache__RegisterReply reply = KVCACHE__REGISTER_REPLY__INIT;

    if (request->type != WIRE_REGISTER)
        return false;
    reply.part = 1;
    reply.slot_bytes = 4096;
    reply.fingerprint = (ProtobufCBinaryData){sizeof(fingerprint), fingerprint};
    if (fake->shared->mode[0] == 1)
        reply.fingerprint.len = 3;
    fake_reply(fake, request, &reply.base);
    return true;
}

START_TEST(another_packing_ends_the_session)
{
    struct fake *fake = fake_start(packing_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part;

    fake->shared->mode[0] = _i;
    make_kv(&kv);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_E_PROTOCOL);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

static const uint16_t region_steps[] = {WIRE_REGION_PART, WIRE_REGION_END};

// Answers BEGIN, and none of what mode[0] names.
static bool silent_about_regions(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__RegionReply reply = KVCACHE__REGION_REPLY__INIT;

    if (request->type == fake->shared->mode[0])
        return true;
    if (request->type != WIRE_REGION_BEGIN)
        return false;
    reply.region = 7;
    fake_reply(fake, request, &reply.base);
    return true;
}

// What the daemon has of a region is given up with it, so that registering can be tried for ever.
START_TEST(a_region_that_is_not_registered_in_time_is_dropped)
{
    struct fake *fake = fake_start(silent_about_regions);
    const kvc_options options = {.socket = fake->socket, .connect_ms = 200};
    kvc_client *client;
    kvc_part part = 0;
    struct kv kv;

    make_kv(&kv);
    kv_lend(&kv);
    fake->shared->mode[0] = region_steps[_i];
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    for (uint32_t tries = 1; tries <= 2; tries++) {
        ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_E_DEADLINE);
        ck_assert_uint_eq(part, 0);
        wait_for(fake_count(fake, WIRE_REGION_DROP) == tries, 5000);
    }
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

CHECK_MAIN_LOOPS("client/part", CHECK_LIFE_S, {equal_parts_have_one_handle, 0, 0},
                 {registering_again_takes_the_new_epoch, 0, 0}, {bad_parts_are_refused_here, 0, 0},
                 {parts_have_a_limit, 0, 0}, {another_packing_ends_the_session, 0, 1},
                 {a_region_that_is_not_registered_in_time_is_dropped, 0, 1})
