/*
 * Peers of two tenants: one daemon shares the blocks of tenant "a" with the second and those of
 * tenant "b" with the third. What another tenant has is what nobody has.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/port.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define MS     8000
#define BLOCKS 20u
#define MINE   100u  /* keys: of tenant a, or of the daemon that is its peer */
#define OTHERS 5000u /* of tenant b, or of its peer */
#define NOBODY 9000u

/* The first daemon has both tenants, each with a socket; the others are one's each. */
static struct daemon *shared, *single[2];
static char sockets[2][512];
static struct engine tenant[2]; /* workers at the shared daemon */
static struct engine peer[2];   /* at the others */

static bool is_open(const struct daemon *d, uint32_t i)
{
    struct pair_row row;

    return pair_look(d, "serves", i, &row) && strcmp(row.state, "open") == 0 &&
           pair_look(d, "asks", i, &row) && strcmp(row.state, "open") == 0;
}

static void begin(void)
{
    char list[128], listen[3][32], names[2][560];
    const int ports[3] = {port_take(), port_take(), port_take()};

    for (int i = 0; i < 3; i++)
        snprintf(listen[i], sizeof(listen[i]), "127.0.0.%d:%d", i + 1, ports[i]);
    snprintf(list, sizeof(list), "%s tenant=a, %s tenant=b", listen[1], listen[2]);
    for (int i = 0; i < 2; i++) {
        snprintf(sockets[i], sizeof(sockets[i]), "%s", tmpdir_file(i == 0 ? "sa" : "sb"));
        snprintf(names[i], sizeof(names[i]), "%.500s tenant=%c roles=worker", sockets[i], 'a' + i);
    }
    shared = daemon_start((const char *const[]){"--socket", names[0], "--socket", names[1],
                                                "--peers", list, "--peer-listen", listen[0],
                                                "--tenant-shares", "*=50%", NULL});
    for (int i = 0; i < 2; i++)
        single[i] = daemon_start(
            (const char *const[]){"--peers", listen[0], "--peer-listen", listen[i + 1], NULL});
    for (uint32_t i = 0; i < 2; i++) {
        wait_for(is_open(shared, i) && is_open(single[i], 0), MS);
        engine_open_with_peers(&tenant[i], sockets[i], wait_patient_ms(MS));
        engine_open_with_peers(&peer[i], daemon_socket(single[i]), wait_patient_ms(MS));
    }
}

static void end(void)
{
    struct daemon *const all[] = {shared, single[0], single[1]};

    for (int i = 0; i < 2; i++) {
        engine_close(&tenant[i]);
        engine_close(&peer[i]);
    }
    for (int i = 0; i < 3; i++) {
        pair_at_rest(all[i]);
        daemon_stop(all[i]);
    }
}

/* How the shared daemon answers a peer. */
static void expect_miss(struct engine *e, uint32_t first)
{
    ck_assert_uint_eq(engine_lookup_all(e, first, BLOCKS), 0);
    ck_assert_uint_eq(e->lease.id, 0);
}

START_TEST(T12_a_peer_gets_what_its_tenant_has_and_sees_no_other)
{
    begin();
    engine_put(&tenant[0], MINE, BLOCKS);
    engine_put(&tenant[1], OTHERS, BLOCKS);
    for (int i = 0; i < 2; i++) {
        expect_miss(&peer[i], i == 0 ? OTHERS : MINE);
        expect_miss(&peer[i], NOBODY);
        ck_assert_uint_eq(pair_row(single[i], "serves", 0).batches, 0);
        engine_verify_all(&peer[i], i == 0 ? MINE : OTHERS, BLOCKS);
    }
    /* A refusal would be counted, where it is made. */
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_uint_eq(pair_row(shared, "asks", i).dropped, 0);
    end();
}
END_TEST

START_TEST(T12_a_tenant_gets_what_its_peer_has_and_no_other)
{
    begin();
    engine_put(&peer[0], MINE, BLOCKS);
    engine_put(&peer[1], OTHERS, BLOCKS);
    for (int i = 0; i < 2; i++) {
        expect_miss(&tenant[i], i == 0 ? OTHERS : MINE);
        engine_verify_all(&tenant[i], i == 0 ? MINE : OTHERS, BLOCKS);
    }
    end();
}
END_TEST

START_TEST(each_peer_is_listed_with_its_tenant)
{
    const json_t *row;
    json_t *rows;
    char *text;

    begin();
    text = pair_ctl(shared, true);
    rows = json_loads(text, 0, NULL);
    ck_assert_uint_eq(json_array_size(rows), 4);
    /* Hosts 127.0.0.2 and 127.0.0.3 are of tenants a and b, whoever asks. */
    for (size_t i = 0; (row = json_array_get(rows, i)); i++) {
        const char *peer = json_string_value(json_object_get(row, "peer"));
        const char *of = json_string_value(json_object_get(row, "tenant"));

        ck_assert_str_eq(of, strncmp(peer, "127.0.0.2:", 10) == 0 ? "a" : "b");
    }
    json_decref(rows);
    free(text);
    text = pair_ctl(shared, false);
    ck_assert_ptr_nonnull(strstr(text, "TENANT"));
    free(text);
    end();
}
END_TEST

START_TEST(a_tenant_without_peers_asks_nobody)
{
    struct engine e;

    begin();
    engine_put(&peer[0], MINE, BLOCKS);
    engine_open_with_peers(&e, daemon_socket(shared), wait_patient_ms(MS));
    ck_assert_int_eq(engine_try_lookup(&e, MINE, BLOCKS), KVC_OK);
    ck_assert_uint_eq(e.lease.remote, 0);
    engine_close(&e);
    end();
}
END_TEST

CHECK_MAIN("peer/tenants", CHECK_LIFE_S, T12_a_peer_gets_what_its_tenant_has_and_sees_no_other,
           T12_a_tenant_gets_what_its_peer_has_and_no_other, each_peer_is_listed_with_its_tenant,
           a_tenant_without_peers_asks_nobody)
