/*
 * What kvcachectl prints with --json is what --help --json says, which is what the manual says:
 * every field that comes is named there with its type, and every named field comes.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define FIELDS_MAX 256

struct named {
    char path[96], type[24];
    bool came;
};

static struct named fields[FIELDS_MAX];
static int n_fields;

/* "  PATH  TYPE  what", with at least two spaces between. */
static void read_help(const char *text)
{
    n_fields = 0;
    for (const char *line = strchr(text, '\n'); line; line = strchr(line + 1, '\n')) {
        struct named *f = &fields[n_fields];
        const char *type, *end;

        if (strncmp(line, "\n  ", 3) != 0 || sscanf(line + 3, "%95s", f->path) != 1)
            continue;
        ck_assert_int_lt(++n_fields, FIELDS_MAX);
        type = line + 3 + strlen(f->path);
        type += strspn(type, " ");
        end = strstr(type, "  ");
        ck_assert_msg(end != NULL, "no description of %s", f->path);
        snprintf(f->type, sizeof(f->type), "%.*s", (int)(end - type), type);
        end += strspn(end, " ");
        f->came = strncmp(end, "only", 4) == 0; /* not always */
    }
    ck_assert_int_gt(n_fields, 0);
}

static bool is_of(const char *type, const json_t *value)
{
    if (json_is_null(value))
        return strstr(type, "or null") != NULL;
    if (json_is_integer(value))
        return strncmp(type, "integer", 7) == 0 || strcmp(type, "number") == 0;
    if (json_is_string(value))
        return strncmp(type, "string", 6) == 0;
    return strcmp(type, json_is_boolean(value) ? "boolean" : "number") == 0;
}

/* A * in the name is any word. */
static bool matches(const char *name, const char *path)
{
    while (*name && (*name == *path || *name == '*')) {
        if (*name++ == '*')
            path += strcspn(path, ".");
        else
            path++;
    }
    return *name == *path;
}

static void expect_named(const char *path, const json_t *value)
{
    for (int i = 0; i < n_fields; i++) {
        if (!matches(fields[i].path, path))
            continue;
        ck_assert_msg(is_of(fields[i].type, value), "%s is no %s", path, fields[i].type);
        fields[i].came = true;
        return;
    }
    ck_abort_msg("%s is not named", path);
}

/* There is nothing of which the fields could come. */
static void excuse(const char *path)
{
    for (int i = 0; i < n_fields; i++)
        if (strncmp(fields[i].path, path, strlen(path)) == 0)
            fields[i].came = true;
}

static void walk(const char *path, const json_t *value)
{
    char inner[128];
    const char *name;
    json_t *element;
    size_t i;

    if (json_is_array(value)) {
        snprintf(inner, sizeof(inner), "%s%s", path, *path ? "[]" : "");
        json_array_foreach(value, i, element) walk(inner, element);
        if (json_array_size(value) == 0)
            excuse(inner);
        return;
    }
    if (!json_is_object(value)) {
        expect_named(path, value);
        return;
    }
    json_object_foreach((json_t *)value, name, element)
    {
        snprintf(inner, sizeof(inner), "%s%s%s", path, *path ? "." : "", name);
        walk(inner, element);
    }
}

/* Of a command that ends with 0: what it prints is what its help says. */
static void expect_documented(const char *const args[])
{
    json_t *root;

    ck_assert_int_eq(CTL_RUN(args[0], "--help", "--json"), 0);
    read_help(ctl_out());
    ck_assert_msg(ctl_run(args) == 0, "%s: %s", args[0], ctl_err());
    root = ctl_json();
    walk("", root);
    json_decref(root);
    for (int i = 0; i < n_fields; i++)
        ck_assert_msg(fields[i].came, "%s: no %s came", args[0], fields[i].path);
}
#define EXPECT(...) expect_documented((const char *const[]){__VA_ARGS__, NULL})

/* A daemon with something of everything: blocks, a lease, slots in quarantine. */
struct scene {
    struct daemon *d;
    struct talk_worker w, gone;
    Kvcache__SaveReply *save;
};

static void make(struct scene *s)
{
    s->d = daemon_start(NULL);
    s->gone = talk_worker(daemon_socket(s->d), KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    s->save = talk_save(&s->gone, 100, 3, false);
    close(s->gone.sock);
    s->w = talk_worker(daemon_socket(s->d), KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    talk_publish(&s->w, 0, 8);
    talk_free(talk_lookup(&s->w, 0, 8));
}

static void write_key(uint32_t number, char key[2 * KVC_KEY_BYTES + 1])
{
    const uint8_t *bytes = talk_keys(number, 1).data;

    for (int i = 0; i < (int)KVC_KEY_BYTES; i++)
        snprintf(key + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

static void end(struct scene *s)
{
    talk_prove(&s->gone, s->save, 0);
    talk_free(s->save);
    talk_worker_close(&s->w);
    daemon_stop(s->d);
}

START_TEST(fields_of_figures_and_lists)
{
    static const char *const lists[] = {"status", "clients",   "namespaces", "layouts",
                                        "leases", "blocks",    "extents",    "peers",
                                        "config", "log-level", "ping"};
    struct scene s;

    make(&s);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        EXPECT(lists[i], "--json", "--socket", daemon_socket(s.d));
    EXPECT("top", "--count", "1", "--json", "--socket", daemon_socket(s.d));
    end(&s);
}
END_TEST

/* Lines of objects. */
START_TEST(fields_of_events)
{
    struct scene s;
    char *lines, *at, *end_of_line;

    make(&s);
    ck_assert_int_eq(CTL_RUN("events", "--help", "--json"), 0);
    read_help(ctl_out());
    ck_assert_int_eq(
        CTL_RUN("events", "--after", "0", "--no-wait", "--json", "--socket", daemon_socket(s.d)),
        0);
    lines = at = strdup(ctl_out());
    for (; (end_of_line = strchr(at, '\n')); at = end_of_line + 1) {
        json_t *object;

        *end_of_line = '\0';
        object = json_loads(at, 0, NULL);
        ck_assert_ptr_nonnull(object);
        walk("", object);
        json_decref(object);
    }
    ck_assert_ptr_ne(at, lines);
    free(lines);
    end(&s);
}
END_TEST

START_TEST(fields_of_what_commands_have_done)
{
    struct scene s;

    char key[2 * KVC_KEY_BYTES + 1];

    make(&s);
    const char *socket = daemon_socket(s.d);
    write_key(0, key);
    EXPECT("pin", "--namespace", "a7", "--json", "--socket", socket, key);
    EXPECT("unpin", "--namespace", "a7", "--json", "--socket", socket);
    EXPECT("quota", "--namespace", "a7", "--gpu", "4M", "--json", "--socket", socket);
    EXPECT("verify", "--json", "--socket", socket);
    EXPECT("drain", "--no-wait", "--json", "--socket", socket);
    EXPECT("drain", "--undo", "--json", "--socket", socket);
    EXPECT("flush", "--all", "--json", "--socket", socket);
    EXPECT("version", "--json");
    ck_assert_int_eq(CTL_RUN("config", "set", "log-level", "info", "--json", "--socket", socket),
                     0);
    json_t *root = ctl_json();
    ck_assert_str_eq(ctl_text(root, "name"), "log-level");
    ck_assert_str_eq(ctl_text(root, "value"), "info");
    json_decref(root);
    end(&s);
}
END_TEST

START_TEST(fields_of_a_replay)
{
    const char *path = tmpdir_file("trace");
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    fprintf(file, "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 1, "
                  "\"hash_ids\": [0, 1]}\n");
    fclose(file);
    EXPECT("replay", path, "--private", "--gpu-bytes", "4M", "--host-bytes", "4M", "--json");
    EXPECT("bench", "--blocks", "16384", "--rounds", "1", "--pairs", "10", "--only", "lookup_64",
           "--json");
}
END_TEST

CHECK_MAIN("ctl/json", CHECK_LIFE_S, fields_of_figures_and_lists, fields_of_events,
           fields_of_what_commands_have_done, fields_of_a_replay)
