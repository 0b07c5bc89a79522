#include "daemon/store/event.h"

#include "daemon/store/owner.h"
#include "daemon/store/save.h"

bool event_is_due(const struct store *store)
{
    return !list_empty(&store->reports) || !list_empty(&store->freed) ||
           (store->room && store->waiting_saves > 0);
}

/* Each is taken out before it is told, since its receiver may call the store. */
void event_deliver(struct store *store)
{
    const struct store_events *events = &store->config.events;
    struct save *save;
    struct owner *owner;

    while ((save = list_first(&store->reports, struct save, queue))) {
        struct save_outcome outcome;

        owner = save->owner;
        save_outcome(save, &outcome);
        save_free(save);
        if (events->save_done)
            events->save_done(events->ctx, owner, &outcome);
    }
    if (store->room) {
        store->room = false;
        if (store->waiting_saves > 0 && events->room)
            events->room(events->ctx);
    }
    while ((owner = list_first(&store->freed, struct owner, link))) {
        list_remove(&owner->link);
        if (events->owner_free)
            events->owner_free(events->ctx, owner);
        owner_destroy(owner);
    }
}
