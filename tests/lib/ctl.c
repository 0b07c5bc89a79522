#include "tests/lib/ctl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"

#define ARGS_MAX 32

static const char *temporary;

void ctl_set_tmpdir(const char *path)
{
    temporary = path;
}

pid_t ctl_start(int to, const char *const args[])
{
    const char *out_path = tmpdir_file("out"), *err_path = tmpdir_file("err");
    char program[4096];
    const char *argv[ARGS_MAX] = {program};
    pid_t pid;

    daemon_program(program, sizeof(program), "kvcachectl");
    for (size_t i = 0; args[i]; i++) {
        ck_assert_uint_lt(i + 2, ARGS_MAX);
        argv[i + 1] = args[i];
    }
    pid = proc_fork();
    if (pid == 0) {
        int out = to >= 0 ? to : open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        dup2(out, 1);
        dup2(err, 2);
        unsetenv("KVCACHE_SOCKET");
        setenv("TMPDIR", temporary ? temporary : tmpdir_path(), 1);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

int ctl_end(pid_t pid)
{
    int status = proc_wait(pid, CTL_RUN_MS);

    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int ctl_run(const char *const args[])
{
    return ctl_end(ctl_start(-1, args));
}

static const char *read_text(const char *name, char *text, size_t size)
{
    FILE *file = fopen(tmpdir_file(name), "re");
    size_t n;

    ck_assert_ptr_nonnull(file);
    n = fread(text, 1, size - 1, file);
    ck_assert_msg(n < size - 1, "more output than expected");
    text[n] = '\0';
    fclose(file);
    return text;
}

const char *ctl_out(void)
{
    static char text[1 << 20];

    return read_text("out", text, sizeof(text));
}

const char *ctl_err(void)
{
    static char text[1 << 16];

    return read_text("err", text, sizeof(text));
}

json_t *ctl_json(void)
{
    json_error_t error;
    json_t *root = json_loads(ctl_out(), 0, &error);

    ck_assert_msg(root != NULL, "not JSON: %s", error.text);
    return root;
}

int64_t ctl_number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    ck_assert_msg(json_is_number(value), "no number %s", name);
    return (int64_t)json_number_value(value);
}

const char *ctl_text(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    ck_assert_msg(json_is_string(value), "no text %s", name);
    return json_string_value(value);
}

void ctl_expect_fields(const json_t *object, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(json_object_get(object, names[i]) != NULL, "no %s", names[i]);
}
