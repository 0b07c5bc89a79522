#!/usr/bin/env python3
"""The completion of kvcachectl, as bash asks it."""

import os
import re
import subprocess

import support

SCRIPT = os.path.join(support.ROOT, "build", "completion", "kvcachectl")
CTL = os.path.join(support.BUILD, "kvcachectl")


def run(*command, folder=None):
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def complete(*words, folder=None):
    """What may stand in place of the last word."""
    quoted = " ".join(f"'{word}'" for word in ("kvcachectl", *words))
    asks = (
        f"set -eu; source {SCRIPT}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _kvcachectl; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return set(run("bash", "-c", asks, folder=folder).split())


class Completion(support.Case):
    def test_commands(self):
        commands = set(re.findall(r"(?m)^  ([a-z-]+) ", run(CTL, "--help")))
        self.assertEqual(complete(""), commands | {"--socket", "--json", "--help", "--version"})
        self.assertEqual(complete("na"), {"namespaces"})
        self.assertEqual(complete("--socket", "a", "--json", "stat"), {"status"})

    def test_every_option_of_every_command(self):
        for name in re.findall(r"(?m)^  ([a-z-]+) ", run(CTL, "--help")):
            options = set(re.findall(r"(?m)^  (--[a-z-]+)", run(CTL, name, "--help")))
            self.assertEqual(complete(name, "--"), options, name)

    def test_values(self):
        folder = self.folder
        for name in ("one.keys", "other"):
            with open(os.path.join(folder, name), "w"):
                pass
        self.assertEqual(complete("flush", "--keys", "o", folder=folder), {"one.keys", "other"})
        self.assertEqual(complete("quota", "--gpu", "", folder=folder), set())
        self.assertEqual(complete("flush", "--keys", "one.keys", "--al", folder=folder), {"--all"})

    def test_nothing_is_known_of_nonsense(self):
        self.assertEqual(complete("nonsense", ""), set())
        self.assertEqual(complete("xyz"), set())


support.main(__name__)
