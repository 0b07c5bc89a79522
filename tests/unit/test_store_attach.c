/* What attaching to somebody else's slot table accepts. */
#include <fcntl.h>
#include <sys/stat.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/store/slots.h"
#include "daemon/store/table.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tablekit.h"

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
        tablekit_fill(slots, f->slot[state], f->part_number, (uint8_t)(state + 1));
        for (int i = 0; i < 3 && ways[state][i]; i++)
            table_slot_set_state(record, ways[state][i]);
    }
    table_slot_set_state(slots_record(slots, f->slot[SLOT_FREE]), SLOT_FREE);
    slots_give(slots, f->slot[SLOT_FREE]);
    ck_assert(slots_take(slots, f->part.tenant, 5 * TABLEKIT_MIB, NULL, &f->large_slot));
    tablekit_fill(slots, f->large_slot, f->large_number, 99);
    table_slot_set_state(slots_record(slots, f->large_slot), SLOT_READY);
    ck_assert_ptr_null(slots_check(slots));
    slots_destroy(slots);
}

static void fixture_open(struct fixture *f)
{
    const uint32_t slices[2] = {2 * TABLEKIT_MIB, 3 * TABLEKIT_MIB};
    struct table_session session = {.id = 0, .pid = 5, .n_devices = 1};
    uint32_t other;

    f->table = tablekit_create(tablekit_small);
    f->part = tablekit_part(f->table, 4096);
    f->large = f->part;
    ck_assert_int_eq(table_add_layout(f->table, 16, slices, 2, NULL, &f->large.layout), KVC_OK);
    ck_assert_int_eq(table_add_part(f->table, &f->part, &f->part_number), KVC_OK);
    ck_assert_int_eq(table_add_part(f->table, &f->large, &f->large_number), KVC_OK);
    other = tablekit_tenant(f->table, "other", 3);
    ck_assert_uint_ne(other, f->part.tenant);
    session.tenant = f->part.tenant;
    session.id = table_next_session(f->table);
    ck_assert_int_eq(table_add_session(f->table, &session, &f->session), KVC_OK);
    fixture_fill_slots(f);
}

static kvc_status attach(const struct fixture *f, struct table **table, const char **why)
{
    return table_attach(table_fd(f->table), tablekit_small, 1, table, why);
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
    ck_assert_uint_eq(count.used_bytes, 5 * 4096 + 5 * TABLEKIT_MIB);
    why = slots_check(slots);
    ck_assert_msg(!why, "%s", why);
    /* A record that was there is found, a new one gets its own place. */
    ck_assert_uint_eq(tablekit_tenant(table, "other", 3), 1);
    ck_assert_uint_eq(tablekit_tenant(table, "new", 3), 2);
    slots_destroy(slots);
    table_destroy(table);
    table_destroy(f.table);
}
END_TEST

START_TEST(test_attach_takes_a_larger_boot_epoch)
{
    struct table *first = tablekit_create(tablekit_small), *second;
    const char *why;

    ck_assert_int_eq(table_attach(table_fd(first), tablekit_small, 100, &second, &why), KVC_OK);
    ck_assert_uint_eq(table_header(second)->boot_epoch, 100);
    table_destroy(second);
    ck_assert_int_eq(table_attach(table_fd(first), tablekit_small, 100, &second, &why), KVC_OK);
    ck_assert_uint_eq(table_header(second)->boot_epoch, 101);
    table_destroy(second);
    table_destroy(first);
}
END_TEST

START_TEST(test_attach_refuses_other_memory)
{
    const uint64_t other[TIER_COUNT] = {10 * TABLEKIT_MIB, 22 * TABLEKIT_MIB};
    const uint64_t swapped[TIER_COUNT] = {20 * TABLEKIT_MIB, 10 * TABLEKIT_MIB};
    struct table *table = tablekit_create(tablekit_small), *got = NULL;
    uint64_t bytes = table_header(table)->total_bytes;
    const char *why = NULL;
    int fd;

    ck_assert_int_eq(table_attach(table_fd(table), other, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "another size than the budgets give");
    ck_assert_int_eq(table_attach(table_fd(table), swapped, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "a header that the budgets do not give");

    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(table_attach(fd, tablekit_small, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "not a memfd");
    fd_close(fd);

    fd = fd_memfd("other", 0);
    ck_assert_int_eq(fd_truncate(fd, bytes), 0);
    ck_assert_int_eq(table_attach(fd, tablekit_small, 1, &got, &why), KVC_E_INVALID);
    ck_assert_str_eq(why, "not sealed");
    ck_assert_int_eq(fd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    ck_assert_int_eq(table_attach(fd, tablekit_small, 1, &got, &why), KVC_E_INVALID);
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
    struct table *table = tablekit_create(tablekit_small), *got = NULL;
    const char *why;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fault_arm(rows[i].site, 0, 1);
        ck_assert_int_eq(table_attach(table_fd(table), tablekit_small, 1, &got, &why),
                         rows[i].status);
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
    const uint64_t budget[TIER_COUNT] = {0, 100 * 1024 * TABLEKIT_MIB};
    struct table *table = tablekit_create(budget), *got;
    const char *why;
    struct stat st;

    ck_assert_int_eq(table_attach(table_fd(table), budget, 1, &got, &why), KVC_OK);
    ck_assert_int_eq(fstat(table_fd(table), &st), 0);
    ck_assert_uint_lt((uint64_t)st.st_blocks * 512, 2 * TABLEKIT_MIB);
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
    head->slot_bytes = 3 * TABLEKIT_MIB;
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
    for (uint32_t i = 0; i < target->size; i += TABLEKIT_EFFORT) {
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
    uint32_t refused = 0, n = (check_long() ? 2000 : 160) / TABLEKIT_EFFORT;
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

CHECK_MAIN_LOOPS("store/attach", CHECK_LIFE_S, {test_attach_finds_everything, 0, 0},
                 {test_attach_takes_a_larger_boot_epoch, 0, 0},
                 {test_attach_refuses_other_memory, 0, 0}, {test_attach_failures, 0, 0},
                 {test_attach_keeps_the_table_sparse, 0, 0},
                 {test_attach_repairs_unfinished_spans, 0, 0},
                 {test_attach_refuses_contradictions, 0, 0},
                 {test_attach_one_broken_byte, 0, TARGETS - 1}, {test_attach_random_damage, 0, 3})
