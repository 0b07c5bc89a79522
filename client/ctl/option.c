#include "client/ctl/option.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spelling.h"
#include "proto/wrap.h"

#define HELP_COLUMN    25
#define LINE_MAX_BYTES 512

/* Of every command; the first two are fields of struct ctl. */
enum { COMMON_SOCKET, COMMON_JSON, COMMON_HELP, N_COMMON };
static const struct option_row common[N_COMMON] = {
    {"socket", OPTION_TEXT, offsetof(struct ctl, socket), "PATH", "where the daemon listens", 0, 0,
     NULL},
    {"json", OPTION_FLAG, offsetof(struct ctl, json), NULL, "the result as JSON", 0, 0, NULL},
    {"help", OPTION_FLAG, 0, NULL, "what you are reading; with --json, the fields of that", 0, 0,
     NULL},
};

/* A command line while it is read. */
struct line {
    struct ctl *ctl;
    const char *command; /* NULL: before it */
    const struct option_row *rows;
    size_t n_rows;
    bool has_socket;
    char **argv;
    int argc, at;
    void *values;
    bool help; /* asked for */
};

static const struct option_row *row_at(const struct line *line, size_t i)
{
    return i < line->n_rows ? &line->rows[i] : &common[i - line->n_rows];
}

/* The rows that this line may use: its own, then the common ones. */
static size_t rows_of(const struct line *line)
{
    return line->n_rows + N_COMMON;
}

static bool is_usable(const struct line *line, const struct option_row *row)
{
    return line->has_socket || row != &common[COMMON_SOCKET];
}

static bool refuse_unknown(const struct line *line, const char *word, const char *name)
{
    const struct option_row *near = NULL;

    for (size_t i = 0; i < rows_of(line); i++) {
        const struct option_row *row = row_at(line, i);

        if (is_usable(line, row) &&
            (!near || spelling_distance(name, row->name) < spelling_distance(name, near->name)))
            near = row;
    }
    fprintf(stderr, "%s: %s%sno option '%s'", line->ctl->program,
            line->command ? line->command : "", line->command ? " has " : "", word);
    if (near && spelling_is_near(name, near->name))
        fprintf(stderr, "; did you mean --%s?\n", near->name);
    else
        fputs(" (--help lists them)\n", stderr);
    return false;
}

/* Finds "name" or "name=value" (*value: NULL, or what stands behind the sign). */
static const struct option_row *find(const struct line *line, const char *word, char **value)
{
    char name[64];
    size_t length = strcspn(word + 2, "=");

    *value = word[2 + length] ? (char *)word + 2 + length + 1 : NULL;
    snprintf(name, sizeof(name), "%.*s", (int)length, word + 2);
    for (size_t i = 0; i < rows_of(line); i++)
        if (strcmp(row_at(line, i)->name, name) == 0 && is_usable(line, row_at(line, i)))
            return row_at(line, i);
    refuse_unknown(line, word, name);
    return NULL;
}

static bool set_number(const struct line *line, const struct option_row *row, const char *text,
                       void *to)
{
    char what[128], *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno || end == text || *end || !isdigit((unsigned char)text[0]) || value < row->min ||
        value > row->max) {
        snprintf(what, sizeof(what), "--%s takes a number from %llu to %llu", row->name,
                 (unsigned long long)row->min, (unsigned long long)row->max);
        ctl_usage(line->ctl, what, text);
        return false;
    }
    if (row->type == OPTION_UINT64)
        *(uint64_t *)to = value;
    else
        *(uint32_t *)to = (uint32_t)value;
    return true;
}

static bool set_choice(const struct line *line, const struct option_row *row, const char *text,
                       uint32_t *to)
{
    char what[128];
    size_t used;

    for (uint32_t i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            *to = i;
            return true;
        }
    }
    used = (size_t)snprintf(what, sizeof(what), "--%s takes %s", row->name, row->choices[0]);
    for (uint32_t i = 1; row->choices[i] && used < sizeof(what); i++)
        used += (size_t)snprintf(what + used, sizeof(what) - used, " or %s", row->choices[i]);
    ctl_usage(line->ctl, what, text);
    return false;
}

static bool set(struct line *line, const struct option_row *row, char *value)
{
    bool is_common = row >= common && row < common + N_COMMON;
    void *to = (char *)(is_common ? (void *)line->ctl : line->values) + row->offset;

    if (row == &common[COMMON_HELP]) {
        line->help = true;
        return true;
    }
    assert(row->type == OPTION_FLAG || value != NULL);
    switch (row->type) {
    case OPTION_FLAG:
        *(bool *)to = true;
        return true;
    case OPTION_TEXT:
        *(const char **)to = value;
        return true;
    case OPTION_CHOICE:
        return set_choice(line, row, value, to);
    default:
        return set_number(line, row, value, to);
    }
}

/* The option at line->at, and its value behind it; moves on. */
static bool take(struct line *line)
{
    char *word = line->argv[line->at++], *value;
    const struct option_row *row = find(line, word, &value);

    if (!row)
        return false;
    if (row->type == OPTION_FLAG && value) {
        fprintf(stderr, "%s: --%s takes no value\n", line->ctl->program, row->name);
        return false;
    }
    if (row->type != OPTION_FLAG && !value) {
        if (line->at == line->argc) {
            fprintf(stderr, "%s: --%s needs a value: %s\n", line->ctl->program, row->name,
                    row->value);
            return false;
        }
        value = line->argv[line->at++];
    }
    return set(line, row, value);
}

/* "-" is standard input, and a number below 0 is for the command to refuse. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && !isdigit((unsigned char)word[1]);
}

static bool take_word(struct line *line)
{
    const char *word = line->argv[line->at];

    return word[1] == '-' ? take(line) : refuse_unknown(line, word, word + 1);
}

static void print_rows(const struct option_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char head[64], line[LINE_MAX_BYTES];

        snprintf(head, sizeof(head), "--%s%s%s", rows[i].name, rows[i].value ? " " : "",
                 rows[i].value ? rows[i].value : "");
        snprintf(line, sizeof(line), "  %-22s %s", head, rows[i].help ? rows[i].help : "");
        if (rows[i].help)
            wrap_line(stdout, line, HELP_COLUMN);
    }
}

static void print_help(const char *command, const struct option_table *table)
{
    printf("usage: kvcachectl %s [options]%s%s\n%s\n", command, table->arguments ? " " : "",
           table->arguments ? table->arguments : "", table->help);
    print_rows(table->rows, table->n_rows);
    print_rows(common + (table->alone ? COMMON_JSON : COMMON_SOCKET),
               table->alone ? N_COMMON - COMMON_JSON : N_COMMON);
}

static bool check_count(const struct ctl *ctl, const struct option_table *table, char **argv, int n)
{
    if (!table->arguments && n > 0)
        fprintf(stderr, "%s: %s takes no argument '%s'\n", ctl->program, argv[0], argv[1]);
    else if (table->arguments && n > table->max_arguments)
        fprintf(stderr, "%s: %s takes %s, and nothing like '%s'\n", ctl->program, argv[0],
                table->arguments, argv[1 + table->max_arguments]);
    else if (n < table->min_arguments)
        fprintf(stderr, "%s: %s needs %s\n", ctl->program, argv[0], table->arguments);
    else
        return true;
    return false;
}

bool option_parse(struct ctl *ctl, const struct option_table *table, int argc, char **argv,
                  void *values, int *n_arguments, int *exit_status)
{
    struct line line = {ctl,  argv[0], table->rows, table->n_rows, !table->alone,
                        argv, argc,    1,           values,        false};
    bool only_arguments = false;
    int n = 0;

    *exit_status = CTL_USAGE;
    while (line.at < argc) {
        char *word = argv[line.at];

        if (!only_arguments && strcmp(word, "--") == 0) {
            only_arguments = true;
            line.at++;
        } else if (!only_arguments && is_option(word)) {
            if (!take_word(&line))
                return false;
        } else {
            argv[1 + n++] = word;
            line.at++;
        }
    }
    if (line.help) {
        if (ctl->json)
            field_print_help(argv[0], table->json);
        else
            print_help(argv[0], table);
        *exit_status = CTL_OK;
        return false;
    }
    argv[1 + n] = NULL;
    if (!check_count(ctl, table, argv, n))
        return false;
    *n_arguments = n;
    return true;
}

bool option_parse_leading(struct ctl *ctl, const struct option_row *rows, size_t n_rows, int argc,
                          char **argv, void *values, int *used)
{
    /* The help of a program is its list of commands: a row of its own. */
    struct line line = {ctl, NULL, rows, n_rows, true, argv, argc, 1, values, false};

    while (line.at < argc && is_option(argv[line.at]))
        if (!take_word(&line))
            return false;
    *used = line.at;
    return true;
}
