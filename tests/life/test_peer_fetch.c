/* Blocks that miss here and hit at a peer: fetched, verified, leased. */
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS 5000

static const char *const modes[] = {"auto", "exact", "views"};

static void open_two(struct pair *p, const char *mode)
{
    const char *const args[] = {"--transfer", mode, NULL};

    pair_open(p, 2, args);
}

START_TEST(T7_blocks_come_from_a_peer)
{
    struct pair p;
    struct engine a, b;

    open_two(&p, modes[_i]);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), MS);
    engine_put(&a, 100, 200);
    engine_verify_all(&b, 100, 200);
    /* They are blocks of this daemon now: no peer is asked again. */
    engine_verify(&b, 100, 200);
    engine_close(&a);
    engine_close(&b);
    pair_close(&p);
}
END_TEST

CHECK_MAIN_LOOPS("peer/fetch", CHECK_LIFE_S, {T7_blocks_come_from_a_peer, 0, 2})
