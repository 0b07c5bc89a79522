// What becomes of blocks, as who follows sees it: complete and in order, told when it is not, and
// never at the expense of those who work.
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/actor.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define KEYS   4096u
#define ROUNDS 60
#define MOST   128u // keys of a save
#define FLOOD  (KVC_EVENTS_KEPT + 10000u)

// A follower's picture of what is where, by the events alone.
struct picture {
    kvc_client *client;
    struct admin_watch watch;
    bool here[ADMIN_TIERS][KEYS];
    uint64_t blocks[ADMIN_TIERS];
    uint64_t told, lost, cleared, next;
};

static uint8_t names[KEYS][KVC_KEY_BYTES];

// As engine.c makes them.
static void make_names(void)
{
    for (uint32_t i = 0; i < KEYS; i++)
        kvc_key(&i, sizeof(i), names[i]);
}

static uint32_t number_of(const uint8_t *key)
{
    for (uint32_t i = 0; i < KEYS; i++)
        if (memcmp(names[i], key, KVC_KEY_BYTES) == 0)
            return i;
    ck_abort_msg("an event of a key that nobody saved");
}

static void take(struct picture *p, const struct admin_event *event)
{
    uint32_t key;

    ck_assert_msg(p->next == 0 || event->sequence == p->next, "not in order, or not complete");
    p->next = event->sequence + 1;
    p->told++;
    if (event->type == ADMIN_CLEARED) {
        memset(p->here, 0, sizeof(p->here));
        p->blocks[0] = p->blocks[1] = 0;
        p->cleared++;
        return;
    }
    key = number_of(event->key);
    ck_assert_uint_lt(event->tier, ADMIN_TIERS);
    ck_assert_msg(p->here[event->tier][key] == (event->type == ADMIN_REMOVED),
                  "key %u is told twice to be so in tier %u", key, event->tier);
    p->here[event->tier][key] = event->type == ADMIN_STORED;
    p->blocks[event->tier] += event->type == ADMIN_STORED ? 1 : UINT64_MAX;
}

// Until nothing is left to tell.
static void catch_up(struct picture *p)
{
    struct admin_watch_reply reply = {.more = true};

    while (reply.more) {
        ck_assert_int_eq(admin_watch(p->client, &p->watch, &reply), KVC_OK);
        p->lost += reply.lost;
        if (reply.lost > 0)
            p->next = 0;
        for (size_t i = 0; i < reply.n; i++)
            take(p, &reply.events[i]);
        p->watch.after = reply.after;
        p->watch.boot_epoch = reply.boot_epoch;
    }
}

static void compare(struct picture *p, struct engine *e)
{
    struct admin_stats stats = engine_stats(p->client);

    // Copies between the tiers may still come to their end.
    wait_for(
        (catch_up(p), stats = engine_stats(p->client),
         p->blocks[0] == stats.tiers[0].used_slots && p->blocks[1] == stats.tiers[1].used_slots),
        ENGINE_MS);
    for (uint32_t key = 0; key < KEYS; key += 7)
        ck_assert_uint_eq(engine_count(e, key, 1), p->here[0][key] || p->here[1][key]);
}

static bool goes_down(const struct engine *watcher)
{
    const struct admin_stats stats = engine_stats(watcher->client);

    return stats.demotions > 0 && stats.evictions > 0;
}

START_TEST(events_alone_tell_what_is_where)
{
    static struct picture p;
    struct engine e, watcher;
    uint64_t blocks;
    unsigned seed = 7;
    struct daemon *d =
        daemon_start((const char *[]){"--gpu-bytes", "8M", "--host-bytes", "8M", NULL});

    make_names();
    engine_open(&e, daemon_socket(d));
    engine_connect(&watcher, daemon_socket(d), KVC_ROLE_OPERATOR);
    p = (struct picture){.client = watcher.client};
    // Where little could be demoted meanwhile, it goes on.
    for (int round = 0; round < ROUNDS || (!goes_down(&watcher) && round < 20 * ROUNDS); round++) {
        uint32_t n = 1 + (uint32_t)rand_r(&seed) % MOST;
        uint32_t first = (uint32_t)rand_r(&seed) % (KEYS - n);

        engine_put_some(&e, first, n);
        if (round % 4 == 0 && engine_lookup(&e, first, n) > 0) {
            engine_load(&e);
            engine_release(&e);
        }
        if (round == ROUNDS / 2)
            ck_assert_int_eq(kvc_flush(e.client, e.part, &blocks), KVC_OK);
        if (round % 10 == 9)
            compare(&p, &e);
    }
    compare(&p, &e);
    ck_assert_uint_eq(p.lost, 0);
    ck_assert_uint_eq(p.cleared, 1);
    ck_assert_uint_gt(p.told, 1000);
    ck_assert(goes_down(&watcher));
    engine_close(&watcher);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

// More than the daemon keeps happens while nobody asks.
START_TEST(a_slow_reader_is_told_how_much_it_has_missed)
{
    static struct picture p;
    struct engine e, watcher;
    struct admin_watch_reply reply;
    struct admin_watch watch = {.limit = 1};
    uint64_t before;
    struct daemon *d = daemon_start(NULL);

    make_names();
    engine_open(&e, daemon_socket(d));
    engine_connect(&watcher, daemon_socket(d), KVC_ROLE_OPERATOR);
    p = (struct picture){.client = watcher.client};
    engine_put(&e, 0, 16);
    catch_up(&p);
    before = p.watch.after;
    watch.latest = true;
    do {
        for (uint32_t first = 0; first + ENGINE_BLOCKS <= KEYS; first += ENGINE_BLOCKS)
            engine_put_some(&e, first, ENGINE_BLOCKS);
        ck_assert_int_eq(admin_watch(watcher.client, &watch, &reply), KVC_OK);
    } while (reply.after < FLOOD);
    watch = (struct admin_watch){.after = before, .limit = 1};
    ck_assert_int_eq(admin_watch(watcher.client, &watch, &reply), KVC_OK);
    ck_assert_uint_gt(reply.lost, 0);
    ck_assert_uint_eq(reply.n, 1);
    ck_assert_uint_eq(reply.events[0].sequence, before + reply.lost + 1);
    engine_close(&watcher);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

// The same namespace and other keys, as another user; an operator of no trust sees no more.
static void follows_its_own(struct scene *s)
{
    struct engine *e = &s->engine, operator;
    kvc_client *const *clients[] = {&e->client, &operator.client };
    struct admin_watch_reply reply;
    const struct admin_watch watch = {0};

    actor_become_somebody_else();
    engine_open(e, s->socket);
    engine_connect(&operator, s->socket, KVC_ROLE_OPERATOR);
    engine_put(e, 2000, 3);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(admin_watch(*clients[i], &watch, &reply), KVC_OK);
        ck_assert_uint_eq(reply.n, 3);
        for (size_t k = 0; k < reply.n; k++)
            ck_assert_str_eq(reply.events[k].part->tenant, "uid:65534");
    }
    engine_close(&operator);
    engine_close(e);
}

START_TEST(nobody_sees_events_of_another_tenant)
{
    struct engine e;
    struct actor other;
    struct daemon *d;

    if (geteuid() != 0)
        TEST_SKIP("needs root, to become another user");
    ck_assert_int_eq(chmod(tmpdir_path(), 0711), 0);
    d = daemon_start((const char *[]){"--socket-mode", "0666", "--tenant-shares", "*=50%", NULL});
    engine_open(&e, daemon_socket(d));
    engine_put(&e, 0, 10);
    other = actor_start(follows_its_own, daemon_socket(d));
    actor_end(&other);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

// kvcachectl events with its output in a file.
static pid_t follow(const struct daemon *d, const char *const args[])
{
    static char path[4096];
    const char *argv[16] = {path, "--socket", daemon_socket(d), "events"};
    pid_t pid;

    daemon_program(path, sizeof(path), "kvcachectl");
    for (size_t i = 0; args[i]; i++)
        argv[i + 4] = args[i];
    pid = proc_fork();
    if (pid == 0) {
        ck_assert_ptr_nonnull(freopen(tmpdir_file("events"), "w", stdout));
        ck_assert_ptr_nonnull(freopen(tmpdir_file("errors"), "w", stderr));
        execv(path, (char *const *)argv);
        _exit(127);
    }
    return pid;
}

// Lines so far that contain a text.
static int lines(const char *text)
{
    static char line[4096];
    FILE *file = fopen(tmpdir_file("events"), "re");
    int n = 0;

    while (file && fgets(line, sizeof(line), file))
        n += strstr(line, text) != NULL;
    if (file)
        fclose(file);
    return n;
}

static json_t *first_line(void)
{
    static char line[4096];
    FILE *file = fopen(tmpdir_file("events"), "re");
    json_t *root;

    ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
    fclose(file);
    root = json_loads(line, 0, NULL);
    ck_assert_ptr_nonnull(root);
    return root;
}

START_TEST(the_tool_prints_an_object_a_line_with_the_fields_of_vllm)
{
    struct engine e;
    json_t *root;
    uint64_t blocks;
    struct daemon *d = daemon_start(NULL);

    engine_open(&e, daemon_socket(d));
    engine_put(&e, 1, 5);
    ck_assert_int_eq(kvc_flush(e.client, e.part, &blocks), KVC_OK);
    proc_wait_ok(follow(d, (const char *[]){"--json", "--after", "0", "--no-wait", NULL}),
                 ENGINE_MS);
    ck_assert_int_eq(lines("\"BlockStored\""), 5);
    ck_assert_int_eq(lines("\"AllBlocksCleared\""), 1);
    root = first_line();
    ck_assert_str_eq(json_string_value(json_object_get(root, "type")), "BlockStored");
    ck_assert_uint_eq(json_array_size(json_object_get(root, "block_hashes")), 1);
    ck_assert(json_is_null(json_object_get(root, "parent_block_hash")));
    ck_assert(json_is_null(json_object_get(root, "lora_id")));
    ck_assert_int_gt(json_integer_value(json_object_get(root, "block_size")), 0);
    ck_assert_str_eq(json_string_value(json_object_get(root, "medium")), "GPU");
    ck_assert_int_eq(json_integer_value(json_object_get(root, "sequence")), 1);
    ck_assert_int_ne(json_integer_value(json_object_get(root, "boot_epoch")), 0);
    ck_assert_ptr_null(json_object_get(root, "token_ids"));
    json_decref(root);
    // For people, one namespace, so many.
    proc_wait_ok(follow(d, (const char *[]){"--after", "0", "--count", "2", NULL}), ENGINE_MS);
    ck_assert_int_eq(lines("BlockStored       GPU"), 2);
    ck_assert_int_eq(lines(""), 2);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(the_tool_follows_over_a_restart)
{
    struct engine e;
    pid_t tool;
    struct daemon *d = daemon_start(NULL);

    tool = follow(d, (const char *[]){"--json", "--after", "0", NULL});
    engine_open(&e, daemon_socket(d));
    engine_put(&e, 1, 5);
    wait_for(lines("BlockStored") == 5, ENGINE_MS);
    daemon_restart_killed(d);
    wait_for(lines("DaemonRestarted") == 1, ENGINE_MS);
    engine_close(&e);
    engine_open(&e, daemon_socket(d));
    engine_put(&e, 1, 2);
    wait_for(lines("BlockStored") == 7, ENGINE_MS);
    ck_assert_int_eq(lines("\"sequence\":1,"), 2);
    proc_kill(tool);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_reader_that_is_stopped_or_killed_holds_nobody_up)
{
    struct engine e;
    pid_t tool;
    int fds;
    struct daemon *d = daemon_start(NULL);

    engine_open(&e, daemon_socket(d));
    fds = daemon_fds(d);
    tool = follow(d, (const char *[]){"--json", "--after", "0", NULL});
    engine_put(&e, 1, 5);
    wait_for(lines("BlockStored") == 5, ENGINE_MS);
    ck_assert_int_eq(kill(tool, SIGSTOP), 0);
    for (uint32_t first = 0; first < KEYS; first += ENGINE_BLOCKS)
        engine_put_some(&e, first, ENGINE_BLOCKS);
    proc_kill(tool);
    wait_for(daemon_fds(d) == fds, ENGINE_MS);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("life/events", CHECK_LIFE_S, events_alone_tell_what_is_where,
           a_slow_reader_is_told_how_much_it_has_missed, nobody_sees_events_of_another_tenant,
           the_tool_prints_an_object_a_line_with_the_fields_of_vllm,
           the_tool_follows_over_a_restart, a_reader_that_is_stopped_or_killed_holds_nobody_up)
