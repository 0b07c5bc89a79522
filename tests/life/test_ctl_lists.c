/* kvcachectl blocks, layouts, leases: what is listed, page by page, and to whom. */
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/actor.h"
#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define N 300u

static json_t *list(const char *socket, const char *what, const char *const more[])
{
    const char *args[12] = {what, "--json", "--socket", socket};

    for (size_t i = 0; more && more[i]; i++)
        args[4 + i] = more[i];
    ck_assert_msg(ctl_run(args) == 0, "%s", ctl_err());
    return ctl_json();
}
#define LIST(socket, what, ...) list(socket, what, (const char *const[]){__VA_ARGS__, NULL})

static size_t count(json_t *root)
{
    const json_t *rows = json_is_array(root) ? root : json_object_get(root, "blocks");
    size_t n = json_array_size(rows);

    json_decref(root);
    return n;
}

START_TEST(blocks_come_page_by_page_each_once)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    const char *socket = daemon_socket(d);
    json_t *seen = json_object(), *page, *row;
    char after[24] = "0";
    bool more = true;
    size_t i;

    talk_publish(&w, 0, N);
    while (more) {
        page = LIST(socket, "blocks", "--limit", "70", "--after", after);
        json_array_foreach(json_object_get(page, "blocks"), i, row)
        {
            ck_assert_ptr_null(json_object_get(seen, ctl_text(row, "key")));
            json_object_set_new(seen, ctl_text(row, "key"), json_true());
            ck_assert_str_eq(ctl_text(row, "state"), "published");
            ck_assert_int_eq(ctl_number(row, "slot_bytes"), 8192);
        }
        ck_assert_uint_le(i, 70);
        snprintf(after, sizeof(after), "%lld", (long long)ctl_number(page, "after"));
        more = json_is_true(json_object_get(page, "more"));
        json_decref(page);
    }
    ck_assert_uint_eq(json_object_size(seen), N);
    json_decref(seen);
    ck_assert_int_eq(CTL_RUN("blocks", "--socket", socket), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "there may be more: --after 50"));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(blocks_of_a_namespace_and_of_a_prefix)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    struct talk_worker a = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    struct talk_worker b = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xb8);
    char key[2 * KVC_KEY_BYTES + 1];
    json_t *root;

    talk_publish(&a, 0, 20);
    talk_publish(&b, 100, 10);
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--limit", "1000")), 30);
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--namespace", "a7a7")), 20);
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--namespace", "b8")), 10);
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--prefix", "")), 30);
    root = LIST(socket, "blocks", "--namespace", "b8", "--limit", "1");
    snprintf(key, sizeof(key), "%s",
             ctl_text(json_array_get(json_object_get(root, "blocks"), 0), "key"));
    json_decref(root);
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--prefix", key)), 1);
    for (char *at = key; *at; at++)
        *at = *at >= 'a' ? (char)(*at - 'a' + 'A') : *at;
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--prefix", key)), 1);
    ck_assert_uint_eq(count(LIST(socket, "blocks", "--prefix", key, "--namespace", "a7")), 0);
    ck_assert_uint_eq(count(LIST(socket, "layouts", NULL)), 2);

    ck_assert_int_eq(CTL_RUN("blocks", "--prefix", "xyz", "--socket", socket), 1);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "--prefix: not up to 32"));
    ck_assert_int_eq(CTL_RUN("blocks", "--namespace", "c9", "--socket", socket), 1);
    ck_assert_int_eq(CTL_RUN("blocks", "--limit", "0", "--socket", socket), 2);
    ck_assert_int_eq(CTL_RUN("blocks", "--after", "next", "--socket", socket), 2);
    ck_assert_int_eq(CTL_RUN("blocks", "--after", "18446744073709551615", "--socket", socket), 0);
    ck_assert_str_eq(ctl_out(), "no blocks\n");
    talk_worker_close(&a);
    talk_worker_close(&b);
    daemon_stop(d);
}
END_TEST

START_TEST(leases_say_who_holds_what)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    struct talk_worker w = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    json_t *root, *row;

    talk_publish(&w, 0, 8);
    talk_free(talk_lookup(&w, 0, 5));
    root = LIST(socket, "leases", NULL);
    ck_assert_uint_eq(json_array_size(root), 1);
    row = json_array_get(root, 0);
    ck_assert_int_eq(ctl_number(row, "pid"), (int)getpid());
    ck_assert_int_eq(ctl_number(row, "blocks"), 5);
    ck_assert_int_gt(ctl_number(row, "ends_ms"), 0);
    ck_assert_int_le(ctl_number(row, "ends_ms"), KVC_LEASE_MS_DEFAULT);
    json_decref(root);
    daemon_clock_advance(d, KVC_LEASE_MS_DEFAULT * 1000ull);
    ck_assert_uint_eq(count(LIST(socket, "leases", NULL)), 0);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

/* What matches nothing costs a page no more than what it may look at: it comes back empty. */
START_TEST(a_page_that_finds_nothing_comes_soon)
{
    struct daemon *d = daemon_start((const char *[]){"--gpu-bytes", "32M", NULL});
    struct talk_worker w = talk_worker_with_slots(daemon_socket(d), KVC_SLOT_BYTES_MIN);
    Kvcache__List ask = KVCACHE__LIST__INIT;
    uint32_t pages = 0, empty = 0;

    for (uint32_t i = 0; i < 3000; i += 1000)
        talk_publish(&w, i, 1000);
    ask.what = "blocks";
    ask.key_prefix = "ffffffffffffffffffffffffffffffff";
    for (bool more = true; more; pages++) {
        Kvcache__ListReply *reply =
            talk_ask(w.sock, WIRE_LIST, &ask.base, &kvcache__list_reply__descriptor);

        ck_assert_uint_le(reply->after - ask.after, KVC_KEYS_MAX);
        empty += reply->n_rows == 0;
        ask.after = reply->after;
        more = reply->more;
        talk_free(reply);
    }
    ck_assert_uint_eq(pages, empty);
    ck_assert_uint_eq(pages, 3);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

/* A page of them has as many rows as may be looked for at once: two of these. */
START_TEST(lists_of_which_each_row_takes_long_come_in_short_pages)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    Kvcache__List ask = KVCACHE__LIST__INIT;
    Kvcache__ListReply *page;
    struct talk_worker w[7];

    for (uint8_t i = 0; i < 7; i++)
        w[i] = talk_worker(socket, KVCACHE__ROLE__ROLE_WORKER, i + 1);
    ask.what = "namespaces";
    page = talk_ask(w[0].sock, WIRE_LIST, &ask.base, &kvcache__list_reply__descriptor);
    ck_assert_uint_eq(page->n_rows, 2);
    ck_assert(page->more);
    talk_free(page);
    ck_assert_uint_eq(count(LIST(socket, "namespaces", NULL)), 7);
    ck_assert_uint_eq(count(LIST(socket, "clients", NULL)), 8);
    ck_assert_uint_eq(count(LIST(socket, "layouts", NULL)), 7);
    for (int i = 0; i < 7; i++)
        talk_worker_close(&w[i]);
    daemon_stop(d);
}
END_TEST

static void refused(int sock, const Kvcache__List *ask, const char *field)
{
    talk_expect_error(sock, talk_send(sock, WIRE_LIST, &ask->base), KVC_E_INVALID, field);
}

START_TEST(lists_take_no_nonsense)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    Kvcache__List ask = KVCACHE__LIST__INIT;

    ask.what = "clients";
    ask.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    refused(sock, &ask, "namespace_digest");
    ask.what = "blocks";
    ask.namespace_digest.len = 31;
    refused(sock, &ask, "namespace_digest");
    ask.namespace_digest.len = 0;
    ask.key_prefix = "000000000000000000000000000000000";
    refused(sock, &ask, "key_prefix");
    ask.key_prefix = "0g";
    refused(sock, &ask, "key_prefix");
    ask.key_prefix = "00";
    ask.what = "leases";
    refused(sock, &ask, "key_prefix");
    /* Cursors that no page has ended with. */
    for (int i = 0; i < 3; i++) {
        static char *const lists[] = {"blocks", "layouts", "leases"};

        ask.what = lists[i];
        ask.key_prefix = "";
        for (int bit = 0; bit < 64; bit++) {
            ask.after = 1ull << bit;
            talk_free(talk_ask(sock, WIRE_LIST, &ask.base, &kvcache__list_reply__descriptor));
        }
    }
    talk_ping(sock);
    close(sock);
    daemon_stop(d);
}
END_TEST

/* The same namespace and keys as the other's. */
static void sees_only_its_own(struct scene *s)
{
    static const char *const lists[] = {"blocks", "layouts", "leases", "namespaces", "clients"};
    const kvc_options options = {
        .socket = s->socket, .role = KVC_ROLE_OPERATOR, .connect_ms = wait_patient_ms(5000)};
    kvc_client *client;

    actor_become_somebody_else();
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct admin_list page = {.more = true};
        uint64_t after = 0;
        size_t n = 0;

        while (page.more) {
            ck_assert_int_eq(admin_list(client, lists[i], after, 0, &page), KVC_OK);
            after = page.after;
            n += page.n_rows;
        }
        ck_assert_msg(n == (strcmp(lists[i], "clients") == 0), "%zu %s", n, lists[i]);
    }
    kvc_close(client);
}

START_TEST(F43_lists_show_nothing_of_another_tenant)
{
    struct daemon *d;
    struct talk_worker w;
    struct actor other;

    if (geteuid() != 0)
        TEST_SKIP("needs root, to become another user");
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    d = daemon_start((const char *[]){"--socket-mode", "0666", NULL});
    w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    talk_publish(&w, 0, 8);
    talk_free(talk_lookup(&w, 0, 8));
    other = actor_start(sees_only_its_own, daemon_socket(d));
    actor_end(&other);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("ctl/lists", CHECK_LIFE_S, blocks_come_page_by_page_each_once,
           blocks_of_a_namespace_and_of_a_prefix, leases_say_who_holds_what,
           a_page_that_finds_nothing_comes_soon,
           lists_of_which_each_row_takes_long_come_in_short_pages, lists_take_no_nonsense,
           F43_lists_show_nothing_of_another_tenant)
