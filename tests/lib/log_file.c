#include "tests/lib/log_file.h"

#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check_main.h"

#define LINE_SIZE   4096
#define PRINT_BYTES 16384

void log_file_init(struct log_file *log, const char *path)
{
    ck_assert_uint_lt(strlen(path), sizeof(log->path));
    *log = (struct log_file){0};
    strcpy(log->path, path);
}

void log_file_announce(struct log_file *log, const char *text, bool must_come)
{
    struct log_announced *a = &log->announced[log->n_announced++];

    ck_assert_uint_le(log->n_announced, LOG_FILE_ANNOUNCED_MAX);
    ck_assert_uint_lt(strlen(text), sizeof(a->text));
    strcpy(a->text, text);
    a->must_come = must_come;
    a->came = 0;
}

// Calls for each line, without its newline; stops when the callback returns false.
static void each_line(const struct log_file *log, bool (*cb)(void *arg, const char *line),
                      void *arg)
{
    FILE *f = fopen(log->path, "re");
    char line[LINE_SIZE];

    if (!f)
        return;
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        if (!cb(arg, line))
            break;
    }
    fclose(f);
}

struct counting {
    const char *text;
    int n;
};

static bool count_line(void *arg, const char *line)
{
    struct counting *c = arg;

    c->n += strstr(line, c->text) != NULL;
    return true;
}

int log_file_count(const struct log_file *log, const char *text)
{
    struct counting c = {text, 0};

    each_line(log, count_line, &c);
    return c.n;
}

static bool begins(const char *s, const char *word)
{
    return strncmp(s, word, strlen(word)) == 0;
}

// "2026-01-31T12:00:00.000Z info room: ..." and nothing else is harmless by itself.
static bool harmless(const char *line)
{
    const char *event = strchr(line, ' ');

    return isdigit((unsigned char)line[0]) && event &&
           (begins(event + 1, "info ") || begins(event + 1, "debug "));
}

// UCX asks for huge pages before it asks for others, which valgrind has a word about.
static bool is_of_valgrind(const char *line)
{
    return check_valgrind() && strstr(line, "valgrind ignores shmget(shmflg) SHM_HUGETLB") != NULL;
}

struct judging {
    struct log_file *log;
    char surprise[256];
};

static bool judge_line(void *arg, const char *line)
{
    struct judging *j = arg;
    bool announced = false;

    if (harmless(line) || is_of_valgrind(line))
        return true;
    for (size_t i = 0; i < j->log->n_announced; i++)
        if (strstr(line, j->log->announced[i].text)) {
            j->log->announced[i].came++;
            announced = true;
        }
    if (announced)
        return true;
    snprintf(j->surprise, sizeof(j->surprise), "%s", line);
    return false;
}

bool log_file_ok(struct log_file *log, char *ret_why, size_t size)
{
    struct judging j = {.log = log};

    for (size_t i = 0; i < log->n_announced; i++)
        log->announced[i].came = 0;
    each_line(log, judge_line, &j);
    if (j.surprise[0]) {
        snprintf(ret_why, size, "unexpected in the log: %s", j.surprise);
        return false;
    }
    for (size_t i = 0; i < log->n_announced; i++)
        if (log->announced[i].must_come && log->announced[i].came == 0) {
            snprintf(ret_why, size, "expected in the log and not there: %s",
                     log->announced[i].text);
            return false;
        }
    return true;
}

void log_file_judge(struct log_file *log)
{
    char why[512];

    if (log_file_ok(log, why, sizeof(why)))
        return;
    log_file_print(log);
    ck_abort_msg("%s", why);
}

static bool keep_line(void *arg, const char *line)
{
    snprintf(arg, LINE_SIZE, "%s", line);
    return true;
}

void log_file_expect_last(const struct log_file *log, const char *text)
{
    char last[LINE_SIZE] = "";

    each_line(log, keep_line, last);
    ck_assert_msg(strstr(last, text) != NULL, "the log's last line is \"%s\", not \"%s\"", last,
                  text);
}

void log_file_read(const struct log_file *log, char *ret_text, size_t size)
{
    FILE *f = fopen(log->path, "re");
    size_t n = 0;

    if (f) {
        n = fread(ret_text, 1, size - 1, f);
        fclose(f);
    }
    ret_text[n] = '\0';
}

void log_file_print(const struct log_file *log)
{
    FILE *f = fopen(log->path, "re");
    char line[LINE_SIZE];

    if (!f)
        return;
    if (fseek(f, -PRINT_BYTES, SEEK_END) == 0)
        printf("[...]\n");
    else
        rewind(f);
    while (fgets(line, sizeof(line), f))
        printf("| %s", line);
    fclose(f);
    fflush(stdout);
}
