/* The slot table: its shape and its records. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/base/fault.h"
#include "daemon/store/slots.h"
#include "daemon/store/table.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tablekit.h"

START_TEST(test_geometry)
{
    static const struct {
        uint64_t budget, extent;
        uint32_t extents;
    } rows[] = {
        {0, 2 * TABLEKIT_MIB, 0},
        {1, 2 * TABLEKIT_MIB, 0},
        {2 * TABLEKIT_MIB - 1, 2 * TABLEKIT_MIB, 0},
        {2 * TABLEKIT_MIB, 2 * TABLEKIT_MIB, 1},
        {128 * TABLEKIT_MIB, 2 * TABLEKIT_MIB, 64},
        {255 * TABLEKIT_MIB, 2 * TABLEKIT_MIB, 127},
        {256 * TABLEKIT_MIB, 4 * TABLEKIT_MIB, 64},
        {1024 * TABLEKIT_MIB, 16 * TABLEKIT_MIB, 64},
        {64 * 1024 * TABLEKIT_MIB, 1024 * TABLEKIT_MIB, 64},
        {1000 * 1024 * TABLEKIT_MIB, 1024 * TABLEKIT_MIB, 1000},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct table_tier tier;

        table_tier_geometry(rows[i].budget, &tier);
        ck_assert_uint_eq(tier.extent_bytes, rows[i].extent);
        ck_assert_uint_eq(tier.extents, rows[i].extents);
        ck_assert_uint_eq(tier.bytes, rows[i].extent * rows[i].extents);
        ck_assert_uint_eq(tier.slots_per_extent, rows[i].extent / KVC_SLOT_BYTES_MIN);
    }
}
END_TEST

START_TEST(test_memfd_is_private_sealed_and_sparse)
{
    const uint64_t budget[TIER_COUNT] = {0, 1000 * 1024 * TABLEKIT_MIB};
    struct table *table = tablekit_create(budget);
    int fd = table_fd(table);
    struct stat st;

    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_uint_eq((uint64_t)st.st_size, table_header(table)->total_bytes);
    ck_assert_uint_lt((uint64_t)st.st_blocks * 512, 64 * 1024);
    ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
                     F_SEAL_SHRINK | F_SEAL_GROW);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_lt(ftruncate(fd, 4096), 0);
    table_destroy(table);
}
END_TEST

START_TEST(test_sections_in_order)
{
    struct table *table = tablekit_create(tablekit_small);
    const struct table_header *h = table_header(table);
    uint64_t end = h->header_bytes;

    ck_assert_mem_eq(h->magic, TABLE_MAGIC, 8);
    ck_assert_uint_eq(h->boot_epoch, 7);
    for (int s = 0; s < SECTION_COUNT; s++) {
        ck_assert_uint_ge(h->sections[s].offset, end);
        ck_assert_uint_eq(h->sections[s].offset % 4096, 0);
        end = h->sections[s].offset + h->sections[s].records * h->sections[s].record_bytes;
    }
    ck_assert_uint_le(end, h->total_bytes);
    ck_assert_uint_eq(h->sections[SECTION_EXTENTS].records, 15);
    ck_assert_uint_eq(h->sections[SECTION_SLOTS].records, 15 * 512);
    ck_assert_ptr_eq(table_slot(table, TIER_HOST, 0), table_slot(table, TIER_GPU, 5 * 512 - 1) + 1);
    ck_assert_ptr_eq(table_extent(table, TIER_HOST, 0), table_extent(table, TIER_GPU, 4) + 1);
    table_destroy(table);
    table_destroy(NULL);
}
END_TEST

START_TEST(test_too_many_slots_to_number)
{
    const uint64_t budget[TIER_COUNT] = {0, 16ull << 40};
    struct table *table = NULL;

    ck_assert_int_eq(table_create(budget, 1, &table), KVC_E_LIMIT);
    ck_assert_ptr_null(table);
}
END_TEST

START_TEST(test_create_failures)
{
    static const struct {
        const char *site;
        kvc_status status;
    } rows[] = {
        {"mem.alloc", KVC_E_NO_MEMORY}, {"fd.memfd", KVC_E_NO_FDS},  {"fd.truncate", KVC_E_SYSTEM},
        {"fd.seal", KVC_E_SYSTEM},      {"fd.map", KVC_E_NO_MEMORY},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct table *table = NULL;

        fault_arm(rows[i].site, 0, 1);
        ck_assert_int_eq(table_create(tablekit_small, 1, &table), rows[i].status);
        ck_assert_ptr_null(table);
        fault_off("*");
    }
}
END_TEST

/* ---- records ---- */

START_TEST(test_tenants)
{
    struct table *table = tablekit_create(tablekit_small);
    char name[80];
    uint32_t a = tablekit_tenant(table, "uid:1", 1), index = 77;

    ck_assert_uint_eq(tablekit_tenant(table, "uid:1", 1), a);
    ck_assert_uint_ne(tablekit_tenant(table, "blue", UINT32_MAX), a);
    ck_assert_uint_ne(tablekit_tenant(table, "uid:1", UINT32_MAX), a);
    memset(name, 'x', sizeof(name));
    name[64] = 0;
    ck_assert_int_eq(table_add_tenant(table, name, 1, &index), KVC_E_INVALID);
    name[63] = 0;
    ck_assert_str_eq(table_tenant(table, tablekit_tenant(table, name, 1))->name, name);
    ck_assert_int_eq(table_add_tenant(table, "", 1, &index), KVC_E_INVALID);
    for (uint32_t i = 4; i < TABLE_TENANTS; i++) {
        snprintf(name, sizeof(name), "t%u", i);
        ck_assert_uint_eq(tablekit_tenant(table, name, 0), i);
    }
    ck_assert_int_eq(table_add_tenant(table, "one more", 0, &index), KVC_E_NO_ROOM);
    ck_assert_uint_eq(index, 77);
    ck_assert_uint_eq(tablekit_tenant(table, "uid:1", 1), a);
    table_destroy(table);
}
END_TEST

START_TEST(test_namespaces)
{
    struct table *table = tablekit_create(tablekit_small);
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    uint32_t a, b, c, t = tablekit_tenant(table, "a", 0), u = tablekit_tenant(table, "b", 0);

    ck_assert_int_eq(table_add_namespace(table, t, digest, "llama", &a), KVC_OK);
    ck_assert_int_eq(table_add_namespace(table, u, digest, NULL, &b), KVC_OK);
    ck_assert_int_eq(table_add_namespace(table, t, digest, NULL, &c), KVC_OK);
    ck_assert_uint_ne(a, b);
    ck_assert_uint_eq(a, c);
    ck_assert_str_eq(table_namespace(table, a)->name, "llama");
    ck_assert_uint_eq(table_namespace(table, a)->epoch, 1);
    for (uint32_t i = 2; i < TABLE_NAMESPACES; i++) {
        memcpy(digest, &i, sizeof(i));
        ck_assert_int_eq(table_add_namespace(table, t, digest, NULL, &c), KVC_OK);
    }
    digest[31] = 1;
    ck_assert_int_eq(table_add_namespace(table, t, digest, NULL, &c), KVC_E_NO_ROOM);
    table_destroy(table);
}
END_TEST

START_TEST(test_layouts)
{
    struct table *table = tablekit_create(tablekit_small);
    uint32_t slices[KVC_SLICES_MAX + 1], a, b, index = 77;
    uint8_t dtypes[KVC_SLICES_MAX] = {0};

    for (uint32_t i = 0; i <= KVC_SLICES_MAX; i++)
        slices[i] = 4096 + 16 * i;
    ck_assert_int_eq(table_add_layout(table, 16, slices, 3, NULL, &a), KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 16, slices, 3, NULL, &b), KVC_OK);
    ck_assert_uint_eq(a, b);
    ck_assert_uint_eq(table_layout(table, a)->block_bytes, 3 * 4096 + 48);
    ck_assert_uint_eq(table_layout(table, a)->slot_bytes, 3 * 4096 + 512);
    ck_assert_int_eq(table_add_layout(table, 16, slices, 3, dtypes, &b), KVC_OK);
    ck_assert_uint_ne(a, b);
    ck_assert_int_eq(table_add_layout(table, 17, slices, 3, NULL, &b), KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 16, slices, KVC_SLICES_MAX, dtypes, &b), KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 0, slices, 3, NULL, &index), KVC_E_INVALID);
    ck_assert_int_eq(table_add_layout(table, KVC_BLOCK_TOKENS_MAX + 1, slices, 3, NULL, &index),
                     KVC_E_LIMIT);
    ck_assert_int_eq(table_add_layout(table, 16, slices, 0, NULL, &index), KVC_E_INVALID);
    ck_assert_int_eq(table_add_layout(table, 16, slices, KVC_SLICES_MAX + 1, NULL, &index),
                     KVC_E_LIMIT);
    for (uint32_t i = 4; i < TABLE_LAYOUTS; i++)
        ck_assert_int_eq(table_add_layout(table, 100 + i, slices, 1, NULL, &b), KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 99, slices, 1, NULL, &index), KVC_E_NO_ROOM);
    ck_assert_uint_eq(index, 77);
    table_destroy(table);
}
END_TEST

START_TEST(test_parts)
{
    struct table *table = tablekit_create(tablekit_small);
    struct table_part part = tablekit_part(table, 4096);
    uint32_t a, b;

    ck_assert_int_eq(table_add_part(table, &part, &a), KVC_OK);
    ck_assert_uint_eq(a, 1); /* 0 is never a part */
    part.family[0] = 1;
    ck_assert_int_eq(table_add_part(table, &part, &b), KVC_OK);
    ck_assert_uint_eq(a, b);
    ck_assert_uint_eq(table_part(table, a)->family[0], 0);
    part.rule = 1;
    for (uint32_t i = 2; i < TABLE_PARTS; i++) {
        part.window = i;
        ck_assert_int_eq(table_add_part(table, &part, &b), KVC_OK);
        ck_assert_uint_eq(b, i);
    }
    part.window = 1;
    ck_assert_int_eq(table_add_part(table, &part, &b), KVC_E_NO_ROOM);
    table_destroy(table);
}
END_TEST

START_TEST(test_sessions)
{
    struct table *table = tablekit_create(tablekit_small);
    struct table_session session = {.tenant = tablekit_tenant(table, "s", 0), .pid = 5};
    uint32_t index, first;

    for (uint32_t i = 0; i < TABLE_SESSIONS; i++) {
        session.id = table_next_session(table);
        ck_assert_int_eq(table_add_session(table, &session, &index), KVC_OK);
        ck_assert_uint_eq(index, i);
    }
    ck_assert_int_eq(table_add_session(table, &session, &first), KVC_E_NO_ROOM);
    table_remove_session(table, 17);
    ck_assert_int_eq(table_session(table, 17)->pid, 0);
    session.pid = 6;
    ck_assert_int_eq(table_add_session(table, &session, &index), KVC_OK);
    ck_assert_uint_eq(index, 17);
    table_destroy(table);
}
END_TEST

// Not by a later daemon either, which begins anew: they start at its epoch.
START_TEST(test_numbers_are_never_used_twice)
{
    struct table *table = tablekit_create(tablekit_small);
    const uint64_t epoch = table_header(table)->boot_epoch;

    for (uint64_t i = 0; i < 100; i++) {
        ck_assert_uint_eq(table_next_number(table), epoch + i);
        ck_assert_uint_eq(table_next_session(table), epoch + i);
        ck_assert_uint_eq(table_next_id(table), epoch + i);
    }
    table_destroy(table);
}
END_TEST

/* Whether the move aborts, tried in a child. */
static bool move_aborts(enum slot_state from, enum slot_state to)
{
    pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct table_slot slot = {.state = from};

        fclose(stderr);
        table_slot_set_state(&slot, to);
        _exit(slot.state == to ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status);
}

START_TEST(test_slot_states)
{
    static const char legal[6][7] = {
        /*  to:          FREE FILLING READY QUARANTINE MOVING DOOMED */
        [SLOT_FREE] = ".F..M.",       [SLOT_FILLING] = "x.xx..", [SLOT_READY] = "x..x.x",
        [SLOT_QUARANTINE] = "x.....", [SLOT_MOVING] = "x.x...",  [SLOT_DOOMED] = "x..x..",
    };

    for (int from = 0; from < 6; from++)
        for (int to = 0; to < 6; to++)
            ck_assert_msg(move_aborts(from, to) == (legal[from][to] == '.'), "from %d to %d", from,
                          to);
}
END_TEST

/* ---- attaching ---- */

CHECK_MAIN_LOOPS("store/table", CHECK_LIFE_S, {test_geometry, 0, 0},
                 {test_memfd_is_private_sealed_and_sparse, 0, 0}, {test_sections_in_order, 0, 0},
                 {test_too_many_slots_to_number, 0, 0}, {test_create_failures, 0, 0},
                 {test_tenants, 0, 0}, {test_namespaces, 0, 0}, {test_layouts, 0, 0},
                 {test_parts, 0, 0}, {test_sessions, 0, 0},
                 {test_numbers_are_never_used_twice, 0, 0}, {test_slot_states, 0, 0})
