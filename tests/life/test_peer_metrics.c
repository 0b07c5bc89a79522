// Figures of what comes from peers, as metrics, at both ends.
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/exposition.h"
#include "tests/lib/http.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define BLOCK_BYTES (4096 + 1000 + 8192) // of an engine, without padding

static struct http answer;

START_TEST(F26_what_peers_bring_is_counted_at_both_ends)
{
    const char *const args[] = {"--metrics", "127.0.0.1:0", NULL};
    struct engine here, there;
    struct pair p;

    pair_open(&p, 2, args);
    engine_open(&there, daemon_socket(p.daemons[0]));
    engine_put(&there, 1, 8);
    engine_open_with_peers(&here, daemon_socket(p.daemons[1]), wait_patient_ms(ENGINE_MS));
    engine_verify_all(&here, 1, 8);
    http_get(http_port(2), "/metrics", &answer);
    exposition_check(answer.body);
    ck_assert(http_value(&answer, "kvcached_fetches_total") == 1);
    ck_assert(http_value(&answer, "kvcached_missed_fetches_total") == 0);
    ck_assert(http_value(&answer, "kvcached_fetched_blocks_total") == 8);
    ck_assert(http_value(&answer, "kvcached_fetched_batches_total{view=\"full\"}") == 1);
    ck_assert(http_value(&answer, "kvcached_fetched_batches_total{view=\"small\"}") == 0);
    ck_assert(http_value(&answer, "kvcached_peer_registrations_total") > 0);
    ck_assert(http_value(&answer, "kvcached_dropped_peer_messages_total") == 0);
    ck_assert(http_value(&answer, "kvcached_slow_peer_lanes_total") == 0);
    ck_assert(http_value(&answer, "kvcached_fetch_duration_seconds_count") == 1);
    ck_assert(http_value(&answer, "kvcached_fetched_wire_bytes_total") >= 8 * BLOCK_BYTES);
    ck_assert(http_value(&answer, "kvcached_path_bytes_total{path=\"peer_to_host\"}") +
                  http_value(&answer, "kvcached_path_bytes_total{path=\"peer_to_gpu\"}") ==
              8 * BLOCK_BYTES);
    ck_assert(http_value(&answer, "kvcached_path_bytes_total{path=\"worker_to_host\"}") == 0);
    http_get(http_port(1), "/metrics", &answer);
    exposition_check(answer.body);
    ck_assert(http_value(&answer, "kvcached_served_blocks_total") == 8);
    ck_assert(http_value(&answer, "kvcached_path_bytes_total{path=\"gpu_to_peer\"}") ==
              8 * BLOCK_BYTES);
    ck_assert(http_value(&answer, "kvcached_path_bytes_total{path=\"gpu_to_worker\"}") == 0);
    engine_close(&here);
    engine_close(&there);
    pair_close(&p);
}
END_TEST

CHECK_MAIN("life/peer_metrics", CHECK_LIFE_S, F26_what_peers_bring_is_counted_at_both_ends)
