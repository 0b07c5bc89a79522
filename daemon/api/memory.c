/* REGION_BEGIN to REGION_DROP, SUSPEND, RESUME. */
#include "daemon/api/memory.h"

#include <assert.h>

#include "daemon/base/mem.h"

static void set_state(struct memory *m, enum memory_state state)
{
    assert(m->state != MEMORY_DROPPED);
    assert(state == MEMORY_DROPPED || (m->state == MEMORY_BUILDING && state == MEMORY_READY) ||
           (m->state == MEMORY_READY && state == MEMORY_SUSPENDING) ||
           (m->state == MEMORY_SUSPENDING && state == MEMORY_SUSPENDED) ||
           (m->state == MEMORY_SUSPENDED && state == MEMORY_READY));
    m->state = state;
}

static void answer(const struct memory *m, uint16_t type, struct owed *request)
{
    if (request->owed && m->session != NULL)
        session_reply(m->session, type, request->seq, codec_empty(m->api->codec));
    request->owed = false;
}

/* Who asks again has stopped to wait for the answer to the first, which is a refusal now. */
static void owe(const struct memory *m, struct owed *request, uint32_t seq)
{
    struct refusal why;

    if (request->owed) {
        refuse(&why, KVC_E_CANCELLED, "the same was asked again", "region");
        session_refuse(m->session, request->seq, KVC_E_CANCELLED, &why);
    }
    *request = (struct owed){true, seq};
}

static void unmapped(void *arg)
{
    struct memory *m = arg;

    answer(m, WIRE_REGION_DROP, &m->drop);
    m->api->n_pieces -= m->n_pieces;
    if (m->session != NULL)
        m->session->n_pieces -= m->n_pieces;
    list_remove(&m->link);
    mem_free(m);
}

/* What waits for nothing to use it. */
static void settle(struct memory *m)
{
    struct region *region = m->region;

    if (m->uses > 0)
        return;
    answer(m, WIRE_SUSPEND, &m->suspend);
    if (m->state == MEMORY_SUSPENDING)
        set_state(m, MEMORY_SUSPENDED);
    if (m->state != MEMORY_DROPPED || region == NULL)
        return;
    m->region = NULL;
    region_destroy(m->api->config.loop, region, unmapped, m);
}

void memory_discard(struct memory *m)
{
    if (m->state != MEMORY_DROPPED)
        set_state(m, MEMORY_DROPPED);
    settle(m);
}

/* Also one that was dropped and is not unmapped yet. */
static struct memory *find_any(const struct session *s, uint64_t id)
{
    struct memory *m;

    list_for_each(m, &s->memories, link)
        if (m->id == id)
            return m;
    return NULL;
}

static struct memory *find(const struct session *s, uint64_t id)
{
    struct memory *m = find_any(s, id);

    return m != NULL && m->state != MEMORY_DROPPED ? m : NULL;
}

kvc_status memory_use(struct session *s, uint64_t id, uint32_t part, struct memory **memory,
                      struct refusal *why, const char *field)
{
    struct memory *m = find(s, id);

    if (m == NULL || m->state == MEMORY_BUILDING)
        return refuse(why, KVC_E_UNKNOWN, "no such region", "%s", field);
    if (m->part != part)
        return refuse(why, KVC_E_INVALID, "a region of another part", "%s", field);
    if (m->state != MEMORY_READY)
        return refuse(why, KVC_E_BUSY, "the region is suspended", "%s", field);
    m->uses++;
    *memory = m;
    return KVC_OK;
}

void memory_unuse(struct memory *m)
{
    assert(m->uses > 0);
    m->uses--;
    settle(m);
}

/* Ids of a request are few: a small table finds what comes twice. */
static bool is_new(uint32_t *places, uint32_t size, uint32_t id)
{
    uint32_t at = (uint32_t)((id * 0x9E3779B97F4A7C15ull) >> 40) % size;

    for (; places[at] != 0; at = (at + 1) % size)
        if (places[at] == id + 1)
            return false;
    places[at] = id + 1;
    return true;
}

kvc_status memory_check_blocks(const struct memory *m, struct numbers blocks, bool distinct,
                               struct refusal *why, const char *prefix)
{
    uint32_t places[2 * KVC_KEYS_MAX] = {0}; /* id + 1 */

    assert(blocks.n <= KVC_KEYS_MAX);
    for (uint32_t i = 0; i < blocks.n; i++) {
        if (blocks.values[i] >= region_blocks(m->region))
            return refuse(why, KVC_E_INVALID, "no block of the region", "%sblocks[%u]", prefix, i);
        if (distinct && !is_new(places, 2 * KVC_KEYS_MAX, blocks.values[i]))
            return refuse(why, KVC_E_DUPLICATE, "the same destination twice", "%sblocks[%u]",
                          prefix, i);
    }
    return KVC_OK;
}

kvc_status memory_translate(struct refusal *why, kvc_status status,
                            const struct region_refusal *wrong)
{
    if (wrong->index < 0)
        return refuse(why, status, wrong->detail, "%s", wrong->field);
    return refuse(why, status, wrong->detail, "%s[%u]", wrong->field, (unsigned)wrong->index);
}

static kvc_status check_begin(const struct session *s, const struct msg_region_begin *b,
                              const struct table_layout *layout, struct refusal *why)
{
    const struct memory *m;

    const struct device *device = s->api->config.device;
    const uint32_t max =
        device->lending != NULL ? KVC_SESSION_GPU_PIECES_MAX : KVC_SESSION_PIECES_MAX;

    if (device->gpu->gather == NULL && device->lending == NULL)
        return refuse(why, KVC_E_UNSUPPORTED, "this daemon was built without nvcc", "%s", "");
    if (device->lending != NULL && !s->has_gpu)
        return refuse(why, KVC_E_NO_DEVICE,
                      "the first GPU that HELLO named is none of this daemon's (see --gpus)", "%s",
                      "");
    if (layout == NULL)
        return refuse(why, KVC_E_UNKNOWN, "not registered by this session", "part");
    if (b->slice_pieces.n != layout->n_slices)
        return refuse(why, KVC_E_INVALID, "not one a slice", "slice_pieces");
    if (b->slice_offsets.n != layout->n_slices)
        return refuse(why, KVC_E_INVALID, "not one a slice", "slice_offsets");
    if (b->slice_strides.n != layout->n_slices)
        return refuse(why, KVC_E_INVALID, "not one a slice", "slice_strides");
    if (list_length(&s->memories) >= KVC_SESSION_REGIONS_MAX)
        return refuse(why, KVC_E_LIMIT, "more regions than a session may have", "%s", "");
    if (b->pieces > max - s->n_pieces)
        return refuse(why, KVC_E_LIMIT, "more pieces than a session may have", "pieces");
    if (device->lending == NULL && b->pieces > KVC_PIECES_MAX - s->api->n_pieces)
        return refuse(why, KVC_E_NO_ROOM, "the daemon maps no more pieces", "pieces");
    list_for_each(m, &s->memories, link)
        if (m->part == b->part && m->state != MEMORY_DROPPED && b->generation < m->generation)
            return refuse(why, KVC_E_STALE, "a later one is registered", "generation");
    return KVC_OK;
}

kvc_status memory_begin(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_region_begin *b = &request->region_begin;
    const struct table_layout *layout = store_owner_layout(s->api->store, s->owner, b->part);
    struct region_refusal wrong;
    struct region_shape shape;
    struct memory *m;
    kvc_status status = check_begin(s, b, layout, why);

    if (status != KVC_OK)
        return status;
    shape = (struct region_shape){
        .blocks = b->blocks,
        .n_slices = layout->n_slices,
        .n_pieces = b->pieces,
        .slice_bytes = layout->slice_bytes,
        .slice_pieces = b->slice_pieces.values,
        .slice_offsets = b->slice_offsets.values,
        .slice_strides = b->slice_strides.values,
    };
    m = mem_zalloc(sizeof(*m));
    if (m == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    status = region_create(&shape, &m->region, &wrong);
    if (status != KVC_OK) {
        mem_free(m);
        return memory_translate(why, status, &wrong);
    }
    m->api = s->api;
    m->session = s;
    m->id = ++s->api->last_region;
    m->generation = b->generation;
    m->part = b->part;
    m->n_pieces = b->pieces;
    s->n_pieces += b->pieces;
    s->api->n_pieces += b->pieces;
    list_init(&m->link);
    list_push_back(&s->memories, &m->link);
    session_reply(s, WIRE_REGION_BEGIN, request->seq, codec_region(s->api->codec, m->id));
    return KVC_OK;
}

static kvc_status check_part(const struct msg_region_part *p, uint32_t n_fds, bool on_gpu,
                             struct refusal *why)
{
    uint32_t n_handles = 0;

    if (p->piece_bytes.n != p->kinds.len)
        return refuse(why, KVC_E_INVALID, "not one a piece", "piece_bytes");
    if (p->piece_offsets.n != p->kinds.len && p->piece_offsets.n != 0)
        return refuse(why, KVC_E_INVALID, "not one a piece", "piece_offsets");
    for (uint32_t i = 0; i < p->kinds.len; i++) {
        const uint8_t kind = p->kinds.data[i];

        if (kind < DEVICE_MEMORY_MEMFD || kind > DEVICE_MEMORY_CUDA_HANDLE)
            return refuse(why, KVC_E_INVALID, "no such kind", "kinds[%u]", i);
        if (on_gpu != (kind != DEVICE_MEMORY_MEMFD))
            return refuse(why, KVC_E_UNSUPPORTED,
                          on_gpu ? "this daemon's device is a GPU, and host memory is not copied"
                                 : "memory of a GPU is not mapped here",
                          "kinds[%u]", i);
        n_handles += kind == DEVICE_MEMORY_CUDA_HANDLE;
    }
    if (p->handles.len != (size_t)n_handles * DEVICE_HANDLE_BYTES)
        return refuse(why, KVC_E_INVALID, "not 64 bytes a piece that has one", "handles");
    if (n_fds != p->kinds.len - n_handles)
        return refuse(why, KVC_E_INVALID, "not as many as the descriptors that came", "kinds");
    return KVC_OK;
}

static kvc_status find_building(const struct session *s, uint64_t id, struct memory **memory,
                                struct refusal *why)
{
    struct memory *m = find(s, id);

    if (m == NULL || m->state != MEMORY_BUILDING)
        return refuse(why, KVC_E_UNKNOWN, "no region that was begun", "region");
    if (m->opening)
        return refuse(why, KVC_E_BUSY, "pieces that came before are being opened", "region");
    *memory = m;
    return KVC_OK;
}

/* Whatever is refused from here on, nothing is left of the region: it can be tried again. */
kvc_status memory_part(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_region_part *p = &request->region_part;
    struct region_refusal wrong;
    struct memory *m = NULL;
    kvc_status status = find_building(s, p->region, &m, why);

    if (status != KVC_OK)
        return status;
    status = check_part(p, request->n_fds, s->api->config.device->lending != NULL, why);
    if (status == KVC_OK && s->api->config.device->lending != NULL)
        return memory_gpu_part(m, request, why);
    for (uint32_t i = 0; i < p->kinds.len && status == KVC_OK; i++) {
        status = region_add(m->region, request->fds[i], p->piece_bytes.values[i],
                            p->piece_offsets.n > 0 ? p->piece_offsets.values[i] : 0, &wrong);
        if (status != KVC_OK)
            memory_translate(why, status, &wrong);
    }
    if (status != KVC_OK)
        memory_discard(m);
    else
        session_reply(s, WIRE_REGION_PART, request->seq, codec_empty(s->api->codec));
    return status;
}

/* The same memory, registered before; or NULL. */
static struct memory *find_equal(const struct session *s, const struct memory *made)
{
    struct memory *m;

    list_for_each(m, &s->memories, link)
        if (m != made && m->state != MEMORY_DROPPED && m->state != MEMORY_BUILDING &&
            m->part == made->part && m->generation == made->generation &&
            region_equal(m->region, made->region))
            return m;
    return NULL;
}

/* What the worker says is older than this one. */
static void drop_older(const struct session *s, const struct memory *made)
{
    struct memory *m, *after;

    list_for_each_safe(m, after, &s->memories, link)
        if (m->part == made->part && m->generation < made->generation && m->state != MEMORY_DROPPED)
            memory_discard(m);
}

void memory_complete(struct memory *m, uint32_t seq)
{
    struct session *s = m->session;
    struct memory *stands = find_equal(s, m);

    if (stands == NULL) {
        set_state(m, MEMORY_READY);
        drop_older(s, m);
        stands = m;
    } else {
        memory_discard(m);
    }
    session_reply(s, WIRE_REGION_END, seq, codec_region(s->api->codec, stands->id));
}

kvc_status memory_end(struct session *s, const struct request *request, struct refusal *why)
{
    struct region_refusal wrong;
    struct memory *m = NULL;
    kvc_status status = find_building(s, request->region.region, &m, why);

    if (status != KVC_OK)
        return status;
    if (region_loan(m->region) != NULL)
        return memory_gpu_end(m, request->seq, why);
    status = region_finish(m->region, &wrong);
    if (status != KVC_OK) {
        memory_discard(m);
        return memory_translate(why, status, &wrong);
    }
    memory_complete(m, request->seq);
    return KVC_OK;
}

kvc_status memory_drop(struct session *s, const struct request *request, struct refusal *why)
{
    struct memory *m = find_any(s, request->region.region);

    if (m == NULL)
        return refuse(why, KVC_E_UNKNOWN, "no such region", "region");
    owe(m, &m->drop, request->seq);
    memory_discard(m);
    return KVC_OK;
}

kvc_status memory_suspend(struct session *s, const struct request *request, struct refusal *why)
{
    struct memory *m = find(s, request->region.region);

    if (m == NULL || m->state == MEMORY_BUILDING)
        return refuse(why, KVC_E_UNKNOWN, "no such region", "region");
    if (m->state == MEMORY_READY)
        set_state(m, MEMORY_SUSPENDING);
    owe(m, &m->suspend, request->seq);
    settle(m);
    return KVC_OK;
}

kvc_status memory_resume(struct session *s, const struct request *request, struct refusal *why)
{
    struct memory *m = find(s, request->region.region);

    if (m == NULL || m->state == MEMORY_BUILDING)
        return refuse(why, KVC_E_UNKNOWN, "no such region", "region");
    if (m->state == MEMORY_SUSPENDING)
        return refuse(why, KVC_E_BUSY, "a SUSPEND waits", "region");
    if (m->state == MEMORY_SUSPENDED)
        set_state(m, MEMORY_READY);
    session_reply(s, WIRE_RESUME, request->seq, codec_empty(s->api->codec));
    return KVC_OK;
}

void memory_forget_session(struct session *s)
{
    struct memory *m;

    while ((m = list_first(&s->memories, struct memory, link)) != NULL) {
        list_remove(&m->link);
        m->session = NULL;
        memory_discard(m);
    }
}
