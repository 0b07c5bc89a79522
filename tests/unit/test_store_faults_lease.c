/*
 * The lines of saving that name a failure, as stories: of leases and flushes.
 */
#include "tests/lib/check_main.h"
#include "tests/lib/story.h"

static bool has_loaded(const struct store_stats *stats)
{
    return stats->open_loads + stats->bytes_loaded[TIER_GPU] + stats->bytes_loaded[TIER_HOST] > 0;
}

static const struct story lease_story = {
    .shape = STORY_SHAPE("a lease", 2, 4, 16),
    .reader = STORE_ROLE_READER,
    .happened = has_loaded,
    .steps = {story_save, story_seal, story_slices, story_all, story_nudge, story_tick, story_look,
              story_load, story_save_other, story_moves_end, story_seal, story_lease_ends,
              story_load, story_loads_end, story_release, story_tick, story_moves_end},
};

/* A scheduler's lease of two parts; who has no device loads nothing itself. */
static const struct story handover_story = {
    .shape = STORY_SHAPE("a lease that is handed over", 4, 4, 16),
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
    .shape = STORY_SHAPE("a flush", 2, 4, 16),
    .reader = STORE_ROLE_READER,
    .happened = has_flushed,
    .steps = {story_save, story_seal, story_slices, story_all, story_nudge, story_look, story_load,
              story_save_other, story_seal, story_flush, story_slices, story_all, story_moves_end,
              story_tick, story_loads_end, story_release, story_look},
};

/* _i: the kind of failure. */
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

CHECK_MAIN_LOOPS("store/faults_lease", CHECK_LONG_S,
                 {S29_any_failure_at_any_step_of_a_lease_and_its_loads, 0, FAILURES - 1},
                 {S35_S36_any_failure_at_any_step_of_a_lease_that_is_handed_over, 0, FAILURES - 1},
                 {S42_any_failure_at_any_step_around_a_flush, 0, FAILURES - 1})
