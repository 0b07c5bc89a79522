/*
 * The lines of saving that name a failure, as stories: tests/lib/story.h.
 */
#include "tests/lib/check_main.h"
#include "tests/lib/story.h"

#define MIB (1ull << 20)

#define COPIES (1u << COPY_FAILS | 1u << COPY_REFUSED | 1u << COPY_LATE)

/* Three chunks. */
#define SAVE_SHAPE                                                                                 \
    {                                                                                              \
        .name = "a save", .budget = {2 * MIB, 2 * MIB}, .tenants = 1, .share = UINT32_MAX,         \
        .slices = {{1000, 1000, 2000}, {5000, 100}}, .keys = 150, .apart = true                    \
    }

/* Slots of 120 KiB: 17 of an extent. */
#define SHAPE(what, gpu, host, n)                                                                  \
    {                                                                                              \
        .name = (what), .budget = {(gpu)*MIB, (host)*MIB}, .tenants = 1, .share = UINT32_MAX,      \
        .slices = {{60000, 60000}, {17, 64000}}, .keys = (n), .apart = true                        \
    }

static bool has_published(const struct store_stats *stats)
{
    return stats->published_blocks > 0;
}

static const struct story save_story = {
    .shape = SAVE_SHAPE,
    .reader = STORE_ROLE_READER,
    .never = COPIES,
    .happened = has_published,
    .steps = {story_save, story_more, story_seal, story_slices, story_first, story_nudge,
              story_last, story_nudge, story_middle, story_tick, story_look, story_load,
              story_loads_end, story_release},
};

static bool has_demoted(const struct store_stats *stats)
{
    return stats->demotions > 0;
}

/* More blocks than the gpu tier has room for, so that the second save needs demotions. */
static const struct story tier_story = {
    .shape = SHAPE("tiers", 4, 6, 20),
    .reader = STORE_ROLE_READER,
    .happened = has_demoted,
    .steps = {story_save, story_seal, story_slices, story_all, story_nudge, story_save_other,
              story_moves_end, story_more, story_moves_end, story_more, story_seal, story_slices,
              story_all, story_tick, story_moves_end, story_look, story_load, story_loads_end},
};

static bool has_promoted(const struct store_stats *stats)
{
    return stats->promotions > 0;
}

/* Blocks that only the host tier has by then are hit twice. */
static const struct story promotion_story = {
    .shape = SHAPE("a promotion", 2, 8, 16),
    .reader = STORE_ROLE_READER,
    .happened = has_promoted,
    .steps = {story_save,       story_seal,      story_slices, story_done,      story_moves_end,
              story_save_other, story_moves_end, story_more,   story_seal,      story_slices,
              story_done,       story_moves_end, story_look,   story_release,   story_tick,
              story_look,       story_release,   story_tick,   story_moves_end, story_look,
              story_load,       story_loads_end},
};

static bool has_loaded(const struct store_stats *stats)
{
    return stats->open_loads + stats->bytes_loaded[TIER_GPU] + stats->bytes_loaded[TIER_HOST] > 0;
}

static const struct story lease_story = {
    .shape = SHAPE("a lease", 2, 4, 16),
    .reader = STORE_ROLE_READER,
    .happened = has_loaded,
    .steps = {story_save, story_seal, story_slices, story_all, story_nudge, story_tick, story_look,
              story_load, story_save_other, story_moves_end, story_seal, story_lease_ends,
              story_load, story_loads_end, story_release, story_tick, story_moves_end},
};

/* A scheduler's lease of two parts; who has no device loads nothing itself. */
static const struct story handover_story = {
    .shape = SHAPE("a lease that is handed over", 4, 4, 16),
    .reader = STORE_ROLE_SCHEDULER,
    .happened = has_loaded,
    .steps = {story_save,         story_seal,         story_slices,
              story_all,          story_nudge,        story_save_state,
              story_seal,         story_slices,       story_all,
              story_nudge,        story_look_both,    story_adopt,
              story_release,      story_load_adopted, story_save_other,
              story_moves_end,    story_seal,         story_lease_ends,
              story_load_adopted, story_loads_end,    story_release_adopted,
              story_tick},
};

static bool has_flushed(const struct store_stats *stats)
{
    return stats->published_blocks > stats->blocks;
}

static const struct story flush_story = {
    .shape = SHAPE("a flush", 2, 4, 16),
    .reader = STORE_ROLE_READER,
    .happened = has_flushed,
    .steps = {story_save, story_seal, story_slices, story_all, story_nudge, story_look, story_load,
              story_save_other, story_seal, story_flush, story_slices, story_all, story_moves_end,
              story_tick, story_loads_end, story_release, story_look},
};

/* _i: the kind of failure. */
START_TEST(S14_any_failure_at_any_step_of_a_save)
{
    story_tell(&save_story, (enum failure)_i);
}
END_TEST

START_TEST(S19_any_failure_at_any_step_of_a_demotion)
{
    story_tell(&tier_story, (enum failure)_i);
}
END_TEST

START_TEST(S23_any_failure_at_any_step_of_a_promotion)
{
    story_tell(&promotion_story, (enum failure)_i);
}
END_TEST

START_TEST(S29_any_failure_at_any_step_of_a_lease_and_its_loads)
{
    story_tell(&lease_story, (enum failure)_i);
}
END_TEST

START_TEST(S35_S36_any_failure_at_any_step_of_a_lease_that_is_handed_over)
{
    story_tell(&handover_story, (enum failure)_i);
}
END_TEST

START_TEST(S42_any_failure_at_any_step_around_a_flush)
{
    story_tell(&flush_story, (enum failure)_i);
}
END_TEST

CHECK_MAIN_LOOPS("store/faults", CHECK_LONG_S,
                 {S14_any_failure_at_any_step_of_a_save, 0, FAILURES - 1},
                 {S19_any_failure_at_any_step_of_a_demotion, 0, FAILURES - 1},
                 {S23_any_failure_at_any_step_of_a_promotion, 0, FAILURES - 1},
                 {S29_any_failure_at_any_step_of_a_lease_and_its_loads, 0, FAILURES - 1},
                 {S35_S36_any_failure_at_any_step_of_a_lease_that_is_handed_over, 0, FAILURES - 1},
                 {S42_any_failure_at_any_step_around_a_flush, 0, FAILURES - 1})
