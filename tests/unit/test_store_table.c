/* The slot table: its shape, its records, and what attaching to somebody else's accepts. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/store/slots.h"
#include "daemon/store/table.h"
#include "tests/lib/check_main.h"

#define MIB (1ull << 20)

/* The thread sanitizer makes a mapping a hundred times dearer, and there are no threads here. */
#ifdef __SANITIZE_THREAD__
#define EFFORT 16
#else
#define EFFORT 1
#endif

static const uint64_t small[TIER_COUNT] = {10 * MIB, 20 * MIB};

static struct table *create(const uint64_t budget[TIER_COUNT])
{
    struct table *table = NULL;

    ck_assert_int_eq(table_create(budget, 7, &table), KVC_OK);
    return table;
}

/* ---- shape ---- */

START_TEST(test_geometry)
{
    static const struct {
        uint64_t budget, extent;
        uint32_t extents;
    } rows[] = {
        {0, 2 * MIB, 0},
        {1, 2 * MIB, 0},
        {2 * MIB - 1, 2 * MIB, 0},
        {2 * MIB, 2 * MIB, 1},
        {128 * MIB, 2 * MIB, 64},
        {255 * MIB, 2 * MIB, 127},
        {256 * MIB, 4 * MIB, 64},
        {1024 * MIB, 16 * MIB, 64},
        {64 * 1024 * MIB, 1024 * MIB, 64},
        {1000 * 1024 * MIB, 1024 * MIB, 1000},
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
    const uint64_t budget[TIER_COUNT] = {0, 1000 * 1024 * MIB};
    struct table *table = create(budget);
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
    struct table *table = create(small);
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
        ck_assert_int_eq(table_create(small, 1, &table), rows[i].status);
        ck_assert_ptr_null(table);
        fault_off("*");
    }
}
END_TEST

/* ---- records ---- */

static uint32_t tenant_of(struct table *table, const char *name, uint32_t uid)
{
    uint32_t index = TABLE_NONE;

    ck_assert_int_eq(table_add_tenant(table, name, uid, &index), KVC_OK);
    return index;
}

START_TEST(test_tenants)
{
    struct table *table = create(small);
    char name[80];
    uint32_t a = tenant_of(table, "uid:1", 1), index = 77;

    ck_assert_uint_eq(tenant_of(table, "uid:1", 1), a);
    ck_assert_uint_ne(tenant_of(table, "blue", UINT32_MAX), a);
    ck_assert_uint_ne(tenant_of(table, "uid:1", UINT32_MAX), a);
    memset(name, 'x', sizeof(name));
    name[64] = 0;
    ck_assert_int_eq(table_add_tenant(table, name, 1, &index), KVC_E_INVALID);
    name[63] = 0;
    ck_assert_str_eq(table_tenant(table, tenant_of(table, name, 1))->name, name);
    ck_assert_int_eq(table_add_tenant(table, "", 1, &index), KVC_E_INVALID);
    for (uint32_t i = 4; i < TABLE_TENANTS; i++) {
        snprintf(name, sizeof(name), "t%u", i);
        ck_assert_uint_eq(tenant_of(table, name, 0), i);
    }
    ck_assert_int_eq(table_add_tenant(table, "one more", 0, &index), KVC_E_NO_ROOM);
    ck_assert_uint_eq(index, 77);
    ck_assert_uint_eq(tenant_of(table, "uid:1", 1), a);
    table_destroy(table);
}
END_TEST

START_TEST(test_namespaces)
{
    struct table *table = create(small);
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    uint32_t a, b, c, t = tenant_of(table, "a", 0), u = tenant_of(table, "b", 0);

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
    struct table *table = create(small);
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

/* A tenant with a namespace and a layout; returns a part of them that is not added yet. */
static struct table_part make_part(struct table *table, uint32_t slice_bytes)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {9};
    struct table_part part = {.tenant = tenant_of(table, "p", 0)};

    ck_assert_int_eq(table_add_namespace(table, part.tenant, digest, "model", &part.namespace_),
                     KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 16, &slice_bytes, 1, NULL, &part.layout), KVC_OK);
    return part;
}

START_TEST(test_parts)
{
    struct table *table = create(small);
    struct table_part part = make_part(table, 4096);
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
    struct table *table = create(small);
    struct table_session session = {.tenant = tenant_of(table, "s", 0), .pid = 5};
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
    struct table *table = create(small);
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

/*
 * A table with one of everything, and the slots whose records the tests below break. The host tier
 * has 10 extents of 2 MiB: 0 with slots of 4 KiB, 1 to 3 a large block, 4 and up empty; the last
 * two stay free.
 */
struct fixture {
    struct table *table;
    struct table_part part, large;
    uint32_t part_number, large_number, session;
    uint32_t slot[6]; /* by state */
    uint32_t large_slot;
};

static void fill(struct slots *slots, uint32_t number, uint32_t part, uint8_t key)
{
    struct table_slot *record = slots_record(slots, number);

    memset(record->key, key, sizeof(record->key));
    record->part = (uint16_t)part;
    record->epoch = 1;
    record->checksum = key * 77u;
    record->session = 1;
    record->last_use = 5;
    record->flags = SLOT_CHECKED;
    table_slot_set_state(record, SLOT_FILLING);
}

static void fixture_fill_slots(struct fixture *f)
{
    static const enum slot_state ways[6][3] = {
        [SLOT_READY] = {SLOT_READY},
        [SLOT_QUARANTINE] = {SLOT_READY, SLOT_QUARANTINE},
        [SLOT_DOOMED] = {SLOT_READY, SLOT_DOOMED},
    };
    struct slots *slots;

    ck_assert_int_eq(slots_create(f->table, TIER_HOST, &slots), KVC_OK);
    slots_grant(slots, f->part.tenant, 8);
    for (int state = 0; state < 6; state++) {
        struct table_slot *record;

        ck_assert(slots_take(slots, f->part.tenant, 4096, NULL, &f->slot[state]));
        record = slots_record(slots, f->slot[state]);
        if (state == SLOT_MOVING) {
            table_slot_set_state(record, SLOT_MOVING);
            continue;
        }
        fill(slots, f->slot[state], f->part_number, (uint8_t)(state + 1));
        for (int i = 0; i < 3 && ways[state][i]; i++)
            table_slot_set_state(record, ways[state][i]);
    }
    table_slot_set_state(slots_record(slots, f->slot[SLOT_FREE]), SLOT_FREE);
    slots_give(slots, f->slot[SLOT_FREE]);
    ck_assert(slots_take(slots, f->part.tenant, 5 * MIB, NULL, &f->large_slot));
    fill(slots, f->large_slot, f->large_number, 99);
    table_slot_set_state(slots_record(slots, f->large_slot), SLOT_READY);
    ck_assert_ptr_null(slots_check(slots));
    slots_destroy(slots);
}

static void fixture_open(struct fixture *f)
{
    const uint32_t slices[2] = {2 * MIB, 3 * MIB};
    struct table_session session = {.id = 0, .pid = 5, .n_devices = 1};
    uint32_t other;

    f->table = create(small);
    f->part = make_part(f->table, 4096);
    f->large = f->part;
    ck_assert_int_eq(table_add_layout(f->table, 16, slices, 2, NULL, &f->large.layout), KVC_OK);
    ck_assert_int_eq(table_add_part(f->table, &f->part, &f->part_number), KVC_OK);
    ck_assert_int_eq(table_add_part(f->table, &f->large, &f->large_number), KVC_OK);
    other = tenant_of(f->table, "other", 3);
    ck_assert_uint_ne(other, f->part.tenant);
    session.tenant = f->part.tenant;
    session.id = table_next_session(f->table);
    ck_assert_int_eq(table_add_session(f->table, &session, &f->session), KVC_OK);
    fixture_fill_slots(f);
}

static kvc_status attach(const struct fixture *f, struct table **table, const char **why)
{
    return table_attach(table_fd(f->table), small, 1, table, why);
}

START_TEST(test_attach_finds_everything)
{
    struct fixture f;
    struct table *table;
    struct slots *slots;
    struct slots_count count;
    const char *why = NULL;

    fixture_open(&f);
    ck_assert_msg(attach(&f, &table, &why) == KVC_OK, "%s", why);
    ck_assert_uint_eq(table_header(table)->boot_epoch, 8);
    ck_assert_str_eq(table_namespace(table, f.part.namespace_)->name, "model");
    for (int state = 0; state < 6; state++)
        ck_assert_uint_eq(table_slot(table, TIER_HOST, f.slot[state])->state, state);
    ck_assert_int_eq(slots_create(table, TIER_HOST, &slots), KVC_OK);
    slots_count(slots, &count);
    ck_assert_uint_eq(count.used_slots, 6);
    ck_assert_uint_eq(count.used_bytes, 5 * 4096 + 5 * MIB);
    why = slots_check(slots);
    ck_assert_msg(!why, "%s", why);
    /* A record that was there is found, a new one gets its own place. */
    ck_assert_uint_eq(tenant_of(table, "other", 3), 1);
    ck_assert_uint_eq(tenant_of(table, "new", 3), 2);
    slots_destroy(slots);
    table_destroy(table);
    table_destroy(f.table);
}
END_TEST

START_TEST(test_attach_takes_a_larger_boot_epoch)
{
    struct table *first = create(small), *second;
    const char *why;

    ck_assert_int_eq(table_attach(table_fd(first), small, 100, &second, &why), KVC_OK);
    ck_assert_uint_eq(table_header(second)->boot_epoch, 100);
    table_destroy(second);
    ck_assert_int_eq(table_attach(table_fd(first), small, 100, &second, &why), KVC_OK);
    ck_assert_uint_eq(table_header(second)->boot_epoch, 101);
    table_destroy(second);
    table_destroy(first);
}
END_TEST

START_TEST(test_attach_refuses_other_memory)
{
    const uint64_t other[TIER_COUNT] = {10 * MIB, 22 * MIB};
    const uint64_t swapped[TIER_COUNT] = {20 * MIB, 10 * MIB};
    struct table *table = create(small), *got = NULL;
    uint64_t bytes = table_header(table)->total_bytes;
    const char *why = NULL;
    int fd;

    ck_assert_int_eq(table_attach(table_fd(table), other, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "another size than the budgets give");
    ck_assert_int_eq(table_attach(table_fd(table), swapped, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "a header that the budgets do not give");

    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(table_attach(fd, small, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "not a memfd");
    fd_close(fd);

    fd = fd_memfd("other", 0);
    ck_assert_int_eq(fd_truncate(fd, bytes), 0);
    ck_assert_int_eq(table_attach(fd, small, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "not sealed");
    ck_assert_int_eq(fd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    ck_assert_int_eq(table_attach(fd, small, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "not a slot table");
    fd_close(fd);
    ck_assert_ptr_null(got);
    table_destroy(table);
}
END_TEST

START_TEST(test_attach_failures)
{
    static const struct {
        const char *site;
        kvc_status status;
    } rows[] = {
        {"mem.alloc", KVC_E_NO_MEMORY}, {"fd.dup", KVC_E_NO_FDS}, {"fd.map", KVC_E_NO_MEMORY}};
    struct table *table = create(small), *got = NULL;
    const char *why;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fault_arm(rows[i].site, 0, 1);
        ck_assert_int_eq(table_attach(table_fd(table), small, 1, &got, &why), rows[i].status);
        fault_off("*");
    }
    ck_assert_ptr_null(got);
    ck_assert_uint_eq(table_header(table)->boot_epoch, 7);
    table_destroy(table);
}
END_TEST

/* Attaching reads the slots that there are and leaves the rest of the section sparse. */
START_TEST(test_attach_keeps_the_table_sparse)
{
    const uint64_t budget[TIER_COUNT] = {0, 100 * 1024 * MIB};
    struct table *table = create(budget), *got;
    const char *why;
    struct stat st;

    ck_assert_int_eq(table_attach(table_fd(table), budget, 1, &got, &why), KVC_OK);
    ck_assert_int_eq(fstat(table_fd(table), &st), 0);
    ck_assert_uint_lt((uint64_t)st.st_blocks * 512, 2 * MIB);
    table_destroy(got);
    table_destroy(table);
}
END_TEST

/* What a crash between two stores of a large block leaves behind is undone. */
START_TEST(test_attach_repairs_unfinished_spans)
{
    struct fixture f;
    struct table *table;
    struct table_extent *head, *tail, before[2];
    const char *why = NULL;

    fixture_open(&f);
    head = table_extent(f.table, TIER_HOST, 4);
    tail = table_extent(f.table, TIER_HOST, 5);
    before[0] = *head;
    before[1] = *tail;
    tail->head = 4;
    tail->state = EXTENT_TAIL;
    for (int stage = 0; stage < 2; stage++) {
        ck_assert_msg(attach(&f, &table, &why) == KVC_OK, "%s", why);
        ck_assert_uint_eq(tail->state, EXTENT_OWNED);
        ck_assert_uint_eq(head->span, 1);
        table_destroy(table);
        tail->state = EXTENT_TAIL;
        head->span = 2; /* stage 1: the span was written too, the slot size not */
    }
    *head = before[0];
    *tail = before[1];
    /* A complete one whose slot is free: slots_create gives it up. */
    tail->head = 4;
    tail->state = EXTENT_TAIL;
    head->span = 2;
    head->slot_bytes = 3 * MIB;
    ck_assert_msg(attach(&f, &table, &why) == KVC_OK, "%s", why);
    ck_assert_uint_eq(tail->state, EXTENT_TAIL);
    {
        struct slots *slots;

        ck_assert_int_eq(slots_create(table, TIER_HOST, &slots), KVC_OK);
        ck_assert_uint_eq(tail->state, EXTENT_OWNED);
        ck_assert_uint_eq(head->slot_bytes, 0);
        why = slots_check(slots);
        ck_assert_msg(!why, "%s", why);
        slots_destroy(slots);
    }
    table_destroy(table);
    table_destroy(f.table);
}
END_TEST

/* ---- one broken byte ---- */

/* Bytes of a record that may change without making the table wrong. */
struct harmless {
    uint32_t offset, size;
};

struct target {
    const char *name;
    uint8_t *record;
    uint32_t size;
    struct harmless harmless[8];
};

#define FIELD(type, field)                                                                         \
    {                                                                                              \
        offsetof(struct type, field), sizeof(((struct type *)0)->field)                            \
    }

static bool is_harmless(const struct target *target, uint32_t offset)
{
    for (int i = 0; i < 8; i++)
        if (offset - target->harmless[i].offset < target->harmless[i].size)
            return true;
    return false;
}

/* Uses a table that was accepted: whatever it says must not lead out of it. */
static void use(struct table *table)
{
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        struct slots *slots;
        const char *why;
        uint32_t number;

        ck_assert_int_eq(slots_create(table, tier, &slots), KVC_OK);
        why = slots_check(slots);
        ck_assert_msg(!why, "%s", why);
        if (slots_take(slots, 0, 4096, NULL, &number))
            slots_give(slots, number);
        slots_destroy(slots);
    }
}

static void break_byte(const struct fixture *f, const struct target *target, uint32_t offset,
                       uint8_t value, const uint8_t *image)
{
    struct table_header *header = table_header(f->table);
    struct table *table = NULL;
    const char *why = NULL;
    uint8_t before = target->record[offset];
    kvc_status status;

    if (before == value)
        return;
    target->record[offset] = value;
    status = attach(f, &table, &why);
    ck_assert_msg(status == KVC_E_INVALID || (status == KVC_OK && is_harmless(target, offset)),
                  "%s, byte %u, %#x to %#x: %s", target->name, offset, before, value,
                  kvc_status_text(status));
    if (status == KVC_OK) {
        use(table);
        table_destroy(table);
        memcpy(header, image, header->total_bytes);
    }
    target->record[offset] = before;
}

static void break_record(const struct fixture *f, const struct target *target, const uint8_t *image)
{
    for (uint32_t i = 0; i < target->size; i += EFFORT) {
        uint8_t v = target->record[i];
        uint8_t values[] = {v ^ 1, 0, 0xff, v ^ 0x80, v + 1, v ^ 2, v ^ 4, v ^ 0x10};

        /* All of a layout's slices are alike. */
        if (i > 200 && i < target->size - 200 && i % 61)
            continue;
        for (uint32_t k = 0; k < (check_long() ? 8 : 3); k++)
            break_byte(f, target, i, values[k], image);
    }
}

/* Every byte of the header and of one record of each kind. */
START_TEST(test_attach_one_broken_byte)
{
    struct fixture f;
    uint8_t *image;
    uint64_t bytes;

    fixture_open(&f);
#define AT(p, size) (uint8_t *)(p), size
#define SLOT(state) AT(table_slot(f.table, TIER_HOST, f.slot[state]), sizeof(struct table_slot))
#define EXTENT(i)   AT(table_extent(f.table, TIER_HOST, i), sizeof(struct table_extent))
    const struct target targets[] = {
        {"header",
         AT(table_header(f.table), sizeof(struct table_header)),
         {FIELD(table_header, boot_epoch), FIELD(table_header, next_number),
          FIELD(table_header, next_session), FIELD(table_header, next_id),
          FIELD(table_header, clean)}},
        {"tenant",
         AT(table_tenant(f.table, f.part.tenant), sizeof(struct table_tenant)),
         {FIELD(table_tenant, reserved)}},
        {"unused tenant", AT(table_tenant(f.table, 3), sizeof(struct table_tenant)), {{0, 128}}},
        {"namespace",
         AT(table_namespace(f.table, f.part.namespace_), sizeof(struct table_namespace)),
         /* A later epoch makes the blocks stale; 0, or one before theirs, is refused. */
         {FIELD(table_namespace, epoch), FIELD(table_namespace, quota_leases),
          FIELD(table_namespace, quota_units)}},
        {"layout",
         AT(table_layout(f.table, f.part.layout), sizeof(struct table_layout)),
         {FIELD(table_layout, reserved),
          {offsetof(struct table_layout, slice_bytes) + 4, 4 * KVC_SLICES_MAX - 4},
          FIELD(table_layout, dtypes)}},
        {"part",
         AT(table_part(f.table, f.part_number), sizeof(struct table_part)),
         {FIELD(table_part, reserved)}},
        {"session",
         AT(table_session(f.table, f.session), sizeof(struct table_session)),
         {FIELD(table_session, used), FIELD(table_session, ended), FIELD(table_session, reserved)}},
        {"extent with slots",
         EXTENT(0),
         {FIELD(table_extent, head), FIELD(table_extent, reserved)}},
        {"head of a large block",
         EXTENT(1),
         {FIELD(table_extent, head), FIELD(table_extent, reserved)}},
        {"tail of a large block",
         EXTENT(2),
         {FIELD(table_extent, span), FIELD(table_extent, reserved)}},
        {"empty extent", EXTENT(4), {{0, sizeof(struct table_extent)}}},
        {"free extent", EXTENT(9), {{0, sizeof(struct table_extent)}}},
        {"FREE slot", SLOT(SLOT_FREE), {{0, sizeof(struct table_slot)}}},
        {"FILLING slot", SLOT(SLOT_FILLING), {{0, sizeof(struct table_slot)}}},
        {"MOVING slot", SLOT(SLOT_MOVING), {{0, sizeof(struct table_slot)}}},
        {"READY slot",
         SLOT(SLOT_READY),
         {FIELD(table_slot, last_use), FIELD(table_slot, session), FIELD(table_slot, state),
          FIELD(table_slot, loads), FIELD(table_slot, reserved0), FIELD(table_slot, hit_ms)}},
        {"DOOMED slot",
         SLOT(SLOT_DOOMED),
         {FIELD(table_slot, last_use), FIELD(table_slot, session), FIELD(table_slot, state),
          FIELD(table_slot, loads), FIELD(table_slot, reserved0), FIELD(table_slot, hit_ms)}},
        {"QUARANTINE slot", SLOT(SLOT_QUARANTINE), {{0, sizeof(struct table_slot)}}},
        {"slot of a large block",
         AT(table_slot(f.table, TIER_HOST, f.large_slot), sizeof(struct table_slot)),
         {FIELD(table_slot, last_use), FIELD(table_slot, session), FIELD(table_slot, state),
          FIELD(table_slot, loads), FIELD(table_slot, reserved0), FIELD(table_slot, hit_ms)}},
    };
    const struct target *target = &targets[_i];

    ck_assert_int_lt(_i, (int)(sizeof(targets) / sizeof(targets[0])));
    bytes = table_header(f.table)->total_bytes;
    image = malloc(bytes);
    memcpy(image, table_header(f.table), bytes);
    break_record(&f, target, image);
    free(image);
    table_destroy(f.table);
}
END_TEST

#define TARGETS 19

/* What no single byte of a record tells, but two records together do. */
START_TEST(test_attach_refuses_contradictions)
{
    struct fixture f;
    struct table *table = NULL;
    struct table_slot *slot;
    struct table_extent *extent;
    const char *why = NULL;

    fixture_open(&f);
    slot = table_slot(f.table, TIER_HOST, 7 * 512);
    slot->state = SLOT_FILLING;
    ck_assert_int_eq(attach(&f, &table, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "a slot in use in an extent without slots");
    slot->state = SLOT_FREE;

    slot = table_slot(f.table, TIER_HOST, 512 + 1);
    slot->state = SLOT_FILLING;
    ck_assert_int_eq(attach(&f, &table, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "a slot in use behind the last one of its extent");
    slot->state = SLOT_FREE;

    extent = table_extent(f.table, TIER_HOST, 0);
    extent->tenant = 1;
    ck_assert_int_eq(attach(&f, &table, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "a slot of another part than its extent can hold");
    extent->tenant = f.part.tenant;

    extent->slot_bytes = 8192;
    ck_assert_int_eq(attach(&f, &table, &why), KVC_E_INVALID);
    extent->slot_bytes = 4096;

    slot = table_slot(f.table, TIER_HOST, f.slot[SLOT_READY]);
    slot->epoch = 2;
    slot->check = table_slot_check(slot);
    ck_assert_int_eq(attach(&f, &table, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "a slot from an epoch to come");
    slot->epoch = 1;
    slot->check = table_slot_check(slot);
    ck_assert_int_eq(attach(&f, &table, &why), KVC_OK);
    table_destroy(table);
    table_destroy(f.table);
}
END_TEST

/* Several bytes at once, anywhere that matters: refused or used, but never followed out of it. */
START_TEST(test_attach_random_damage)
{
    struct fixture f;
    struct table *table;
    uint8_t *base, *image;
    uint64_t random = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1), bytes;
    uint32_t refused = 0, n = (check_long() ? 2000 : 160) / EFFORT;
    const char *why;

    fixture_open(&f);
    base = (uint8_t *)table_header(f.table);
    bytes = table_header(f.table)->total_bytes;
    image = malloc(bytes);
    memcpy(image, base, bytes);
    for (uint32_t round = 0; round < n; round++) {
        for (uint32_t k = 0; k < 1 + round % 3; k++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            int s = (int)(random >> 60) % SECTION_COUNT;
            uint64_t record = table_header(f.table)->sections[s].record_bytes;
            /* Of the first two records; of all extents, and of the slots that are in use. */
            uint64_t within = (random >> 20 & 0xffff) % ((s >= SECTION_EXTENTS ? 15 : 2) * record);

            if (s == SECTION_SLOTS)
                within += 5 * 512 * record;
            base[table_header(f.table)->sections[s].offset + within] ^= (uint8_t)(random >> 40) | 1;
        }
        if (attach(&f, &table, &why) == KVC_OK) {
            use(table);
            table_destroy(table);
        } else {
            refused++;
        }
        memcpy(base, image, bytes);
    }
    ck_assert_uint_gt(refused, n / 10);
    free(image);
    table_destroy(f.table);
}
END_TEST

/* One life of an ordinary and of a large block, and what extents go through on the way. */
static void live_and_die(struct slots *slots, uint32_t part, uint32_t large)
{
    uint32_t a, b;

    slots_grant(slots, 0, 5);
    slots_take(slots, 0, 5 * MIB, NULL, &b);
    fill(slots, b, large, 1);
    table_slot_set_state(slots_record(slots, b), SLOT_READY);
    slots_take(slots, 0, 4096, NULL, &a);
    fill(slots, a, part, 2);
    table_slot_set_state(slots_record(slots, a), SLOT_READY);
    table_slot_set_state(slots_record(slots, a), SLOT_FREE);
    slots_give(slots, a);
    slots_take(slots, 0, 4096, NULL, &a);
    fill(slots, a, part, 3);
    table_slot_set_state(slots_record(slots, a), SLOT_READY);
    table_slot_set_state(slots_record(slots, a), SLOT_QUARANTINE);
    table_slot_set_state(slots_record(slots, a), SLOT_FREE);
    slots_give(slots, a);
    table_slot_set_state(slots_record(slots, b), SLOT_DOOMED);
    table_slot_set_state(slots_record(slots, b), SLOT_FREE);
    slots_give(slots, b);
}

struct cast {
    struct table *table;
    struct slots *slots;
    uint32_t part, twice; /* of tenant 0: 4 KiB, 8 KiB */
    uint32_t others;      /* of tenant 1 */
    uint32_t row;         /* a part of tenant 0 that has no block */
};

static uint32_t take_ready(struct cast *c, uint32_t tenant, uint64_t bytes, uint32_t part)
{
    uint32_t number;

    if (!slots_take(c->slots, tenant, bytes, NULL, &number))
        _exit(1);
    fill(c->slots, number, part, 4);
    table_slot_set_state(slots_record(c->slots, number), SLOT_READY);
    return number;
}

static void free_slot(struct cast *c, uint32_t number)
{
    table_slot_set_state(slots_record(c->slots, number), SLOT_FREE);
    slots_give(c->slots, number);
}

/* An extent goes from one slot size to another, to another tenant, and is lost. */
static void change_hands(struct cast *c)
{
    uint32_t number = take_ready(c, 0, 4096, c->part), extent = slots_extent(c->slots, number);

    slots_close(c->slots, extent, false);
    free_slot(c, number);
    slots_promise(c->slots, extent, 8192);
    number = take_ready(c, 0, 8192, c->twice);
    slots_close(c->slots, slots_extent(c->slots, number), true);
    free_slot(c, number);
    slots_free_extent(c->slots, extent);
    slots_grant_closed(c->slots, extent, 1);
    slots_promise(c->slots, extent, 4096);
    number = take_ready(c, 1, 4096, c->others);
    slots_close(c->slots, extent, true);
    free_slot(c, number);
    slots_lose_extent(c->slots, extent);
}

/* A namespace with its part and layout is given back, and the rows become another's. */
static void change_rows(struct cast *c)
{
    const struct table_part old = *table_part(c->table, c->row);
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {77};
    const uint32_t slice = 12288;
    struct table_part new = {.tenant = 1};
    uint32_t number;

    table_remove_part(c->table, c->row);
    table_remove_namespace(c->table, old.namespace_);
    table_remove_layout(c->table, old.layout);
    if (table_add_namespace(c->table, 1, digest, "new", &new.namespace_) != KVC_OK ||
        table_add_layout(c->table, 16, &slice, 1, NULL, &new.layout) != KVC_OK ||
        table_add_part(c->table, &new, &number) != KVC_OK || number != c->row ||
        new.namespace_ != old.namespace_ || new.layout != old.layout)
        _exit(1);
}

/* A part of a namespace and layout of its own. */
static uint32_t add_part(struct table *table, uint32_t tenant, uint8_t digest_byte,
                         uint32_t slice_bytes)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {digest_byte};
    struct table_part part = {.tenant = tenant};
    uint32_t number;

    ck_assert_int_eq(table_add_namespace(table, tenant, digest, "crash", &part.namespace_), KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 16, &slice_bytes, 1, NULL, &part.layout), KVC_OK);
    ck_assert_int_eq(table_add_part(table, &part, &number), KVC_OK);
    return number;
}

/* Everything that changes in the test below, to see that it did and to undo what attaching does. */
struct picture {
    struct table_header header;
    struct table_extent extents[15];
    struct table_slot slots[2 * 512];
    struct table_namespace namespaces[4];
    struct table_part parts[6];
    struct table_layout layouts[5];
};

static void take_picture(const struct table *table, struct picture *picture)
{
    picture->header = *table_header(table);
    memcpy(picture->extents, table_extent(table, TIER_GPU, 0), sizeof(picture->extents));
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) /* of extents 0 and 3, where the slots are */
            picture->slots[i * 512 + k] = *table_slot(table, TIER_HOST, i * 3 * 512 + k);
    memcpy(picture->namespaces, table_namespace(table, 0), sizeof(picture->namespaces));
    memcpy(picture->parts, table_part(table, 0), sizeof(picture->parts));
    memcpy(picture->layouts, table_layout(table, 0), sizeof(picture->layouts));
}

/* Runs to the child's next instruction; false when it has ended. */
static bool step(pid_t pid)
{
    int status;

    ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSTOPPED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSTOPPED(status);
}

/* A daemon that is killed at any instruction leaves a table that the next one can trust. */
START_TEST(test_attach_after_every_instruction)
{
    if (EFFORT > 1)
        TEST_SKIP("the thread sanitizer adds too many instructions");

    struct table *table = create(small), *next;
    struct table_part part = make_part(table, 4096), large = part;
    const uint32_t slices[2] = {2 * MIB, 3 * MIB};
    struct picture *before = calloc(2, sizeof(*before)), *after = before + 1;
    uint32_t part_number, large_number, changes = 0;
    struct slots *slots;
    struct cast cast;
    pid_t pid;
    int status;

    ck_assert_int_eq(table_add_layout(table, 16, slices, 2, NULL, &large.layout), KVC_OK);
    ck_assert_int_eq(table_add_part(table, &part, &part_number), KVC_OK);
    ck_assert_int_eq(table_add_part(table, &large, &large_number), KVC_OK);
    ck_assert_int_eq(slots_create(table, TIER_HOST, &slots), KVC_OK);
    ck_assert_uint_eq(tenant_of(table, "other", 1), 1);
    cast = (struct cast){
        .table = table,
        .slots = slots,
        .part = part_number,
        .twice = add_part(table, 0, 9, 8192),
        .others = add_part(table, 1, 9, 4096),
        .row = add_part(table, 0, 11, 16384),
    };
    take_picture(table, before);
    pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
            raise(SIGSTOP);
        live_and_die(slots, part_number, large_number);
        change_hands(&cast);
        change_rows(&cast);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    while (WIFSTOPPED(status) && step(pid)) {
        const char *why = NULL;

        take_picture(table, after);
        if (memcmp(before, after, sizeof(*before)) == 0)
            continue;
        changes++;
        ck_assert_msg(table_attach(table_fd(table), small, 1, &next, &why) == KVC_OK,
                      "change %u: %s", changes, why);
        table_destroy(next);
        *table_header(table) = after->header;
        memcpy(table_extent(table, TIER_GPU, 0), after->extents, sizeof(after->extents));
        *before = *after;
    }
    slots_destroy(slots);
    table_destroy(table);
    free(before);
    if (!changes)
        TEST_SKIP("no ptrace here");
    ck_assert_uint_gt(changes, 100);
}
END_TEST

CHECK_MAIN_LOOPS(
    "store/table", CHECK_LIFE_S, {test_geometry, 0, 0},
    {test_memfd_is_private_sealed_and_sparse, 0, 0}, {test_sections_in_order, 0, 0},
    {test_too_many_slots_to_number, 0, 0}, {test_create_failures, 0, 0}, {test_tenants, 0, 0},
    {test_namespaces, 0, 0}, {test_layouts, 0, 0}, {test_parts, 0, 0}, {test_sessions, 0, 0},
    {test_numbers_are_never_used_twice, 0, 0}, {test_slot_states, 0, 0},
    {test_attach_finds_everything, 0, 0}, {test_attach_takes_a_larger_boot_epoch, 0, 0},
    {test_attach_refuses_other_memory, 0, 0}, {test_attach_failures, 0, 0},
    {test_attach_keeps_the_table_sparse, 0, 0}, {test_attach_repairs_unfinished_spans, 0, 0},
    {test_attach_refuses_contradictions, 0, 0}, {test_attach_one_broken_byte, 0, TARGETS - 1},
    {test_attach_random_damage, 0, 3}, {test_attach_after_every_instruction, 0, 0})
