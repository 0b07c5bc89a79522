/* A slot table whose daemon was killed at any instruction. */
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "daemon/store/slots.h"
#include "daemon/store/table.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tablekit.h"

/* One life of an ordinary and of a large block, and what extents go through on the way. */
static void live_and_die(struct slots *slots, uint32_t part, uint32_t large)
{
    uint32_t a, b;

    slots_grant(slots, 0, 5);
    slots_take(slots, 0, 5 * TABLEKIT_MIB, NULL, &b);
    tablekit_fill(slots, b, large, 1);
    table_slot_set_state(slots_record(slots, b), SLOT_READY);
    slots_take(slots, 0, 4096, NULL, &a);
    tablekit_fill(slots, a, part, 2);
    table_slot_set_state(slots_record(slots, a), SLOT_READY);
    table_slot_set_state(slots_record(slots, a), SLOT_FREE);
    slots_give(slots, a);
    slots_take(slots, 0, 4096, NULL, &a);
    tablekit_fill(slots, a, part, 3);
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
    tablekit_fill(c->slots, number, part, 4);
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
    if (TABLEKIT_EFFORT > 1)
        TEST_SKIP("the thread sanitizer adds too many instructions");

    struct table *table = tablekit_create(tablekit_small), *next;
    struct table_part part = tablekit_part(table, 4096), large = part;
    const uint32_t slices[2] = {2 * TABLEKIT_MIB, 3 * TABLEKIT_MIB};
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
    ck_assert_uint_eq(tablekit_tenant(table, "other", 1), 1);
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
        ck_assert_msg(table_attach(table_fd(table), tablekit_small, 1, &next, &why) == KVC_OK,
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

CHECK_MAIN_LOOPS("store/crash", CHECK_LIFE_S, {test_attach_after_every_instruction, 0, 0})
