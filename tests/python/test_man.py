#!/usr/bin/env python3
"""The manual pages: well formed, and complete beside the programs and the library."""

import json
import os
import re
import shutil
import subprocess
import unittest

import support

PAGES = ("kvcachectl.1", "libkvcache.3", "kvcached.conf.5", "kvcached.8")


def page(name):
    return os.path.join(support.ROOT, "build", "man", name)


def source(name):
    with open(page(name)) as f:
        return f.read()


def run(*command):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def program(name):
    return os.path.join(support.BUILD, name)


def read(name):
    """The page as a reader has it: without its markup, blanks as one."""
    plain = re.sub(".\b", "", run("mandoc", "-T", "ascii", page(name)))
    return " ".join(plain.split())


class Man(support.Case):
    def settings(self):
        """From a running daemon: what is in its table, not what --help makes of it."""
        said = run(program("kvcachectl"), "--socket", self.daemon().socket, "config", "--json")
        rows = {row["name"]: row["changes"] for row in json.loads(said)}
        self.assertEqual((rows["gpu-bytes"], rows["lease-time"]), ("restart", "now"))
        return rows

    def commands(self):
        names = re.findall(r"(?m)^  ([a-z-]+) ", run(program("kvcachectl"), "--help"))
        self.assertIn("status", names)
        return names

    @unittest.skipUnless(shutil.which("mandoc"), "no mandoc")
    def test_pages_are_well_formed(self):
        # Whether other pages are installed is no property of these.
        absent = re.compile(r"referenced manual not found: Xr ")
        for name in PAGES:
            found = subprocess.run(
                ["mandoc", "-T", "lint", page(name)], capture_output=True, text=True
            )
            left = [line for line in found.stdout.splitlines() if not absent.search(line)]
            self.assertEqual((left, found.stderr), ([], ""))
            self.assertNotRegex(source(name), r"(?m)^@|@[A-Z]+@")

    @unittest.skipUnless(shutil.which("mandoc"), "no mandoc")
    def test_pages_read_as_they_should(self):
        self.assertIn("--gpu-bytes SIZE memory of the GPU tier", read("kvcached.8"))
        self.assertIn("gpu-bytes = SIZE memory of the GPU tier", read("kvcached.conf.5"))
        self.assertIn("... until this much is. Default: 15%.", read("kvcached.conf.5"))
        self.assertIn("--seconds N how long [3600]", read("kvcachectl.1"))
        self.assertIn(
            "kvc_status kvc_unregister(kvc_client *client, kvc_part part);", read("libkvcache.3")
        )

    def test_every_setting_is_in_its_pages(self):
        for name in self.settings():
            self.assertRegex(source("kvcached.conf.5"), rf"(?m)^\.It Cm {name} No = Ar \S+\n\S")
            self.assertRegex(source("kvcached.8"), rf"(?m)^\.It Fl -{name} Ar \S+\n\S")

    def test_settings_that_can_change_say_so(self):
        text = source("kvcached.conf.5")
        items = dict(re.findall(r"(?ms)^\.It Cm (\S+) (.*?)(?=^\.)", text))
        for name, changes in self.settings().items():
            self.assertEqual("while the daemon runs" in items[name], changes == "now", name)

    def test_example_of_a_configuration_is_right(self):
        (example,) = re.findall(r"(?ms)^\.Bd -literal[^\n]*\n(.*?)^\.Ed", source("kvcached.conf.5"))
        path = os.path.join(self.folder, "kvcached.conf")
        with open(path, "w") as f:
            f.write(example)
        run(program("kvcached"), "--check-config", path)

    def test_every_command_and_its_options_are_in_the_page(self):
        parts = dict(re.findall(r"(?ms)^\.Ss (\S+)\n(.*?)(?=^\.S[sh] )", source("kvcachectl.1")))
        self.assertEqual(set(parts), set(self.commands()))
        for name, part in parts.items():
            text = run(program("kvcachectl"), name, "--help")
            options = set(re.findall(r"(?m)^  --([a-z-]+)", text)) - {"socket", "json", "help"}
            self.assertEqual(set(re.findall(r"(?m)^\.It Fl -([a-z-]+)", part)), options)

    def test_every_function_has_a_prototype_and_is_described(self):
        symbols = run("nm", "-D", "--defined-only", program("libkvcache.so.0"))
        functions = set(re.findall(r" T (kvc_\w+)", symbols))
        self.assertIn("kvc_lookup", functions)
        text = source("libkvcache.3")
        self.assertEqual(set(re.findall(r"(?m)^\.Fo (\w+)", text)), functions)
        self.assertEqual(set(re.findall(r"(?m)^\.Fn (\w+)", text)), functions)

    def test_every_status_is_described(self):
        with open(os.path.join(support.ROOT, "proto", "status.h")) as f:
            statuses = set(re.findall(r"(?m)^ +(KVC_\w+) = \d+,", f.read()))
        listed = re.findall(r"(?m)^\.It Dv (\w+)\n\S", source("libkvcache.3"))
        self.assertEqual(sorted(listed), sorted(statuses))


support.main(__name__)
