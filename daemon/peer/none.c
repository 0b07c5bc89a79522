/* The door of a build without UCX: it says so. */
#ifndef KVC_UCX

#include <stdio.h>

#include "daemon/peer/peer.h"

kvc_status peers_create(const struct peers_config *config, char *why, size_t size,
                        struct peers **peers)
{
    (void)config, (void)peers;
    snprintf(why, size,
             "this build knows no peers; the headers of UCX (Debian: libucx-dev) were absent");
    return KVC_E_UNSUPPORTED;
}

/* Nothing below is reached: nobody has a struct peers. */
void peers_stop(struct peers *peers)
{
    (void)peers;
}

void peers_drain(struct peers *peers, bool drain)
{
    (void)peers, (void)drain;
}

uint32_t peers_fetching(const struct peers *peers)
{
    (void)peers;
    return 0;
}

uint32_t peers_count(const struct peers *peers)
{
    (void)peers;
    return 0;
}

void peers_destroy(struct peers *peers)
{
    (void)peers;
}

kvc_status peers_fetch(struct peers *peers, const struct peers_want *want,
                       peers_fetched_cb *fetched, void *arg, struct fetch **fetch)
{
    (void)peers, (void)want, (void)fetched, (void)arg, (void)fetch;
    return KVC_E_UNKNOWN;
}

void peers_drop(struct fetch *fetch)
{
    (void)fetch;
}

void peers_note(struct peers *peers, uint32_t part, const uint8_t *key, bool here)
{
    (void)peers, (void)part, (void)key, (void)here;
}

bool peers_row(const struct peers *peers, uint32_t i, struct peers_row *row)
{
    (void)peers, (void)i, (void)row;
    return false;
}

void peers_figures(const struct peers *peers, struct peers_figures *figures)
{
    (void)peers;
    *figures = (struct peers_figures){0};
}

#endif
