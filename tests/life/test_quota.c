// Quotas through a daemon: from its configuration, at run time, and nonsense.
#include <string.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"

static struct daemon *d;
static int operator_;

static void begin(const char *const args[])
{
    d = daemon_start(args);
    operator_ = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
}

static void refused(int sock, uint16_t type, const ProtobufCMessage *m, kvc_status status,
                    const char *field)
{
    talk_expect_error(sock, talk_send(sock, type, m), status, field);
}

struct amounts {
    int64_t gpu, host, leases; // 0: not given
    bool clear;
};

static void fill(Kvcache__Quota *m, struct amounts *a, ProtobufCBinaryData digest)
{
    *m = (Kvcache__Quota)KVCACHE__QUOTA__INIT;
    m->namespace_digest = digest;
    m->n_gpu_bytes = a->gpu != 0;
    m->gpu_bytes = &a->gpu;
    m->n_host_bytes = a->host != 0;
    m->host_bytes = &a->host;
    m->n_leases = a->leases != 0;
    m->leases = &a->leases;
    m->clear = a->clear;
}

static void set(ProtobufCBinaryData digest, struct amounts a)
{
    Kvcache__Quota m;
    Kvcache__QuotaReply *r;

    fill(&m, &a, digest);
    r = talk_ask(operator_, WIRE_QUOTA, &m.base, &kvcache__quota_reply__descriptor);
    ck_assert_uint_eq(r->namespaces, 1);
    talk_free(r);
}

// A column of the first namespace.
static void expect_column(const char *name, const char *value)
{
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__ListReply *r;

    list.what = (char *)"namespaces";
    r = talk_ask(operator_, WIRE_LIST, &list.base, &kvcache__list_reply__descriptor);
    ck_assert_uint_ge(r->n_rows, 1);
    for (size_t i = 0; i < r->n_columns; i++)
        if (strcmp(r->columns[i], name) == 0)
            ck_assert_str_eq(r->rows[0]->values[i], value);
    talk_free(r);
}

START_TEST(nonsense_is_refused_on_the_wire)
{
    uint8_t bytes[KVC_NAMESPACE_BYTES], other[KVC_NAMESPACE_BYTES];
    ProtobufCBinaryData digest = {sizeof(bytes), bytes}, unknown = {sizeof(other), other};
    Kvcache__Flush flush = KVCACHE__FLUSH__INIT;
    Kvcache__Pin pin = KVCACHE__PIN__INIT;
    Kvcache__Quota m;
    struct talk_worker w;
    struct amounts a = {.gpu = 1 << 20};
    int64_t two[2] = {1 << 20, 1 << 20};

    begin(NULL);
    w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 5);
    memset(bytes, 5, sizeof(bytes));
    memset(other, 6, sizeof(other));
    fill(&m, &a, digest);
    refused(w.sock, WIRE_QUOTA, &m.base, KVC_E_DENIED, "");
    m.namespace_digest.len = 31;
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_INVALID, "namespace_digest");
    fill(&m, &a, unknown);
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_UNKNOWN, "namespace_digest");
    a.gpu = -1;
    fill(&m, &a, digest);
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_INVALID, "gpu_bytes");
    a = (struct amounts){.host = INT64_MIN};
    fill(&m, &a, digest);
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_INVALID, "host_bytes");
    a = (struct amounts){0};
    fill(&m, &a, digest);
    m.n_leases = 1;
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_INVALID, "leases"); // a zero that was given
    m.n_leases = 0;
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_INVALID, "gpu_bytes"); // nothing at all
    m.n_gpu_bytes = 2;
    m.gpu_bytes = two;
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_INVALID, "gpu_bytes");
    a = (struct amounts){.gpu = (16 << 20) + 1};
    fill(&m, &a, digest);
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_LIMIT, "gpu_bytes");
    a = (struct amounts){.gpu = 1, .host = INT64_MAX};
    fill(&m, &a, digest);
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_LIMIT, "host_bytes");
    a = (struct amounts){.leases = 1ll << 32};
    fill(&m, &a, digest);
    refused(operator_, WIRE_QUOTA, &m.base, KVC_E_LIMIT, "leases");
    expect_column("gpu_quota", "-");

    // The same of flushes and pins.
    flush.namespace_digest = unknown;
    refused(operator_, WIRE_FLUSH, &flush.base, KVC_E_UNKNOWN, "namespace_digest");
    pin.namespace_digest = unknown;
    pin.keys = talk_keys(0, 2);
    refused(operator_, WIRE_PIN, &pin.base, KVC_E_UNKNOWN, "namespace_digest");
    pin.namespace_digest = digest;
    pin.seconds = UINT32_MAX; // what a client makes of -1
    refused(operator_, WIRE_PIN, &pin.base, KVC_E_LIMIT, "seconds");
    close(operator_);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(a_quota_is_set_shown_and_cleared)
{
    uint8_t bytes[KVC_NAMESPACE_BYTES];
    ProtobufCBinaryData digest = {sizeof(bytes), bytes};
    struct talk_worker w;

    begin((const char *[]){"--namespace-quota", "default host=3M leases=100", NULL});
    w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 5);
    memset(bytes, 5, sizeof(bytes));
    expect_column("gpu_quota", "-");
    expect_column("host_quota", "3145728");
    expect_column("leases_quota", "100");
    set(digest, (struct amounts){.gpu = 4 << 20, .leases = 7});
    expect_column("gpu_quota", "4194304");
    expect_column("gpu_share", "4194304");
    expect_column("host_quota", "3145728");
    expect_column("leases_quota", "7");
    talk_publish(&w, 0, 10);
    expect_column("gpu_bytes", "81920");
    expect_column("leased", "0");
    set(digest, (struct amounts){.clear = true});
    expect_column("gpu_quota", "-");
    expect_column("leases_quota", "100");
    close(operator_);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(nonsense_is_refused_at_the_start)
{
    static const char *const bad[] = {"default gpu=17M", "default host=0", "default leases=-1",
                                      "abc gpu=1M"};
    char output[2048];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(
            daemon_run((const char *[]){"--namespace-quota", bad[i], NULL}, output, sizeof(output)),
            1);
        ck_assert_ptr_nonnull(strstr(output, "namespace-quota"));
    }
}
END_TEST

CHECK_MAIN("life/quota", CHECK_LIFE_S, nonsense_is_refused_on_the_wire,
           a_quota_is_set_shown_and_cleared, nonsense_is_refused_at_the_start)
