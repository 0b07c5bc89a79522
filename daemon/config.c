#include "daemon/config.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "proto/limits.h"

enum kind { TEXT, SIZE, MODE, CHOICE };

struct option {
    const char *name;
    enum kind kind;
    size_t offset; /* of its field in struct config */
    const char *preset;
    uint64_t min, max; /* SIZE, MODE */
    const char *const *choices;
    const char *value; /* its name in --help */
    const char *help;
};

static const char *const devices[] = {"auto", "host", "cuda", NULL};
static const char *const levels[] = {"error", "warning", "info", "debug", NULL};

#define FIELD(name) offsetof(struct config, name)

static const struct option options[] = {
    {"socket", TEXT, FIELD(socket), "/run/kvcached/kvcached.sock", 0, 0, NULL, "PATH",
     "where to listen; PATH.lock keeps a second daemon away"},
    {"socket-mode", MODE, FIELD(socket_mode), "0660", 0, 0777, NULL, "MODE",
     "permissions of the socket file, octal"},
    {"device", CHOICE, FIELD(device), "auto", 0, 0, devices, "NAME",
     "auto, host (memory of this machine in place of a GPU) or cuda"},
    {"gpu-bytes", SIZE, FIELD(gpu_bytes), "256M", 0, UINT64_MAX, NULL, "SIZE",
     "memory of the GPU tier; 0: none"},
    {"host-bytes", SIZE, FIELD(host_bytes), "1G", 0, UINT64_MAX, NULL, "SIZE",
     "memory of the host tier; 0: none"},
    {"log-level", CHOICE, FIELD(log_level), "info", 0, 0, levels, "LEVEL",
     "error, warning, info, or debug in debug builds"},
};

#define OPTIONS (sizeof(options) / sizeof(options[0]))

static bool explain(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool explain(char *why, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, CONFIG_WHY_MAX, format, args);
    va_end(args);
    return false;
}

bool config_parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    uint64_t value = 0;
    const char *at = text;

    for (; isdigit((unsigned char)*at); at++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    if (at == text)
        return false;
    if (*at != '\0') {
        const char *unit = strchr(units, toupper((unsigned char)*at));
        unsigned shift = unit != NULL ? 10u * (unsigned)(unit - units + 1) : 0;

        if (unit == NULL || at[1] != '\0' || value > UINT64_MAX >> shift)
            return false;
        value <<= shift;
    }
    *bytes = value;
    return true;
}

const char *config_format_size(uint64_t bytes, char text[24])
{
    static const char units[] = "KMGT";
    int unit = -1;

    while (unit < 3 && bytes > 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 24, "%" PRIu64 "%.*s", bytes, unit >= 0, unit >= 0 ? units + unit : "");
    return text;
}

static bool set_size(const struct option *o, const char *value, uint64_t *field, char *why)
{
    uint64_t bytes;

    if (!config_parse_size(value, &bytes))
        return explain(why, "%s: \"%s\" is no size: write digits and at most one of K, M, G, T",
                       o->name, value);
    if (bytes < o->min || bytes > o->max)
        return explain(why, "%s: %s is out of range", o->name, value);
    *field = bytes;
    return true;
}

static bool set_mode(const struct option *o, const char *value, uint64_t *field, char *why)
{
    uint64_t mode = 0;
    const char *at = value;

    for (; *at >= '0' && *at <= '7' && mode <= o->max; at++)
        mode = mode * 8 + (uint64_t)(*at - '0');
    if (at == value || *at != '\0' || mode > o->max)
        return explain(why, "%s: \"%s\" is no mode: write octal digits up to 0777", o->name, value);
    *field = mode;
    return true;
}

static bool set_choice(const struct option *o, const char *value, uint64_t *field, char *why)
{
    char list[96] = "";
    size_t n = 0;

    for (uint64_t i = 0; o->choices[i] != NULL; i++) {
        if (strcmp(value, o->choices[i]) == 0) {
            *field = i;
            return true;
        }
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", o->choices[i]);
    }
    return explain(why, "%s: \"%s\" is none of %s", o->name, value, list);
}

static bool set_text(const struct option *o, const char *value, char *field, char *why)
{
    if (value[0] == '\0')
        return explain(why, "%s: must not be empty", o->name);
    if (strlen(value) >= CONFIG_TEXT_MAX)
        return explain(why, "%s: longer than %u bytes", o->name, CONFIG_TEXT_MAX - 1);
    strcpy(field, value);
    return true;
}

static bool set(struct config *config, const struct option *o, const char *value, char *why)
{
    void *field = (char *)config + o->offset;

    switch (o->kind) {
    case TEXT:
        return set_text(o, value, field, why);
    case SIZE:
        return set_size(o, value, field, why);
    case MODE:
        return set_mode(o, value, field, why);
    case CHOICE:
        return set_choice(o, value, field, why);
    }
    return false;
}

/* Letters to insert, remove or change; for names, which are short. */
static size_t distance(const char *a, const char *b)
{
    size_t row[32], n = strlen(b);

    if (n >= sizeof(row) / sizeof(row[0]))
        return n;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; *a != '\0'; a++, i++) {
        size_t left_above = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t above = row[j], best = left_above + (*a != b[j - 1]);

            best = above + 1 < best ? above + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            left_above = above;
        }
    }
    return row[n];
}

static bool unknown(const char *name, char *why)
{
    const struct option *near = &options[0];

    for (size_t i = 1; i < OPTIONS; i++)
        if (distance(name, options[i].name) < distance(name, near->name))
            near = &options[i];
    if (distance(name, near->name) <= 3)
        return explain(why, "unknown option \"%s\"; did you mean \"%s\"?", name, near->name);
    return explain(why, "unknown option \"%s\"", name);
}

bool config_set(struct config *config, const char *name, const char *value, char *why)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (strcmp(options[i].name, name) == 0)
            return set(config, &options[i], value, why);
    return unknown(name, why);
}

void config_init(struct config *config)
{
    char why[CONFIG_WHY_MAX];

    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < OPTIONS; i++)
        set(config, &options[i], options[i].preset, why);
}

/* "--name value" or "--name=value"; *i moves over what was read. */
static bool read_option(struct config *config, int argc, char *const argv[], int *i, char *why)
{
    const char *arg = argv[*i] + 2;
    const char *equals = strchr(arg, '=');
    char name[CONFIG_TEXT_MAX];
    const char *value;

    snprintf(name, sizeof(name), "%.*s", equals != NULL ? (int)(equals - arg) : (int)strlen(arg),
             arg);
    if (equals != NULL) {
        value = equals + 1;
    } else if (*i + 1 < argc) {
        value = argv[++*i];
    } else {
        for (size_t o = 0; o < OPTIONS; o++)
            if (strcmp(options[o].name, name) == 0)
                return explain(why, "--%s needs a value", name);
        return unknown(name, why);
    }
    return config_set(config, name, value, why);
}

enum config_action config_arguments(struct config *config, int argc, char *const argv[], char *why)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return CONFIG_HELP;
        if (strcmp(argv[i], "--version") == 0)
            return CONFIG_VERSION;
        if (strncmp(argv[i], "--", 2) != 0) {
            explain(why, "unexpected argument \"%s\"", argv[i]);
            return CONFIG_BAD;
        }
        if (!read_option(config, argc, argv, &i, why))
            return CONFIG_BAD;
    }
    return CONFIG_RUN;
}

static bool check_tier(const char *name, uint64_t bytes, char *why)
{
    char text[24], least[24];

    if (bytes > 0 && bytes < KVC_EXTENT_BYTES_MIN)
        return explain(why, "%s: %s is less than one extent (%s)", name,
                       config_format_size(bytes, text),
                       config_format_size(KVC_EXTENT_BYTES_MIN, least));
    return true;
}

bool config_check(const struct config *config, char *why)
{
    const uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const bool gpu_is_memory = config->device != CONFIG_DEVICE_CUDA;
    char gpu[24], host[24];
    uint64_t wanted;

    if (config->gpu_bytes == 0 && config->host_bytes == 0)
        return explain(why, "gpu-bytes and host-bytes are both 0: there is nothing to cache in");
    if (!check_tier("gpu-bytes", config->gpu_bytes, why) ||
        !check_tier("host-bytes", config->host_bytes, why))
        return false;
    if (__builtin_add_overflow(gpu_is_memory ? config->gpu_bytes : 0, config->host_bytes,
                               &wanted) ||
        wanted > memory)
        return explain(
            why, "gpu-bytes %s and host-bytes %s are more than this machine's memory, %" PRIu64 "M",
            config_format_size(config->gpu_bytes, gpu),
            config_format_size(config->host_bytes, host), memory >> 20);
    return true;
}

void config_help(FILE *out)
{
    fprintf(out, "usage: kvcached [options]\n"
                 "Keeps KV cache blocks of inference engines in GPU and host memory.\n\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        char left[48];

        snprintf(left, sizeof(left), "--%s %s", options[i].name, options[i].value);
        fprintf(out, "  %-22s %s [%s]\n", left, options[i].help, options[i].preset);
    }
    fprintf(out, "  %-22s %s\n", "--help", "this text");
    fprintf(out, "  %-22s %s\n\n", "--version", "the version");
    fprintf(out,
            "Sizes are digits and at most one of K, M, G, T (powers of 1024), rounded down to\n"
            "whole extents. SIGTERM stops the daemon, after what is in flight, in at most 5 s.\n");
}
