#include "tests/fuzz/rig.h"

#include <stddef.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/device/device.h"
#include "tests/fuzz/fuzz.h"

#define CLOSER_MS 10000

static void drop_line(void *arg, enum log_level level, const char *line, size_t length)
{
    (void)arg;
    (void)level;
    (void)line;
    (void)length;
}

/* An empty name lets the kernel choose an abstract one. */
static void open_listener(struct rig *rig)
{
    rig->address.sun_family = AF_UNIX;
    rig->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    FUZZ_REQUIRE(rig->listener >= 0);
    FUZZ_REQUIRE(bind(rig->listener, (struct sockaddr *)&rig->address, sizeof(sa_family_t)) == 0);
    rig->address_len = sizeof(rig->address);
    FUZZ_REQUIRE(getsockname(rig->listener, (struct sockaddr *)&rig->address, &rig->address_len) ==
                 0);
}

/* As without a word about it in the configuration. */
static const struct access open_to_all = {.doors = {{.roles = ACCESS_UNSAID}}, .n_doors = 1};

static void open_store(struct rig *rig)
{
    const int socks[ACCESS_DOORS_MAX] = {rig->listener};
    struct api_config api_config = {.loop = &rig->loop,
                                    .boot_epoch = 1,
                                    .device = &device_all_host,
                                    .lease_ms_max = KVC_LEASE_MS_MAX};
    struct store_config config = {
        .budget = {RIG_GPU_BYTES, RIG_HOST_BYTES},
        .boot_epoch = 1,
        .tenant_share = UINT32_MAX,
        .tuning.lease_ms = KVC_LEASE_MS_DEFAULT,
        .lease_ms_max = KVC_LEASE_MS_MAX,
        .tuning.save_proof_ms = KVC_SAVE_PROOF_MS,
        .tuning.promotion_ms = KVC_PROMOTION_MS,
        .tuning.clean_low = 100,
        .tuning.clean_high = 250,
        .tuning.moving_bytes_max = 2 << 20,
        .mover_ops = &mover_ops,
    };

    for (int t = 0; t < TIER_COUNT; t++) {
        struct table_tier geometry = {0};

        table_tier_geometry(config.budget[t], &geometry);
        FUZZ_REQUIRE(tier_create((enum tier_kind)t, &device_all_host, geometry.extent_bytes,
                                 geometry.extents, &rig->tiers[t]) == KVC_OK);
    }
    FUZZ_REQUIRE(mover_create(&rig->loop, rig->tiers, &rig->mover) == KVC_OK);
    FUZZ_REQUIRE(copier_create(&rig->loop, rig->tiers, NULL, &rig->copier) == KVC_OK);
    api_config.copier = rig->copier;
    FUZZ_REQUIRE(api_create(&api_config, &rig->api) == KVC_OK);
    config.mover = rig->mover;
    config.events = api_store_events(rig->api);
    FUZZ_REQUIRE(store_create(&config, &rig->store) == KVC_OK);
    api_set_access(rig->api, &open_to_all);
    FUZZ_REQUIRE(api_serve(rig->api, rig->store, rig->tiers, socks) == KVC_OK);
}

void rig_open(struct rig *rig)
{
    *rig = (struct rig){.live_allocations = mem_live_count()};
    log_set_sink(drop_line, NULL);
    /* What libuv keeps open for the process is not the rig's. */
    FUZZ_REQUIRE(uv_loop_init(&rig->loop) == 0);
    rig->fds = fd_count_open();
    open_listener(rig);
    open_store(rig);
}

/* What did not close in its time, on a machine that is busy, closes by itself, and frees what it
 * has. */
static void wait_for_closer(const struct rig *rig)
{
    for (int i = 0; i < CLOSER_MS; i++) {
        if (mem_live_count() == rig->live_allocations && fd_count_open() == rig->fds)
            return;
        usleep(1000);
    }
}

void rig_close(struct rig *rig)
{
    fault_off("*");
    api_end_connections(rig->api);
    mover_stop(rig->mover);
    while (api_connections(rig->api) > 0 || api_pieces(rig->api) > 0 ||
           mover_count(rig->mover) > 0 || copier_count(rig->copier) > 0 || api_verifies(rig->api))
        uv_run(&rig->loop, UV_RUN_ONCE);
    store_destroy(rig->store);
    api_destroy(rig->api);
    mover_destroy(rig->mover);
    copier_destroy(rig->copier);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    for (int t = 0; t < TIER_COUNT; t++)
        tier_destroy(rig->tiers[t]);
    close(rig->listener);
    wait_for_closer(rig);
    FUZZ_REQUIRE(fd_count_open() == rig->fds, "%d, at first %d", fd_count_open(), rig->fds);
    FUZZ_REQUIRE(uv_loop_close(&rig->loop) == 0);
    FUZZ_REQUIRE(mem_live_count() == rig->live_allocations, "%llu allocations are left",
                 (unsigned long long)(mem_live_count() - rig->live_allocations));
    log_set_sink(NULL, NULL);
}

int rig_connect(struct rig *rig)
{
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    FUZZ_REQUIRE(sock >= 0);
    if (connect(sock, (struct sockaddr *)&rig->address, rig->address_len) == 0)
        return sock;
    close(sock);
    return -1;
}

void rig_turn(struct rig *rig, unsigned turns)
{
    for (unsigned i = 0; i < turns; i++)
        uv_run(&rig->loop, UV_RUN_NOWAIT);
}

void rig_settle(struct rig *rig)
{
    while (mover_count(rig->mover) > 0 || copier_count(rig->copier) > 0 || api_verifies(rig->api))
        uv_run(&rig->loop, UV_RUN_ONCE);
}
