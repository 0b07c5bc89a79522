/*
 * Command lines. A command has one table of its options: the parser reads it, --help prints it, and
 * an option that is not in it is refused with the nearest one that is. --help --json prints the
 * fields of its JSON. Options and arguments may
 * stand in any order; --name VALUE and --name=VALUE are the same; after -- all are arguments.
 */
#ifndef KVC_CTL_OPTION_H
#define KVC_CTL_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/ctl.h"
#include "client/ctl/field.h"

enum option_type {
    OPTION_FLAG,   /* bool, no value */
    OPTION_TEXT,   /* const char *, the caller's argv */
    OPTION_UINT32, /* within min and max */
    OPTION_UINT64,
    OPTION_CHOICE, /* uint32_t: which of the choices */
};

struct option_row {
    const char *name; /* without its dashes */
    enum option_type type;
    size_t offset;     /* in the command's values */
    const char *value; /* what --help calls it; NULL for flags */
    const char *help;  /* NULL: --help is silent about it */
    uint64_t min, max;
    const char *const *choices; /* ends with NULL */
};

struct option_table {
    const char *arguments; /* as --help shows them, "FILE" or "[KEY...]"; NULL: it takes none */
    const char *help;      /* what the command does, without the last newline */
    const struct option_row *rows;
    size_t n_rows;
    int min_arguments, max_arguments; /* for tables with arguments */
    bool alone;                       /* it has a daemon of its own, and no --socket */
    const struct shape *json;         /* what it prints with --json */
};

#define OPTION_ROWS(table) .rows = (table), .n_rows = sizeof(table) / sizeof((table)[0])

/*
 * Reads a command's words into its values, and --socket and --json into ctl. argv[0] is the
 * command; its arguments stand at argv[1] and after then, and argv[*n_arguments + 1] is NULL.
 * false: what is wrong, or the help, has been printed; end with *exit_status.
 */
bool option_parse(struct ctl *ctl, const struct option_table *table, int argc, char **argv,
                  void *values, int *n_arguments, int *exit_status);

/*
 * Reads the options that stand before the command: those of rows, and --socket and --json. *used:
 * how many words they are, with the program's name.
 */
bool option_parse_leading(struct ctl *ctl, const struct option_row *rows, size_t n_rows, int argc,
                          char **argv, void *values, int *used);

#endif
