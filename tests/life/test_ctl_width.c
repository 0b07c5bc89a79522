/* What kvcachectl prints on a terminal of 80 columns and 24 lines fits there. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/pty.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define WORKERS 8u

static struct pty pty;

/* What it writes there; the status of waitpid(). */
static int show(const char *const args[])
{
    pty_start(&pty, args, 24, 80, "NO_COLOR=1");
    return pty_end(&pty);
}
#define SHOW(...) show((const char *const[]){__VA_ARGS__, NULL})

static void expect_width(const char *what)
{
    ck_assert_msg(pty_widest(pty.text) <= 80, "%s: %s", what, pty.text);
}

static uint32_t count_lines(void)
{
    uint32_t n = 0;

    for (const char *at = pty.text; (at = strchr(at, '\n')); at++)
        n++;
    return n;
}

START_TEST(every_help_fits)
{
    static char help[8192];

    ck_assert_int_eq(CTL_RUN("--help"), 0);
    snprintf(help, sizeof(help), "%s", ctl_out());
    for (const char *line = help; line; line = strchr(line + 1, '\n')) {
        char name[32];

        if (strncmp(line, "\n  ", 3) != 0 || sscanf(line + 3, "%31[a-z-] ", name) != 1)
            continue;
        ck_assert_int_eq(SHOW(name, "--help"), 0);
        ck_assert_ptr_nonnull(strstr(pty.text, "usage: "));
        expect_width(name);
        ck_assert_int_eq(SHOW(name, "--help", "--json"), 0);
        expect_width(name);
    }
    ck_assert_int_eq(SHOW("--help"), 0);
    expect_width("--help");
    /* Words are not cut, and a pipe gets whole lines. */
    ck_assert_int_eq(SHOW("pin", "--help"), 0);
    ck_assert_ptr_nonnull(strstr(pty.text, "(see kvcachectl\r\n                         names"));
    ck_assert_int_eq(CTL_RUN("pin", "--help"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "(see kvcachectl namespaces)\n"));
}
END_TEST

/* A model with the longest name. */
static void register_long_name(const struct talk_worker *w, uint8_t ns)
{
    Kvcache__Register message = KVCACHE__REGISTER__INIT;
    char name[KVC_NAME_MAX + 1];
    uint8_t digest[KVC_NAMESPACE_BYTES];
    uint32_t slice = 4096;

    memset(name, 'n', KVC_NAME_MAX);
    name[KVC_NAME_MAX] = '\0';
    memset(digest, ns, sizeof(digest));
    message.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    message.name = name;
    message.block_tokens = 16;
    message.slice_bytes = &slice;
    message.n_slice_bytes = 1;
    talk_free(
        talk_ask(w->sock, WIRE_REGISTER, &message.base, &kvcache__register_reply__descriptor));
}

START_TEST(every_table_fits_and_status_is_one_screen)
{
    static const char *const tables[] = {"clients", "namespaces", "layouts", "leases",
                                         "blocks",  "extents",    "config",  "status"};
    char door[512], listener[600];
    struct talk_worker w[WORKERS];
    struct daemon *d;

    snprintf(door, sizeof(door), "%.500s", tmpdir_file("door"));
    snprintf(listener, sizeof(listener), "%.500s tenant=a-tenant-with-a-long-name", door);
    d = daemon_start((const char *const[]){"--socket", listener, NULL});
    for (uint32_t i = 0; i < WORKERS; i++) {
        w[i] = talk_worker(door, KVCACHE__ROLE__ROLE_WORKER, (uint8_t)(0xa0 + i));
        register_long_name(&w[i], (uint8_t)(0xb0 + i));
        talk_publish(&w[i], 10 * i, 8);
        talk_free(talk_lookup(&w[i], 10 * i, 8));
    }
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        ck_assert_int_eq(SHOW("--socket", daemon_socket(d), tables[i]), 0);
        expect_width(tables[i]);
    }
    ck_assert_ptr_nonnull(strstr(pty.text, "more (--json has them all)"));
    ck_assert_uint_le(count_lines(), 23);
    for (uint32_t i = 0; i < WORKERS; i++)
        talk_worker_close(&w[i]);
    daemon_stop(d);
}
END_TEST

/* A tier whose memory is not all there has a line more. */
START_TEST(status_fits_without_all_memory)
{
    char output[4096];
    uint64_t fired;
    struct daemon *d =
        daemon_start_armed(NULL, "device.populate", 1, 1, &fired, output, sizeof(output));

    ck_assert_ptr_nonnull(d);
    daemon_log_expect(d, "no memory to populate");
    daemon_log_expect(d, "no memory for a part of a tier");
    wait_for(daemon_log_count(d, "no memory for a part of a tier") == 2, 5000);
    ck_assert_int_eq(SHOW("--socket", daemon_socket(d), "status"), 0);
    ck_assert_ptr_nonnull(strstr(pty.text, "memory found for"));
    expect_width("status");
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("ctl/width", CHECK_LIFE_S, every_help_fits, every_table_fits_and_status_is_one_screen,
           status_fits_without_all_memory)
