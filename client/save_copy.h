/* Inside of saves: what save.c knows of one whose reply has come, and copying it, save_copy.c. */
#ifndef KVC_CLIENT_SAVE_COPY_H
#define KVC_CLIENT_SAVE_COPY_H

#include "client/client.h"

/* reply points into the client's scratch, and has been checked. */
struct saving {
    const kvc_save_args *args;
    bool by_daemon; /* all of its parts */
    uint32_t calls; /* for slices of the save before this one */
    struct part *parts[KVC_ENTRIES_MAX];
    struct codec_save_reply reply;
};

/* How many slices of a part's blocks this call is about. */
uint32_t save_slices(const kvc_save_args *args, const struct part *part);

/*
 * Copies all chunks of a reply, as many with one job of the device as it takes. When that fails,
 * *first_never is the first chunk of which nothing is being copied, nor of those behind it.
 */
kvc_status save_copy(kvc_client *client, const struct saving *saving, uint32_t *first_never);

#endif
