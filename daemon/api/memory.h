/*
 * Workers' own memory as their sessions registered it: regions by number, from REGION_BEGIN on, and
 * who uses them. A region is unmapped when it was dropped, or its session has ended, and nothing
 * copies from or to it any more.
 */
#ifndef KVC_API_MEMORY_H
#define KVC_API_MEMORY_H

#include "daemon/api/session.h"
#include "daemon/tier/region.h"

enum memory_state {
    MEMORY_BUILDING,   /* pieces are still to come */
    MEMORY_READY,      /* the only state in which it can be taken into use */
    MEMORY_SUSPENDING, /* SUSPEND is answered when nothing uses it any more */
    MEMORY_SUSPENDED,
    MEMORY_DROPPED, /* nobody can name it any more; unmapped as soon as nothing uses it */
};

struct memory {
    struct list link; /* session::memories */
    struct api *api;
    struct session *session; /* NULL: it has ended */
    uint64_t id, generation;
    uint32_t part, n_pieces;
    enum memory_state state;
    struct region *region; /* NULL: it is being unmapped */
    uint32_t uses;         /* transfers, and a piece that is being opened */
    bool opening;          /* pieces of a GPU, by its errands: others must wait */
    struct owed {          /* requests to be answered */
        bool owed;
        uint32_t seq;
    } suspend, drop;
};

/* Takes a region of a session into use. The refused field is what is passed. */
kvc_status memory_use(struct session *session, uint64_t region, uint32_t part,
                      struct memory **memory, struct refusal *why, const char *field);
void memory_unuse(struct memory *memory);

/* Whether n block ids are a region's, and, if so asked, distinct; names blocks[i] behind prefix. */
kvc_status memory_check_blocks(const struct memory *memory, struct numbers blocks, bool distinct,
                               struct refusal *why, const char *prefix);

/* The session has ended: all of its regions are dropped. */
void memory_forget_session(struct session *session);

/* Memory of a GPU: REGION_PART and REGION_END of a region that is being built. They are answered
 * when the GPU's errands have come to them. */
kvc_status memory_gpu_part(struct memory *memory, const struct request *request,
                           struct refusal *why);
kvc_status memory_gpu_end(struct memory *memory, uint32_t seq, struct refusal *why);

/* For these: what is left of REGION_END when all was checked, and a region that came to nothing. */
void memory_complete(struct memory *memory, uint32_t seq);
void memory_discard(struct memory *memory);
kvc_status memory_translate(struct refusal *why, kvc_status status,
                            const struct region_refusal *wrong);

#endif
