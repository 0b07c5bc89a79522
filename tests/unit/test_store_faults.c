/*
 * The lines of saving that name a failure, as stories (tests/lib/story.h): of saves, and of copies
 * between the tiers.
 */
#include "tests/lib/check_main.h"
#include "tests/lib/story.h"

#define COPIES (1u << COPY_FAILS | 1u << COPY_REFUSED | 1u << COPY_LATE)

/* Three chunks. */
#define SAVE_SHAPE                                                                                 \
    {                                                                                              \
        .name = "a save", .budget = {2 << 20, 2 << 20}, .tenants = 1, .share = UINT32_MAX,         \
        .slices = {{1000, 1000, 2000}, {5000, 100}}, .keys = 150, .apart = true                    \
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
    .shape = STORY_SHAPE("tiers", 4, 6, 20),
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
    .shape = STORY_SHAPE("a promotion", 2, 8, 16),
    .reader = STORE_ROLE_READER,
    .happened = has_promoted,
    .steps = {story_save,       story_seal,      story_slices, story_done,      story_moves_end,
              story_save_other, story_moves_end, story_more,   story_seal,      story_slices,
              story_done,       story_moves_end, story_look,   story_release,   story_tick,
              story_look,       story_release,   story_tick,   story_moves_end, story_look,
              story_load,       story_loads_end},
};

static bool has_filled_the_host(const struct store_stats *stats)
{
    return stats->bytes_saved[TIER_HOST] > 0;
}

/* Most of it is skipped, for the gpu tier is small, and asked for again. */
static const struct story host_story = {
    .shape = STORY_SHAPE("to the host", 2, 8, 40),
    .reader = STORE_ROLE_READER,
    .happened = has_filled_the_host,
    .steps = {story_save, story_seal, story_slices, story_done, story_moves_end, story_save_to_host,
              story_seal, story_slices, story_done, story_moves_end, story_look, story_load,
              story_loads_end, story_release},
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

START_TEST(S14_any_failure_at_any_step_of_a_save_to_the_host)
{
    story_tell(&host_story, (enum failure)_i);
}
END_TEST

CHECK_MAIN_LOOPS("store/faults", CHECK_LONG_S,
                 {S14_any_failure_at_any_step_of_a_save, 0, FAILURES - 1},
                 {S14_any_failure_at_any_step_of_a_save_to_the_host, 0, FAILURES - 1},
                 {S19_any_failure_at_any_step_of_a_demotion, 0, FAILURES - 1},
                 {S23_any_failure_at_any_step_of_a_promotion, 0, FAILURES - 1})
