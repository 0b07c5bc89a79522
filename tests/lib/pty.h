// A program on a terminal of its own, whose keys are pressed and whose screen is read here.
#ifndef KVC_TESTS_LIB_PTY_H
#define KVC_TESTS_LIB_PTY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pty {
    pid_t pid;
    int fd;
    size_t n;
    char text[1 << 18]; // all that it has written so far, with a NUL
};

// kvcachectl with these arguments. environment: "NAME=VALUE" in addition, or NULL.
void pty_start(struct pty *pty, const char *const args[], int rows, int columns,
               const char *environment);

// Reads until `text` comes behind place `from` of what was written: the place behind it. Fails the
// test when it does not.
size_t pty_expect(struct pty *pty, size_t from, const char *text);
void pty_press(struct pty *pty, const char *keys);

// Whether the terminal waits for lines and echoes them, as at first.
bool pty_is_usual(const struct pty *pty);

// Waits until it has ended, reads the rest, and closes it: the status of waitpid().
int pty_end(struct pty *pty);

// The widest line of a text, in columns, without its escape sequences.
size_t pty_widest(const char *text);

#endif
