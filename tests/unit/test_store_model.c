/*
 * Random operations on the store, compared with a reference model after each. KVC_MODEL_STEPS,
 * KVC_MODEL_SEED and KVC_MODEL_SHAPE (its number) make a run longer, or repeat one.
 */
#include <stdlib.h>

#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"
#include "tests/lib/model.h"

#define SHAPES     8
#define SEEDS      3
#define STEPS      500
#define STEPS_LONG 15000

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

START_TEST(F15_random_operations_agree_with_the_model)
{
    uint32_t shape = (uint32_t)_i % model_n_shapes;
    uint64_t seed = from_environment("KVC_MODEL_SEED", 1 + (uint64_t)_i / model_n_shapes);
    uint64_t steps = from_environment("KVC_MODEL_STEPS", check_long() ? STEPS_LONG : STEPS);
    struct store_stats stats;
    struct model *m;

    ck_assert_uint_eq(model_n_shapes, SHAPES);
    if (from_environment("KVC_MODEL_SHAPE", shape) != shape ||
        (getenv("KVC_MODEL_SEED") && (uint32_t)_i != shape))
        return;
    m = model_create(&model_shapes[shape], seed);
    model_run(m, steps);
    store_stats(m->store, &stats);
    /* It is about what it is said to be about. */
    ck_assert(m->told_parents > 0);
    ck_assert(!model_shapes[shape].moves || steps < STEPS || stats.moved_extents > 0);
    model_destroy(m);
    ck_assert_msg(steps < STEPS || !fault_unknown(), "no call comes to %s", fault_unknown());
}
END_TEST

/* Or a run that failed could not be repeated: the stack is elsewhere in each process. */
START_TEST(what_a_seed_brings_does_not_depend_on_where_the_shape_lies)
{
    const struct model_shape first = model_shapes[0], second = first;
    struct model *a = model_create(&first, 1), *b = model_create(&second, 1);

    ck_assert_uint_eq(model_random(a), model_random(b));
    model_destroy(a);
    model_destroy(b);
}
END_TEST

CHECK_MAIN_LOOPS("store/model", CHECK_LONG_S,
                 {F15_random_operations_agree_with_the_model, 0, SHAPES *SEEDS - 1},
                 {what_a_seed_brings_does_not_depend_on_where_the_shape_lies, 0, 0})
