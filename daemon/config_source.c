#include "daemon/config_source.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <string.h>
#include <unistd.h>

#define ENVIRONMENT_PREFIX "KVCACHED_"
#define LINE_MAX_BYTES     190 /* what inih holds of one, less the newline */
#define STRING_OF(text)    #text
#define STRING(macro)      STRING_OF(macro)

struct reading {
    struct config *config;
    const char *path;
    char *why; /* of the first thing that is wrong */
    FILE *file;
    int line;
    bool bad;
    bool seen[CONFIG_ROWS_MAX];
};

/* Puts the place in front of what is wrong. Only the first counts. */
static void wrong(struct reading *r, const char *what)
{
    char text[CONFIG_WHY_MAX];

    if (r->bad)
        return;
    r->bad = true;
    snprintf(text, sizeof(text), "%s", what);
    config_explain(r->why, "%.256s: line %d: %.300s", r->path, r->line, text);
}

/* inih cuts long lines, and takes an indented one for more of the value above; both are refused. */
static char *read_line(char *line, int size, void *stream)
{
    struct reading *r = stream;
    char *got = r->bad ? NULL : fgets(line, size, r->file);
    size_t n;

    if (got == NULL)
        return NULL;
    r->line++;
    n = strlen(line);
    if (n > LINE_MAX_BYTES || (n > 0 && line[n - 1] != '\n' && !feof(r->file)))
        wrong(r, "longer than " STRING(LINE_MAX_BYTES) " bytes, or with a zero byte");
    else if (isspace((unsigned char)line[0]) && strspn(line, " \t\r\n") != n)
        wrong(r, "begins with a space");
    return r->bad ? NULL : got;
}

static int take_entry(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    char why[CONFIG_WHY_MAX];
    const size_t i = config_find(name);

    if (section[0] != '\0' && strcmp(section, "kvcached") != 0) {
        config_explain(why, "unknown section [%.64s]", section);
        wrong(r, why);
    } else if (i < config_count() && r->seen[i] && !config_is_list(i)) {
        config_explain(why, "%s is set twice", name);
        wrong(r, why);
    } else if (!config_set(r->config, name, value, CONFIG_FILE, why)) {
        wrong(r, why);
    } else {
        r->seen[i] = true;
    }
    return !r->bad;
}

bool config_read_file(struct config *config, const char *path, char *why)
{
    struct reading r = {.config = config, .path = path, .why = why, .file = fopen(path, "re")};
    int result;

    if (r.file == NULL)
        return config_explain(why, "%.256s: %s", path, strerror(errno));
    result = ini_parse_stream(read_line, &r, take_entry, &r);
    if (ferror(r.file))
        wrong(&r, "cannot be read");
    else if (result > 0)
        wrong(&r, "is neither [section], name = value, nor a comment");
    else if (result < 0)
        wrong(&r, "out of memory");
    fclose(r.file);
    return !r.bad;
}

/* KVCACHED_GPU_BYTES=8G is gpu-bytes = 8G. */
static bool read_variable(struct config *config, const char *variable, char *why)
{
    const char *from = variable + strlen(ENVIRONMENT_PREFIX);
    const char *equals = strchr(from, '=');
    char name[64], text[CONFIG_WHY_MAX];
    size_t n = 0;

    if (equals == NULL)
        return true;
    for (; from < equals && n < sizeof(name) - 1; from++)
        name[n++] = *from == '_' ? '-' : (char)tolower((unsigned char)*from);
    name[n] = '\0';
    if (config_set(config, name, equals + 1, CONFIG_ENVIRONMENT, text))
        return true;
    return config_explain(why, "%.*s: %.500s", (int)(equals - variable), variable, text);
}

static bool read_environment(struct config *config, char *const *environment, char *why)
{
    for (; environment != NULL && *environment != NULL; environment++)
        if (strncmp(*environment, ENVIRONMENT_PREFIX, strlen(ENVIRONMENT_PREFIX)) == 0 &&
            !read_variable(config, *environment, why))
            return false;
    return true;
}

/* An argument taken apart: "--name=value", or "--name" and the next one. */
struct argument {
    char name[64];
    const char *value;
};

static bool is_flag(const char *name)
{
    return strcmp(name, "help") == 0 || strcmp(name, "version") == 0;
}

/* *i moves over what was read. */
static bool next_argument(const struct config_source *source, int *i, struct argument *argument,
                          char *why)
{
    const char *arg = source->argv[*i], *equals = strchr(arg, '=');

    if (strncmp(arg, "--", 2) != 0)
        return config_explain(why, "unexpected argument \"%.64s\" (--help lists the options)", arg);
    snprintf(argument->name, sizeof(argument->name), "%.*s",
             equals != NULL ? (int)(equals - arg - 2) : (int)strlen(arg) - 2, arg + 2);
    argument->value = equals != NULL ? equals + 1 : NULL;
    if (is_flag(argument->name)) {
        if (argument->value != NULL)
            return config_explain(why, "--%s takes no value", argument->name);
    } else if (argument->value == NULL) {
        if (strcmp(argument->name, "config") != 0 && strcmp(argument->name, "check-config") != 0 &&
            config_find(argument->name) == config_count())
            return config_unknown("option", argument->name, why);
        if (*i + 1 == source->argc)
            return config_explain(why, "--%s needs a value", argument->name);
        argument->value = source->argv[++*i];
    }
    ++*i;
    return true;
}

/* What is not a setting: where to read from, and what to do instead of serving. */
static enum config_action scan_arguments(const struct config_source *source, const char **file,
                                         const char **check, char *why)
{
    for (int i = 1; i < source->argc;) {
        struct argument argument;

        if (!next_argument(source, &i, &argument, why))
            return CONFIG_BAD;
        if (strcmp(argument.name, "help") == 0)
            return CONFIG_HELP;
        if (strcmp(argument.name, "version") == 0)
            return CONFIG_VERSION;
        if (strcmp(argument.name, "config") == 0)
            *file = argument.value;
        else if (strcmp(argument.name, "check-config") == 0)
            *check = argument.value;
    }
    return CONFIG_RUN;
}

static bool read_arguments(struct config *config, const struct config_source *source, char *why)
{
    for (int i = 1; i < source->argc;) {
        struct argument argument;

        if (!next_argument(source, &i, &argument, why))
            return false;
        if (strcmp(argument.name, "config") != 0 &&
            !config_set(config, argument.name, argument.value, CONFIG_ARGUMENT, why))
            return false;
    }
    return true;
}

enum config_action config_load(struct config *config, const struct config_source *source, char *why)
{
    const char *file = NULL, *check = NULL;
    enum config_action action = scan_arguments(source, &file, &check, why);

    config_init(config);
    if (action != CONFIG_RUN)
        return action;
    if (check != NULL)
        return config_read_file(config, check, why) && config_check(config, why) ? CONFIG_CHECKED
                                                                                 : CONFIG_WRONG;
    if (file == NULL && access(CONFIG_FILE_DEFAULT, F_OK) == 0)
        file = CONFIG_FILE_DEFAULT;
    if (file != NULL && !config_read_file(config, file, why))
        return CONFIG_BAD;
    if (!read_environment(config, source->environment, why) ||
        !read_arguments(config, source, why) || !config_check(config, why))
        return CONFIG_BAD;
    return CONFIG_RUN;
}
