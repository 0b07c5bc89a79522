#include "daemon/config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/config_shares.h"
#include "daemon/metrics/metrics.h"
#include "proto/limits.h"
#include "proto/spelling.h"
#include "proto/wrap.h"

#undef config_explain /* defined for analysers of other files */

struct option {
    const char *name;
    enum value_kind kind;
    bool runtime;
    size_t offset; /* of its field in struct config */
    const char *preset;
    uint64_t min, max; /* of numbers; of lists, max is the size of the field */
    const char *const *choices;
    const char *value; /* its name in --help */
    const char *help;
};

static const char *const devices[] = {"auto", "host", "cuda", NULL};
static const char *const memories[] = {"auto", "vmm", "legacy", NULL};
static const char *const transfers[] = {"auto", "exact", "views", NULL};
static const char *const origins[] = {"default", "file", "environment", "argument", "runtime"};

#define FIELD(name) offsetof(struct config, name)
#define RUNTIME     true
#define START       false
#define SECOND      1000u
#define HOUR        3600000u

static const struct option options[] = {
    {"socket", VALUE_LIST, START, FIELD(sockets), "/run/kvcached/kvcached.sock", 0,
     CONFIG_SOCKETS_TEXT_MAX, NULL, "SOCKET",
     "where to listen: PATH, tenant=, namespaces=, roles=, mode=, group=; may be given again"},
    {"socket-mode", VALUE_MODE, START, FIELD(socket_mode), "0660", 0, 0777, NULL, "MODE",
     "permissions of socket files without mode=, octal"},
    {"allow", VALUE_LIST, RUNTIME, FIELD(allow), "", 0, CONFIG_ALLOW_TEXT_MAX, NULL, "RULE",
     "who may be what: uid:N, gid:N or *, roles=, tenant=, socket=; may be given again"},
    {"device", VALUE_CHOICE, START, FIELD(device), "auto", 0, UINT64_MAX, devices, "NAME",
     "auto, host (memory of this machine in place of a GPU) or cuda"},
    {"gpus", VALUE_TEXT, START, FIELD(gpus), "first", 0, 0, NULL, "LIST",
     "which GPUs: first (that the driver shows), all, or UUIDs (GPU-...) with commas between"},
    {"gpu-memory", VALUE_CHOICE, START, FIELD(gpu_memory), "auto", 0, UINT64_MAX, memories, "KIND",
     "how workers get it: vmm (descriptors), legacy (handles; no block larger than an extent), "
     "auto"},
    {"gpu-bytes", VALUE_SIZE, START, FIELD(gpu_bytes), "256M", 0, UINT64_MAX, NULL, "SIZE",
     "memory of the GPU tier, on each GPU; 0: none"},
    {"host-bytes", VALUE_SIZE, START, FIELD(host_bytes), "1G", 0, UINT64_MAX, NULL, "SIZE",
     "memory of the host tier; 0: none"},
    {"lease-time", VALUE_TIME, RUNTIME, FIELD(lease_ms), "30s", 10, KVC_LEASE_MS_MAX, NULL, "TIME",
     "how long a lease lasts that asks for no time"},
    {"save-time", VALUE_TIME, RUNTIME, FIELD(save_proof_ms), "30s", SECOND, HOUR, NULL, "TIME",
     "a save that is not proved by then is aborted"},
    {"promotion-time", VALUE_TIME, RUNTIME, FIELD(promotion_ms), "60s", 0, HOUR, NULL, "TIME",
     "two hits on the host tier within it promote a block; 0ms: never"},
    {"clean-low", VALUE_SHARE, RUNTIME, FIELD(clean_low), "10%", 0, 1000, NULL, "SHARE",
     "of the GPU tier: when less is free or clean, blocks are copied to the host tier"},
    {"clean-high", VALUE_SHARE, RUNTIME, FIELD(clean_high), "15%", 0, 1000, NULL, "SHARE",
     "... until this much is"},
    {"moving-bytes", VALUE_SIZE, RUNTIME, FIELD(moving_bytes), "64M", 1u << 20, 1ull << 40, NULL,
     "SIZE", "copies between tiers in flight, in all"},
    {"copy-thread-blocks", VALUE_COUNT, RUNTIME, FIELD(copy_thread_blocks), "0", 0, 65536, NULL,
     "N", "thread blocks of a copy by the daemon on a GPU, at most; 0: what was measured at start"},
    {"tenant-shares", VALUE_TEXT, START, FIELD(tenant_shares), "*=100%", 0, 0, NULL, "LIST",
     "most of each tier for tenants: uid:1000=25%,uid:1001=4G/16G,*=50%"},
    {"namespace-quota", VALUE_LIST, RUNTIME, FIELD(namespace_quota), "", 0, CONFIG_QUOTA_TEXT_MAX,
     NULL, "QUOTA", "DIGEST or default, gpu=SIZE, host=SIZE, leases=N; may be given again"},
    {"drain-time", VALUE_TIME, RUNTIME, FIELD(drain_ms), "5s", 0, HOUR, NULL, "TIME",
     "SIGTERM waits this long for what is in flight"},
    {"peers", VALUE_LIST, START, FIELD(peers), "none", 0, PEER_NAMES_TEXT_MAX, NULL, "PEER",
     "other daemons to ask for blocks that are not here: host:port [tenant=TENANT], ..."},
    {"peer-listen", VALUE_TEXT, START, FIELD(peer_listen), "none", 0, 0, NULL, "ADDRESS:PORT",
     "where other daemons may ask"},
    {"peer-secret-file", VALUE_TEXT, START, FIELD(peer_secret_file), "none", 0, 0, NULL, "PATH",
     "what peers prove to each other that they know; without, only named ones connect"},
    {"peer-tenant", VALUE_TEXT, START, FIELD(peer_tenant), "own", 0, 0, NULL, "TENANT",
     "whose blocks are shared with peers of no other tenant, uid:N; own: of the daemon's uid"},
    {"directory", VALUE_TEXT, START, FIELD(directory), "none", 0, 0, NULL, "HOST:PORT",
     "a Redis or Valkey in which daemons find each other, and who has what"},
    {"directory-time", VALUE_TIME, START, FIELD(directory_ms), "30s", SECOND, HOUR, NULL, "TIME",
     "what a daemon has said there lasts so long without it"},
    {"transfer", VALUE_CHOICE, START, FIELD(transfer), "auto", 0, UINT64_MAX, transfers, "MODE",
     "how blocks come from peers: auto, exact (slot to slot) or views (packed messages)"},
    {"ucx", VALUE_TEXT, START, FIELD(ucx), "libucp.so.0", 0, 0, NULL, "FILE",
     "the library that moves them, a name or a path; read when there are peers"},
    {"peer-time", VALUE_TIME, START, FIELD(peer_silence_ms), "3s", 100, HOUR, NULL, "TIME",
     "a peer that says nothing for this long is dead"},
    {"peer-bytes", VALUE_SIZE, START, FIELD(peer_bytes), "64M", 1u << 20, 1ull << 40, NULL, "SIZE",
     "on the way from one peer"},
    {"peers-bytes", VALUE_SIZE, START, FIELD(peers_bytes), "256M", 1u << 20, 1ull << 40, NULL,
     "SIZE", "... from all of them"},
    {"metrics", VALUE_TEXT, START, FIELD(metrics), "127.0.0.1:20747", 0, 0, NULL, "ADDRESS:PORT",
     "where /metrics and /healthz are served over HTTP, to whoever can connect; off: nowhere"},
    {"log-level", VALUE_CHOICE, RUNTIME, FIELD(log_level), "info", 0, UINT64_MAX, log_level_names,
     "LEVEL", "error, warning, info, or debug in debug builds"},
};

#define OPTIONS (sizeof(options) / sizeof(options[0]))

_Static_assert(OPTIONS <= CONFIG_ROWS_MAX, "more options than origins");
#define FITS(text_max)                                                                             \
    _Static_assert((text_max) <= CONFIG_LIST_TEXT_MAX, "a list is longer than the longest")
FITS(CONFIG_SOCKETS_TEXT_MAX);
FITS(CONFIG_ALLOW_TEXT_MAX);
FITS(PEER_NAMES_TEXT_MAX);
FITS(CONFIG_QUOTA_TEXT_MAX);

bool config_explain(char *why, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, CONFIG_WHY_MAX, format, args);
    va_end(args);
    return false;
}

static const uint64_t *number(const struct config *config, const struct option *o)
{
    return (const uint64_t *)((const char *)config + o->offset);
}

static bool out_of_range(const struct option *o, const char *value, char *why)
{
    char least[VALUE_TEXT_MAX], most[VALUE_TEXT_MAX];

    if (o->max == UINT64_MAX)
        return config_explain(why, "%s: %s is less than %s", o->name, value,
                              value_format(o->kind, o->min, o->choices, least));
    return config_explain(why, "%s: %s is not between %s and %s", o->name, value,
                          value_format(o->kind, o->min, o->choices, least),
                          value_format(o->kind, o->max, o->choices, most));
}

static bool set_text(const struct option *o, const char *value, char *field, char *why)
{
    if (value[0] == '\0')
        return config_explain(why, "%s: must not be empty", o->name);
    if (strlen(value) >= CONFIG_TEXT_MAX)
        return config_explain(why, "%s: longer than %u bytes", o->name, CONFIG_TEXT_MAX - 1);
    if (o->offset == FIELD(peer_tenant) && !peer_tenant_check(value, why, CONFIG_WHY_MAX))
        return false;
    strcpy(field, value);
    return true;
}

static bool set_number(const struct option *o, const char *value, uint64_t *field, char *why)
{
    uint64_t read;

    if (!value_parse(o->kind, value, o->choices, &read)) {
        char list[96] = "";
        size_t n = 0;

        if (!o->choices)
            return config_explain(why, "%s: \"%.64s\" is not %s", o->name, value,
                                  value_form(o->kind));
        for (size_t i = 0; o->choices[i]; i++)
            n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "",
                                  o->choices[i]);
        return config_explain(why, "%s: \"%.64s\" is none of %s", o->name, value, list);
    }
    if (read < o->min || read > o->max)
        return out_of_range(o, value, why);
    *field = read;
    return true;
}

/* Whether all that a list was given so far can be read. */
static bool check_list(const struct option *o, const char *text, char *why)
{
    struct peer_name names[PEERS_MAX];
    uint32_t n;

    switch (o->offset) {
    case FIELD(sockets):
        return config_sockets_check(text, why);
    case FIELD(allow):
        return config_allow_check(text, why);
    case FIELD(peers):
        return peer_names_read(text, names, &n, why, CONFIG_WHY_MAX);
    default:
        return config_quotas_check(text, why);
    }
}

/* Adds to what there is, or begins anew. */
static bool add_to_list(const struct option *o, const char *value, bool anew, char *field,
                        char *why)
{
    const char *before = anew ? "" : field;
    char text[CONFIG_LIST_TEXT_MAX];

    if (value[0] == '\0' && o->preset[0] != '\0') /* others may be empty, which ends them */
        return config_explain(why, "%s: must not be empty", o->name);
    if ((size_t)snprintf(text, sizeof(text), "%s%s%s", before, *before && *value ? "; " : "",
                         value) >= o->max)
        return config_explain(why, "%s: more than %" PRIu64 " bytes", o->name, o->max - 1);
    if (!check_list(o, text, why))
        return false;
    strcpy(field, text);
    return true;
}

static bool set(struct config *config, const struct option *o, const char *value, bool anew,
                char *why)
{
    void *field = (char *)config + o->offset;

    if (o->kind == VALUE_LIST)
        return add_to_list(o, value, anew, field, why);
    return o->kind == VALUE_TEXT ? set_text(o, value, field, why)
                                 : set_number(o, value, field, why);
}

bool config_unknown(const char *what, const char *name, char *why)
{
    const struct option *near = &options[0];

    for (size_t i = 1; i < OPTIONS; i++)
        if (spelling_distance(name, options[i].name) < spelling_distance(name, near->name))
            near = &options[i];
    if (spelling_is_near(name, near->name))
        return config_explain(why, "unknown %s \"%.64s\"; did you mean \"%s\"?", what, name,
                              near->name);
    return config_explain(why, "unknown %s \"%.64s\"", what, name);
}

size_t config_find(const char *name)
{
    size_t i = 0;

    while (i < OPTIONS && strcmp(options[i].name, name) != 0)
        i++;
    return i;
}

bool config_set(struct config *config, const char *name, const char *value,
                enum config_origin origin, char *why)
{
    const size_t i = config_find(name);

    if (i == OPTIONS)
        return config_unknown("option", name, why);
    /* A list adds up in one place; a later place, or a change at run time, begins it anew. */
    if (!set(config, &options[i], value, config->origins[i] != origin || origin == CONFIG_RUNTIME,
             why))
        return false;
    config->origins[i] = (uint8_t)origin;
    return true;
}

void config_init(struct config *config)
{
    char why[CONFIG_WHY_MAX];

    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < OPTIONS; i++)
        set(config, &options[i], options[i].preset, true, why);
}

bool config_is_list(size_t i)
{
    return options[i].kind == VALUE_LIST;
}

size_t config_count(void)
{
    return OPTIONS;
}

void config_get(const struct config *config, size_t i, struct config_entry *entry)
{
    const struct option *o = &options[i];

    entry->name = o->name;
    entry->origin = origins[config->origins[i]];
    entry->runtime = o->runtime;
    entry->tells = o->kind == VALUE_LIST || o->offset == FIELD(tenant_shares);
    entry->value = o->kind == VALUE_TEXT || o->kind == VALUE_LIST
                       ? (const char *)config + o->offset
                       : value_format(o->kind, *number(config, o), o->choices, entry->text);
}

void config_adopt(struct config *config, const struct config *fresh, char *differing, size_t size)
{
    size_t n = 0;

    differing[0] = '\0';
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct option *o = &options[i];
        struct config_entry now, then;

        if (o->kind == VALUE_LIST && o->runtime) {
            strcpy((char *)config + o->offset, (const char *)fresh + o->offset);
            config->origins[i] = fresh->origins[i];
            continue;
        }
        if (o->runtime) {
            *(uint64_t *)((char *)config + o->offset) = *number(fresh, o);
            config->origins[i] = fresh->origins[i];
            continue;
        }
        config_get(config, i, &now);
        config_get(fresh, i, &then);
        if (strcmp(now.value, then.value) != 0 && n < size)
            n += (size_t)snprintf(differing + n, size - n, "%s%s", n > 0 ? "," : "", o->name);
    }
}

bool config_change(struct config *config, const char *name, const char *value, char *why)
{
    const size_t i = config_find(name);
    struct config changed = *config;

    if (i == OPTIONS)
        return config_unknown("option", name, why);
    if (!options[i].runtime)
        return config_explain(why, "%s: changes only with a restart", name);
    if (!config_set(&changed, name, value, CONFIG_RUNTIME, why) || !config_check(&changed, why))
        return false;
    *config = changed;
    return true;
}

static bool check_tier(const char *name, uint64_t bytes, char *why)
{
    char text[VALUE_TEXT_MAX], least[VALUE_TEXT_MAX];

    if (bytes > 0 && bytes < KVC_EXTENT_BYTES_MIN)
        return config_explain(why, "%s: %s is less than one extent (%s)", name,
                              value_format(VALUE_SIZE, bytes, NULL, text),
                              value_format(VALUE_SIZE, KVC_EXTENT_BYTES_MIN, NULL, least));
    return true;
}

static bool check_quotas(const struct config *config, char *why)
{
    struct config_quota quotas[CONFIG_QUOTAS_MAX];
    uint32_t n = 0;

    if (!config_quotas_parse(config->namespace_quota, quotas, &n, why))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (quotas[i].gpu_bytes > config->gpu_bytes || quotas[i].host_bytes > config->host_bytes)
            return config_explain(why, "namespace-quota: %s is larger than the tier",
                                  quotas[i].gpu_bytes > config->gpu_bytes ? "gpu" : "host");
    return true;
}

bool config_check(const struct config *config, char *why)
{
    const uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const bool gpu_is_memory = config->device != CONFIG_DEVICE_CUDA;
    char gpu[VALUE_TEXT_MAX], host[VALUE_TEXT_MAX];
    struct store_share shares[CONFIG_SHARES_MAX];
    struct config_access access;
    uint32_t n_shares;
    uint64_t wanted;

    if (config->gpu_bytes == 0 && config->host_bytes == 0)
        return config_explain(why,
                              "gpu-bytes and host-bytes are both 0: there is nothing to cache in");
    if (!check_tier("gpu-bytes", config->gpu_bytes, why) ||
        !check_tier("host-bytes", config->host_bytes, why))
        return false;
    if (__builtin_add_overflow(gpu_is_memory ? config->gpu_bytes : 0, config->host_bytes,
                               &wanted) ||
        wanted > memory)
        return config_explain(
            why, "gpu-bytes %s and host-bytes %s are more than this machine's memory, %" PRIu64 "M",
            value_format(VALUE_SIZE, config->gpu_bytes, NULL, gpu),
            value_format(VALUE_SIZE, config->host_bytes, NULL, host), memory >> 20);
    if (!metrics_is_address(config->metrics))
        return config_explain(why, "metrics: \"%.64s\" is not ADDRESS:PORT with numbers, nor off",
                              config->metrics);
    if (config->clean_low > config->clean_high)
        return config_explain(why, "clean-low is more than clean-high");
    return config_access_parse(config->sockets, config->allow, &access, why) &&
           config_shares(config->tenant_shares, shares, &n_shares, why) &&
           check_quotas(config, why);
}

void config_help(FILE *out)
{
    fprintf(out,
            "usage: kvcached [options]\n"
            "Keeps KV cache blocks of inference engines in GPU and host memory.\n\n"
            "  %-23s read settings from it [/etc/kvcached/kvcached.conf, if there]\n"
            "  %-23s only say whether it is right\n",
            "--config FILE", "--check-config FILE");
    for (size_t i = 0; i < OPTIONS; i++) {
        char left[48], line[512];

        snprintf(left, sizeof(left), "--%s %s", options[i].name, options[i].value);
        snprintf(line, sizeof(line), "  %-23s %s [%s]%s", left, options[i].help, options[i].preset,
                 options[i].runtime ? " *" : "");
        wrap_line(out, line, 26);
    }
    fprintf(out, "  %-23s this text\n  %-23s the version\n\n", "--help", "--version");
    fprintf(out, "Sizes are digits and at most one of K, M, G, T (powers of 1024); those of tiers\n"
                 "are rounded down to whole extents. Times are digits and ms, s, m or h.\n"
                 "In the file: gpu-bytes = 8G. In the environment: KVCACHED_GPU_BYTES=8G. The\n"
                 "command line wins over the environment, and that over the file. SIGHUP reads\n"
                 "all again: what has a * changes then, or with kvcachectl config set; the rest\n"
                 "with a restart.\n");
}
