/* Peers for people: rows and figures. */
#ifdef KVC_UCX

#include <stdio.h>

#include "daemon/peer/state.h"

void peers_figures(const struct peers *peers, struct peers_figures *figures)
{
    const struct peer *peer;

    *figures = peers->figures;
    list_for_each(peer, &peers->list, link) {
        figures->wire_bytes += peer->wire;
        figures->stale += peer->stale;
        for (enum view view = 0; view < VIEW_COUNT; view++)
            figures->batches[view] += peer->batches[view];
    }
}

static const char *name_of(const struct peers *peers, uint32_t tenant)
{
    return table_tenant(store_table(peers->config.store), tenant)->name;
}

static void describe_peer(const struct peer *peer, struct peers_row *row)
{
    static const char *const states[] = {"waiting", "resolving", "linking",
                                         "open",    "closing",   "stopped"};

    *row = (struct peers_row){
        .way = "serves",
        .tenant = name_of(peer->peers, peer->tenant),
        .epoch = peer->epoch,
        .batches = peer->batches[VIEW_FULL] + peer->batches[VIEW_SMALL],
        .small = peer->batches[VIEW_SMALL],
        .useful = peer->useful,
        .wire = peer->wire,
        .registrations = peer->registrations,
        .dropped = peer->stale,
    };
    snprintf(row->address, sizeof(row->address), "%s", peer->name);
    snprintf(row->state, sizeof(row->state), "%s", states[peer->state]);
    if (peer->state == PEER_OPEN)
        snprintf(row->mode, sizeof(row->mode), "%s", message_mode_name(peer->mode));
    snprintf(row->lanes, sizeof(row->lanes), "%s", peer->transports);
    snprintf(row->reason, sizeof(row->reason), "%s", peer->reason);
}

static void describe_guest(const struct guest *guest, struct peers_row *row)
{
    *row = (struct peers_row){
        .way = "asks",
        .tenant = name_of(guest->peers, guest->tenant),
        .epoch = guest->epoch,
        .batches = guest->batches,
        .small = guest->small,
        .useful = guest->useful,
        .wire = guest->wire,
        .registrations = guest->registrations,
        .dropped = guest->stale + guest->refused,
    };
    snprintf(row->address, sizeof(row->address), "%s", guest->name);
    snprintf(row->reason, sizeof(row->reason), "under way %u, waiting %u", guest->n_running,
             guest->n_waiting);
    snprintf(row->state, sizeof(row->state), "%s",
             guest->endpoint != NULL && guest->control != NULL ? "open"
             : guest->control != NULL                          ? "linking"
                                                               : "closing");
}

bool peers_row(const struct peers *peers, uint32_t i, struct peers_row *row)
{
    const struct peer *peer;
    const struct guest *guest;

    list_for_each(peer, &peers->list, link)
        if (i-- == 0)
            return describe_peer(peer, row), true;
    list_for_each(guest, &peers->guests, link)
        if (i-- == 0)
            return describe_guest(guest, row), true;
    return false;
}

#endif
