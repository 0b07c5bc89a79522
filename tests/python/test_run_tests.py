#!/usr/bin/env python3
"""What runs the tests: that it reports what a program of them leaves behind, and only that."""

import os
import re
import subprocess

import support

RUNNER = os.path.join(support.ROOT, "scripts", "run-tests")
PASSES = 'printf "1..1\\nok 1 - x:x:passes: Passed\\n" >"$CK_TAP_LOG_FILE_NAME"\n'

LIBRARY = "static __thread long word; long *word_of(void); long *word_of(void) { return &word; }"
# Its threads' words are 64 bytes apart, and some are 16 bytes into a page.
THREADS = """
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
static long *(*word_of)(void);
static pthread_barrier_t all;
static void *run(void *arg)
{
    *word_of() = 1;
    pthread_barrier_wait(&all);
    for (;;)
        pause();
    return arg;
}
int main(int argc, char **argv)
{
    enum { N = 300 };
    pthread_t thread;
    void *library = dlopen(argv[argc - 1], RTLD_NOW);

    if (!library)
        return 2;
    *(void **)&word_of = dlsym(library, "word_of");
    pthread_barrier_init(&all, NULL, N + 1);
    for (int i = 0; i < N; i++)
        if (pthread_create(&thread, NULL, run, NULL))
            return 3;
    pthread_barrier_wait(&all);
    return 0;
}
"""


def runs(pid):
    """One that has ended and that nobody has waited for has no command."""
    try:
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read() != ""
    except FileNotFoundError:
        return False


class RunTests(support.Case):
    def run_program(self, text):
        """What is said of a program that passes its one test and does `text`."""
        program = os.path.join(self.folder, "program")
        with open(program, "w") as f:
            f.write("#!/bin/bash\n" + PASSES + text)
        os.chmod(program, 0o755)
        env = {k: v for k, v in os.environ.items() if k not in ("ASAN_OPTIONS", "LD_PRELOAD")}
        done = subprocess.run(
            [RUNNER, program], capture_output=True, text=True, cwd=support.ROOT, env=env
        )
        said = re.findall(r"(?m)^(\d+) passed, (\d+) failed, (\d+) skipped$", done.stdout)
        self.assertEqual(len(said), 1, done.stdout)
        self.assertEqual(done.returncode, 0 if said[0][1] == "0" else 1)
        return said[0][:2], done.stdout

    def test_nothing_is_left(self):
        said, _ = self.run_program('touch "$TMPDIR/x"; rm "$TMPDIR/x"\n')
        self.assertEqual(said, ("1", "0"))

    def test_a_file_that_is_left_is_a_failure(self):
        said, text = self.run_program('mkdir "$TMPDIR/folder"; touch "$TMPDIR/folder/x"\n')
        self.assertEqual(said, ("1", "1"))
        folder = re.findall(r"(?m)^left behind: (\S+)/folder/x$", text)
        self.assertEqual(len(folder), 1, text)
        self.assertFalse(os.path.exists(folder[0]), "and is removed")

    def test_a_process_that_is_left_is_a_failure(self):
        said, text = self.run_program("sleep 60 &\n")
        self.assertEqual(said, ("1", "1"))
        left = re.findall(r"(?m)^left behind: process (\d+): sleep 60 $", text)
        self.assertEqual(len(left), 1, text)
        support.until(lambda: not runs(left[0]), "and is ended")

    def compile(self, name, text, *options):
        """-> the path of a program or library `name` of `text`."""
        path = os.path.join(self.folder, name)
        command = ["gcc", "-x", "c", "-", "-o", path, *options]
        subprocess.run(command, input=text, text=True, check=True)
        return path

    def test_leaks_are_looked_for_beside_threads_of_a_loaded_library(self):
        library = self.compile("library.so", LIBRARY, "-shared", "-fPIC")
        program = self.compile("threads", THREADS, "-fsanitize=address")
        said, text = self.run_program(f"{program} {library}\n")
        self.assertEqual(said, ("1", "0"), text)

    def test_a_leak_is_a_failure(self):
        leaks = "#include <stdlib.h>\nint main(void) { return malloc(1) == 0; }"
        program = self.compile("leaks", leaks, "-O0", "-fsanitize=address")
        said, text = self.run_program(f"{program}\n")
        self.assertEqual(said, ("1", "1"), text)
        self.assertIn("detected memory leaks", text)


support.main(__name__)
