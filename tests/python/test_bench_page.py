#!/usr/bin/env python3
"""The commands of tests/gpu/SERVING.md are understood by the benchmarks."""

import importlib
import os
import shlex
import sys
import unittest
from unittest import mock

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "gpu"))

import kit

with open(os.path.join(support.ROOT, "tests", "gpu", "SERVING.md")) as page:
    COMMANDS = [shlex.split(line, comments=True)[1:]
                for line in page if line.startswith("    bench ")]


class Page(unittest.TestCase):
    def understood(self, program, *arguments):
        """It goes as far as to look for a GPU, if it knows all options and names."""
        main = importlib.import_module(f"bench_{program}"[: -len(".py")]).main
        with mock.patch.object(sys, "argv", [program, *arguments]), \
                mock.patch.object(kit, "need_gpus", side_effect=kit.Waived):
            self.assertRaises(kit.Waived, main)

    def test_each_command(self):
        self.assertEqual({c[0] for c in COMMANDS}, {"serving.py", "batch.py", "vllm.py"})
        for command in COMMANDS:
            with self.subTest(command):
                self.understood(*command)

    def test_others_are_not(self):
        for command in (["batch.py", "--ways", "none,some"], ["batch.py", "--workload", "warm"],
                        ["serving.py", "--ways", "own"], ["vllm.py", "--cold"]):
            with self.subTest(command), mock.patch.object(sys, "stderr"), \
                    self.assertRaises(SystemExit) as ended:
                self.understood(*command)
            self.assertEqual(ended.exception.code, 2)


support.main(__name__)
