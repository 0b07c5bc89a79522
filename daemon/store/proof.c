#include "daemon/store/proof.h"

#include "daemon/store/load.h"
#include "daemon/store/save.h"

#define YOUNG_US      CLOCK_S_US
#define YOUNG_POLL_US (KVC_POLL_MS * CLOCK_MS_US)
#define OLD_POLL_US   (KVC_POLL_OLD_MS * CLOCK_MS_US)
#define TURN_LOOKS    4096u /* at words, in one turn */
#define ARRIVAL_LOOKS 64u   /* as many looks as one that has arrived costs, with its blocks */
#define AHEAD_WORDS   64u   /* of others, looked at before a lookup: some ns each */

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
    list_push_back(&store->words, &word->wait);
}

/* false: it has not. Counts down what the turn has left. */
static bool has_arrived(struct store *store, struct word *word, uint32_t *looks)
{
    const bool is_here = page_look(word, &store->stats.stale_completions);
    const uint32_t cost = is_here ? ARRIVAL_LOOKS : 1;

    *looks -= cost < *looks ? cost : *looks;
    if (is_here)
        arrived(store, word);
    return is_here;
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

/* Each once, or some: those that wait longest for a look come first. */
static void look_at_young(struct store *store, uint64_t now, uint32_t *looks)
{
    struct word *word, *first = NULL;
    bool any = false;

    while (*looks > 0 && (word = list_first(&store->young, struct word, watch)) && word != first) {
        if (has_arrived(store, word, looks)) {
            any = true;
        } else if (now - word->issued >= YOUNG_US) {
            word->due = now + OLD_POLL_US;
            list_move_back(&store->old, &word->watch);
        } else {
            list_move_back(&store->young, &word->watch);
            first = first ? first : word;
        }
    }
    store->young_due = any && *looks == 0 ? now : now + YOUNG_POLL_US;
}

void proof_tick(struct store *store, uint64_t now)
{
    uint32_t looks = TURN_LOOKS;
    struct word *word;

    if (!list_empty(&store->young) && now >= store->young_due)
        look_at_young(store, now, &looks);
    while (looks > 0 && (word = list_first(&store->old, struct word, watch)) && word->due <= now) {
        if (has_arrived(store, word, &looks))
            continue;
        word->due = now + OLD_POLL_US;
        list_move_back(&store->old, &word->watch);
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
    const struct word *word = list_first(&store->words, struct word, wait);

    return word ? word->issued : UINT64_MAX;
}
