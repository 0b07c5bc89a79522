// What a session may ask the daemon to copy and does not let end is bounded.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wait.h"

#define SLICES      KVC_SLICES_MAX
#define SLICE_BYTES 16u
#define BLOCKS      KVC_KEYS_MAX
#define BLOCK_BYTES (SLICES * SLICE_BYTES)
#define BYTES       ((size_t)BLOCKS * BLOCK_BYTES)
#define MS          20000
// Calls for one slice of all blocks, as many as fit.
#define CALLS (KVC_SESSION_COPIES_MAX / (BLOCKS + KVC_COPY_CALL_BLOCKS))

static kvc_client *client;
static uint8_t keys[BLOCKS * KVC_KEY_BYTES];
static uint32_t ids[BLOCKS];
static uint64_t save;

static kvc_part lend(void *memory, int fd)
{
    static kvc_slice slices[SLICES];
    const kvc_memory lent = {.fd = fd, .base = memory, .bytes = BYTES};
    const kvc_part_desc desc = {
        .block_tokens = 16,
        .slices = slices,
        .n_slices = SLICES,
        .n_blocks = BLOCKS,
        .copy = KVC_COPY_DAEMON,
        .memories = &lent,
        .n_memories = 1,
    };
    kvc_part part;

    for (uint32_t i = 0; i < SLICES; i++)
        slices[i] = (kvc_slice){.base = (uint8_t *)memory + (size_t)i * SLICE_BYTES,
                                .stride = BLOCK_BYTES,
                                .bytes = SLICE_BYTES};
    ck_assert_int_eq(kvc_register(client, &desc, &part), KVC_OK);
    return part;
}

static kvc_status save_slice(kvc_part part, uint32_t slice)
{
    uint8_t states[BLOCKS];
    const kvc_save_entry entry = {part, keys, ids, BLOCKS, states};
    const kvc_save_args args = {
        .entries = &entry, .n_entries = 1, .first_slice = slice, .n_slices = 1, .more_of = save};

    return kvc_save(client, &args, &save);
}

START_TEST(S9_calls_whose_copies_do_not_end_are_bounded)
{
    struct daemon *d = daemon_start((const char *[]){"--gpu-bytes", "32M", NULL});
    const kvc_options options = {.socket = daemon_socket(d),
                                 .role = KVC_ROLE_WORKER,
                                 .connect_ms = wait_patient_ms(MS),
                                 .lookup_ms = wait_patient_ms(MS),
                                 .save_ms = wait_patient_ms(MS)};
    int fd = memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    kvc_outcome outcome;
    kvc_part part;
    void *memory;

    ck_assert_int_eq(ftruncate(fd, (off_t)BYTES), 0);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        memcpy(keys + (size_t)i * KVC_KEY_BYTES, &i, sizeof(i));
        ids[i] = i;
    }
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    part = lend(memory, fd);
    daemon_fault_arm(d, "copier.late", 0, UINT32_MAX);
    for (uint32_t i = 0; i < CALLS; i++)
        ck_assert_msg(save_slice(part, i) == KVC_OK, "call %u", i);
    ck_assert_int_eq(save_slice(part, CALLS), KVC_E_BUSY);
    // What has ended makes room.
    daemon_fault_off(d, "copier.late");
    wait_for(save_slice(part, CALLS) == KVC_OK, MS);
    ck_assert_int_eq(kvc_cancel(client, save, wait_patient_ms(MS), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    kvc_close(client);
    munmap(memory, BYTES);
    close(fd);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("life/copy_limits", CHECK_LONG_S, S9_calls_whose_copies_do_not_end_are_bounded)
