/* REGION_PART and REGION_END of memory of a GPU, which its errands open and map. */
#include "daemon/api/memory.h"

#include <string.h>

#include "daemon/base/fd.h"
#include "daemon/base/mem.h"

/* More requests wait for the driver than it would answer in time. */
#define ERRANDS_MAX 256u

/* A request on its way through the errands. */
struct step {
    struct errand errand;
    struct memory *memory;
    uint16_t type;
    uint32_t seq;
    kvc_status status;
    struct region_refusal wrong;
    uint32_t n;
    struct device_piece pieces[KVC_WIRE_FDS_MAX];
    struct closer *closer; /* of the pieces' descriptors, which may be anything */
    struct closer_source source;
};

static struct errands *errands_of(const struct memory *m)
{
    return m->api->errands[m->session->gpu];
}

static void free_step(struct step *step)
{
    for (uint32_t i = 0; i < step->n; i++)
        closer_close(step->closer, step->pieces[i].fd, step->source);
    mem_free(step);
}

static void work(struct errand *errand)
{
    struct step *step = container_of(errand, struct step, errand);
    struct region *region = step->memory->region;

    step->status = KVC_OK;
    if (step->type == WIRE_REGION_END)
        step->status = region_lend_finish(region, &step->wrong);
    for (uint32_t i = 0; i < step->n && step->status == KVC_OK; i++)
        step->status = region_lend_add(region, &step->pieces[i], &step->wrong);
}

static void reply(struct memory *m, const struct step *step)
{
    struct refusal why;

    if (step->status != KVC_OK) {
        memory_translate(&why, step->status, &step->wrong);
        session_refuse(m->session, step->seq, step->status, &why);
        memory_discard(m);
    } else if (step->type == WIRE_REGION_END) {
        memory_complete(m, step->seq);
    } else {
        session_reply(m->session, step->type, step->seq, codec_empty(m->api->codec));
    }
}

static void done(struct errand *errand)
{
    struct step *step = container_of(errand, struct step, errand);
    struct memory *m = step->memory;
    struct refusal why;

    m->opening = false;
    if (m->state != MEMORY_DROPPED) {
        reply(m, step);
    } else if (m->session != NULL) {
        refuse(&why, KVC_E_CANCELLED, "the region was dropped", "region");
        session_refuse(m->session, step->seq, KVC_E_CANCELLED, &why);
    }
    free_step(step);
    memory_unuse(m);
}

static kvc_status ask(struct memory *m, struct step *step, struct refusal *why)
{
    if (errands_count(errands_of(m)) >= ERRANDS_MAX) {
        free_step(step);
        return refuse(why, KVC_E_BUSY, "the GPU's driver does not come to it", "region");
    }
    step->errand.work = work;
    step->errand.done = done;
    step->memory = m;
    m->opening = true;
    m->uses++;
    errands_run(errands_of(m), &step->errand);
    return KVC_OK;
}

static kvc_status lend(struct memory *m)
{
    const struct session *s = m->session;
    const struct device_lender lender = {
        .pid = process_pid(s->process),
        .start_time = process_start_time(s->process),
    };

    return region_lend(m->region, m->api->config.device, errands_of(m), s->gpu, &lender);
}

/* What came is closed when the request is over, so that the errand has its own. */
static kvc_status take_pieces(struct step *step, const struct request *request, struct refusal *why)
{
    const struct msg_region_part *p = &request->region_part;
    uint32_t fd = 0, handle = 0;

    for (uint32_t i = 0; i < p->kinds.len; i++) {
        struct device_piece *piece = &step->pieces[step->n++];

        *piece = (struct device_piece){
            .kind = (enum device_memory)p->kinds.data[i],
            .fd = -1,
            .bytes = p->piece_bytes.values[i],
            .offset = p->piece_offsets.n > 0 ? p->piece_offsets.values[i] : 0,
        };
        if (piece->kind == DEVICE_MEMORY_CUDA_HANDLE) {
            memcpy(piece->handle, p->handles.data + (size_t)handle++ * DEVICE_HANDLE_BYTES,
                   DEVICE_HANDLE_BYTES);
            continue;
        }
        if (piece->offset != 0)
            return refuse(why, KVC_E_INVALID, "a descriptor is mapped from its start",
                          "piece_offsets[%u]", i);
        piece->fd = fd_dup(request->fds[fd++]);
        if (piece->fd < 0)
            return refuse(why, KVC_E_NO_FDS, "", "fds[%u]", i);
    }
    return KVC_OK;
}

kvc_status memory_gpu_part(struct memory *m, const struct request *request, struct refusal *why)
{
    struct step *step = NULL;
    kvc_status status = KVC_OK;

    if (request->region_part.kinds.len > KVC_WIRE_FDS_MAX)
        status = refuse(why, KVC_E_LIMIT, "more pieces than a packet may bring", "kinds");
    if (status == KVC_OK && region_loan(m->region) == NULL && lend(m) != KVC_OK)
        status = refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    if (status == KVC_OK)
        step = mem_zalloc(sizeof(*step));
    if (status == KVC_OK && step == NULL)
        status = refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    if (step != NULL) {
        step->type = WIRE_REGION_PART;
        step->seq = request->seq;
        step->closer = m->api->hub.closer;
        step->source.user = m->session->user;
        step->source.process = process_pid(m->session->process);
        status = take_pieces(step, request, why);
        if (status == KVC_OK)
            status = ask(m, step, why);
        else
            free_step(step);
    }
    if (status != KVC_OK)
        memory_discard(m);
    return status;
}

kvc_status memory_gpu_end(struct memory *m, uint32_t seq, struct refusal *why)
{
    struct step *step = mem_zalloc(sizeof(*step));
    kvc_status status = KVC_E_NO_MEMORY;

    if (step != NULL) {
        step->type = WIRE_REGION_END;
        step->seq = seq;
        status = ask(m, step, why);
    } else {
        refuse(why, status, "", "%s", "");
    }
    if (status != KVC_OK)
        memory_discard(m);
    return status;
}
