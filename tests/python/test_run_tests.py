#!/usr/bin/env python3
"""What runs the tests: that it reports what a program of them leaves behind."""

import os
import re
import subprocess

import support

RUNNER = os.path.join(support.ROOT, "scripts", "run-tests")
PASSES = 'printf "1..1\\nok 1 - x:x:passes: Passed\\n" >"$CK_TAP_LOG_FILE_NAME"\n'


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
        done = subprocess.run([RUNNER, program], capture_output=True, text=True, cwd=support.ROOT)
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


support.main(__name__)
