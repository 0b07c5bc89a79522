// What a worker says of its GPU memory is checked, and refused with a sentence; the session lives
// on.
//
//   test_refused_daemon_gpu [word]    only the tests whose name has the word
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/client.h"
#include "client/cuda.h"
#include "tests/gpu/scene.h"

#define BLOCKS             32u
#define SLICE_BLOCKS_BYTES ((uint64_t)BLOCKS * SCENE_SLICE_BYTES)

// One piece, in which slice s begins at `first` and s times what a slice's blocks take.
static uint64_t begin(struct worker *w, uint64_t first)
{
    uint32_t pieces[SCENE_SLICES] = {0};
    uint64_t offsets[SCENE_SLICES], strides[SCENE_SLICES], region = 0;
    const struct codec_region shape = {
        .part = w->client->parts[w->part - 1].id,
        .blocks = BLOCKS,
        .pieces = 1,
        .n_slices = SCENE_SLICES,
        .slice_pieces = pieces,
        .slice_offsets = offsets,
        .slice_strides = strides,
    };
    struct call call = {.type = WIRE_REGION_BEGIN};
    struct wire_packet packet;
    kvc_status status;

    for (uint32_t s = 0; s < SCENE_SLICES; s++) {
        offsets[s] = first + s * SLICE_BLOCKS_BYTES;
        strides[s] = SCENE_SLICE_BYTES;
    }
    status = codec_put_region_begin(&shape, w->client->rpc.body, &call.len);
    KVC(w, client_call(w->client, &call, status, SCENE_MS, &packet));
    CHECK(codec_get_region_reply(&w->client->scratch, &packet, &region));
    return region;
}

// fd -1: a handle.
static kvc_status bring(struct worker *w, uint64_t region, uint64_t bytes, uint64_t offset, int fd,
                        const uint8_t *handle)
{
    const uint8_t kind = fd >= 0 ? LEND_CUDA_FD : LEND_CUDA_HANDLE;
    const struct codec_pieces pieces = {.n = 1,
                                        .n_handles = fd < 0,
                                        .kinds = &kind,
                                        .bytes = &bytes,
                                        .offsets = &offset,
                                        .handles = handle};
    struct wire_packet reply;
    size_t len = 0;

    CHECK(codec_put_region_part(region, &pieces, w->client->rpc.body, &len) == KVC_OK);
    return rpc_call_fds(&w->client->rpc, WIRE_REGION_PART, w->client->rpc.body, len, &fd, fd >= 0,
                        rpc_deadline_us(SCENE_MS), &reply);
}

static kvc_status end(struct worker *w, uint64_t region)
{
    struct call call = {.type = WIRE_REGION_END};
    struct wire_packet packet;
    kvc_status status = codec_put_region(region, w->client->rpc.body, &call.len);

    return client_call(w->client, &call, status, SCENE_MS, &packet);
}

static void open_worker(struct worker *w, const struct scene_daemon *d, bool mapped)
{
    worker_open_with(
        w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = BLOCKS, .mapped = mapped});
}

static void play_handles(const struct scene_daemon *d, void *arg)
{
    const uint32_t *first_key = arg;
    uint8_t handle[CUDA_IPC_BYTES], garbage[CUDA_IPC_BYTES];
    struct worker w;
    struct cuda_piece piece;
    const char *why;
    uint64_t region;
    int fd;

    open_worker(&w, d, false);
    CHECK(cuda_find_piece(w.client->cuda, w.memory, &piece, &why) == KVC_OK && piece.legacy);
    CHECK(cuda_export(w.client->cuda, piece.at, true, &fd, handle) == KVC_OK && fd < 0);
    memset(garbage, 0x77, sizeof(garbage));

    CHECK(bring(&w, begin(&w, 0), piece.bytes + 1, 0, -1, handle) == KVC_E_INVALID);
    CHECK(bring(&w, begin(&w, 0), piece.bytes, 512, -1, handle) == KVC_E_INVALID);
    CHECK(bring(&w, begin(&w, 0), 512, UINT64_MAX - 100, -1, handle) == KVC_E_INVALID);
    CHECK(bring(&w, begin(&w, 0), 0, 0, -1, handle) == KVC_E_INVALID);
    CHECK(bring(&w, begin(&w, 0), piece.bytes, 0, -1, garbage) == KVC_E_MAP);

    // Slices that end behind their piece, by a block or by far.
    region = begin(&w, SCENE_SLICE_BYTES);
    KVC(&w, bring(&w, region, SCENE_SLICES * SLICE_BLOCKS_BYTES, 0, -1, handle));
    CHECK(end(&w, region) == KVC_E_INVALID);
    region = begin(&w, UINT64_MAX - SCENE_SLICES * SLICE_BLOCKS_BYTES);
    KVC(&w, bring(&w, region, piece.bytes, 0, -1, handle));
    CHECK(end(&w, region) == KVC_E_INVALID);

    // Rightly, with the piece somewhere inside of the allocation.
    region = begin(&w, 0);
    KVC(&w, bring(&w, region, SCENE_SLICES * SLICE_BLOCKS_BYTES, 0, -1, handle));
    KVC(&w, end(&w, region));
    worker_put(&w, *first_key, BLOCKS);
    worker_verify(&w, *first_key, BLOCKS);
    worker_close(&w);
}

static void play_descriptors(const struct scene_daemon *d, void *arg)
{
    const uint32_t *first_key = arg;
    uint8_t handle[CUDA_IPC_BYTES];
    struct worker w;
    struct cuda_piece piece;
    const char *why;
    uint64_t region;
    int fd, plain = memfd_create("plain", MFD_CLOEXEC);

    open_worker(&w, d, true);
    CHECK(ftruncate(plain, 2 << 20) == 0);
    CHECK(cuda_find_piece(w.client->cuda, w.memory, &piece, &why) == KVC_OK && !piece.legacy);
    CHECK(cuda_export(w.client->cuda, piece.at, false, &fd, handle) == KVC_OK && fd >= 0);

    CHECK(bring(&w, begin(&w, 0), piece.bytes, 0, plain, NULL) == KVC_E_MAP);
    CHECK(bring(&w, begin(&w, 0), piece.bytes, 512, fd, NULL) == KVC_E_INVALID);
    // Larger than it is: nobody's memory may lie behind it.
    region = begin(&w, 0);
    KVC(&w, bring(&w, region, 4 * piece.bytes, 0, fd, NULL));
    CHECK(end(&w, region) == KVC_E_MAP);
    // As large as it is, which is less than the slices need.
    region = begin(&w, 0);
    KVC(&w, bring(&w, region, piece.bytes, 0, fd, NULL));
    CHECK(end(&w, region) == KVC_E_INVALID);
    close(fd);
    close(plain);
    worker_put(&w, *first_key, BLOCKS);
    worker_verify(&w, *first_key, BLOCKS);
    worker_close(&w);
}

static void refuse(scene_play *play)
{
    struct scene_daemon d;
    struct scene_baseline before;
    uint32_t first_key = 1000;

    scene_daemon_start(&d, NULL);
    scene_populated(&d);
    scene_run(play, &d, &first_key);
    scene_settled(&d);
    before = scene_baseline(&d);
    first_key = 2000;
    scene_run(play, &d, &first_key);
    scene_returns_to(&d, &before);
    scene_daemon_stop(&d);
}

static void handles(void)
{
    refuse(play_handles);
}

static void descriptors(void)
{
    refuse(play_descriptors);
}

static const struct scene_test tests[] = {
    {"what is said of handles is checked", handles, 0},
    {"what is said of descriptors is checked", descriptors, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
