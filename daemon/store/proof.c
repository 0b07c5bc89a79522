#include "daemon/store/proof.h"

#include "daemon/store/load.h"
#include "daemon/store/save.h"

#define YOUNG_US      CLOCK_S_US
#define YOUNG_POLL_US (KVC_POLL_MS * CLOCK_MS_US)
#define OLD_POLL_US   (KVC_POLL_OLD_MS * CLOCK_MS_US)
#define AHEAD_WORDS   64u /* of others, looked at before a lookup: some ns each */

/* Takes nothing but this word from the lists of words. */
static void arrived(struct store *store, struct word *word)
{
    if (word->kind == WORD_CHUNK)
        save_proved(store, word->object);
    else
        load_close(store, word->object, true);
}

void proof_watch(struct store *store, struct word *word)
{
    if (list_empty(&store->young))
        store->young_due = word->issued + YOUNG_POLL_US;
    list_push_back(&store->young, &word->watch);
}

bool proof_look(struct owner *owner)
{
    uint32_t left = owner->page ? owner->page->outstanding : 0;
    bool any = false;

    for (uint32_t i = 0; i < KVC_PAGE_WORDS && left > 0; i++) {
        struct word *word = &owner->page->words[i];

        if (word->kind == WORD_UNUSED)
            continue;
        left--;
        if (!page_look(word, &owner->store->stats.stale_completions))
            continue;
        arrived(owner->store, word);
        any = true;
    }
    return any;
}

bool proof_look_ahead(struct owner *owner)
{
    struct store *store = owner->store;
    bool any = proof_look(owner);
    struct word *word, *after;
    uint32_t left = AHEAD_WORDS;

    list_for_each_safe(word, after, &store->young, watch) {
        if (left-- == 0)
            break;
        if (!page_look(word, &store->stats.stale_completions))
            continue;
        arrived(store, word);
        any = true;
    }
    return any;
}

static void look_at_young(struct store *store, uint64_t now)
{
    struct word *word, *after;

    list_for_each_safe(word, after, &store->young, watch) {
        if (page_look(word, &store->stats.stale_completions)) {
            arrived(store, word);
        } else if (now - word->issued >= YOUNG_US) {
            word->due = now + OLD_POLL_US;
            list_move_back(&store->old, &word->watch);
        }
    }
    store->young_due = now + YOUNG_POLL_US;
}

void proof_tick(struct store *store, uint64_t now)
{
    struct word *word;

    if (!list_empty(&store->young) && now >= store->young_due)
        look_at_young(store, now);
    while ((word = list_first(&store->old, struct word, watch)) && word->due <= now) {
        if (page_look(word, &store->stats.stale_completions)) {
            arrived(store, word);
        } else {
            word->due = now + OLD_POLL_US;
            list_move_back(&store->old, &word->watch);
        }
    }
}

uint64_t proof_next_wake(const struct store *store)
{
    uint64_t wake = list_empty(&store->young) ? UINT64_MAX : store->young_due;
    const struct word *old = list_first(&store->old, struct word, watch);

    return old && old->due < wake ? old->due : wake;
}

void proof_waive(struct owner *owner)
{
    if (!owner->page)
        return;
    for (uint32_t i = 0; i < KVC_PAGE_WORDS && owner->page->outstanding > 0; i++) {
        struct word *word = &owner->page->words[i];

        if (word->kind == WORD_CHUNK)
            save_waived(owner->store, word->object);
        else if (word->kind == WORD_LOAD)
            load_close(owner->store, word->object, false);
    }
}

uint64_t proof_oldest(const struct store *store)
{
    uint64_t oldest = UINT64_MAX;
    const struct word *word;

    list_for_each(word, &store->old, watch)
        oldest = word->issued < oldest ? word->issued : oldest;
    word = list_first(&store->young, struct word, watch);
    return word && word->issued < oldest ? word->issued : oldest;
}
