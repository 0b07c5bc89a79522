#!/usr/bin/env python3
"""What client/python/README.md says of the vLLM connector is there, and what is there it says."""

import dataclasses
import os
import re
from unittest import mock

import support
from stand_in import Request
from vllm_case import Case, prompt

from kvcache_client.vllm import breakeven
from kvcache_client.vllm.options import Options

with open(os.path.join(support.ROOT, "client", "python", "README.md")) as page:
    PAGE = page.read()
SOURCES = os.path.join(support.ROOT, "client", "python", "kvcache_client", "vllm")


def rows(head):
    """Names in the first column of the table that begins so."""
    table = PAGE[PAGE.index(f"| {head} | |\n") :].split("\n\n")[0].split("\n")[2:]
    return [name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])]


class Page(Case):
    def test_options(self):
        self.assertEqual(sorted(rows("option")), sorted(f.name for f in dataclasses.fields(Options)))

    def test_defaults(self):
        """Those that are numbers or words."""
        table = PAGE[PAGE.index("| option | |\n") :].split("\n\n")[0]
        said = dict(re.findall(r"`(\w+)` \[(\d+|true|false)[\]:]", table))
        both = re.search(r"`(\w+)`, `(\w+)` \[true\]", table)
        said.update(dict.fromkeys(both.groups(), "true"))
        are = {f.name: str(f.default).lower().removesuffix(".0") for f in dataclasses.fields(Options)}
        with open(os.path.join(support.ROOT, "proto", "limits.h")) as header:
            are["save_ms"] = re.search(r"KVC_SAVE_REPLY_MS +(\d+)", header.read()).group(1)
        self.assertGreater(len(said), 10)
        self.assertEqual(said, {name: are[name] for name in said})

    def test_statistics(self):
        engine = self.engine(self.daemon())
        figures = [f"now_{name}" for name in [*breakeven.BreakEven().figures(), "synchronous"]]
        self.assertEqual(sorted(rows("`scheduler_...`")),
                         sorted([*engine.counts("scheduler"), *figures]))
        self.assertEqual(sorted(rows("`worker_...`")), sorted(engine.counts()))

    def test_lines_of_the_log(self):
        sources = ""
        for name in os.listdir(SOURCES):
            if name.endswith(".py"):
                with open(os.path.join(SOURCES, name)) as source:
                    sources += source.read()
        said = re.findall(r"`(kvcached: [a-z ]+)", PAGE)
        self.assertGreater(len(said), 1)
        for line in said:
            self.assertIn(line, sources)


class Role(Case):
    """kv_role, and the options of the same effect."""

    def served(self, **how):
        """What a second request of a prompt loads, and what a third one does in another engine."""
        daemon, tokens = self.daemon(), prompt(30)
        engine, other = self.engine(daemon, **how), self.engine(daemon)
        engine.serve(Request(tokens))
        return engine.serve(Request(tokens)), other.serve(Request(tokens))

    def test_a_producer_does_not_load(self):
        for how in ({"kv_role": "kv_producer"}, {"extra": {"load": False}}):
            self.assertEqual(self.served(**how), (0, 28))

    def test_a_consumer_does_not_save(self):
        for how in ({"kv_role": "kv_consumer"}, {"extra": {"save": False}}):
            self.assertEqual(self.served(**how), (0, 0))
        daemon, tokens = self.daemon(), prompt(30)
        self.engine(daemon).serve(Request(tokens))
        self.assertEqual(self.engine(daemon, kv_role="kv_consumer").serve(Request(tokens)), 28)

    def test_both(self):
        self.assertEqual(self.served(kv_role="kv_both"), (28, 28))


class LogLine(Case):
    def test_an_engine_that_ends_says_what_happened(self):
        """However soon."""
        engine = self.engine(self.daemon(), extra={"log_s": 1000})
        engine.serve(Request(prompt(30)))
        with self.assertLogs("kvcache_client.vllm", "INFO") as said:
            engine.close()
            engine.close()
        said = [line for line in said.output if "saved_blocks=7" in line or "lookups=1" in line]
        self.assertEqual(len(said), 2, said)

    def test_an_engine_that_ends_leaves_its_sessions(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        sides = [engine.scheduler._scheduler, engine.workers[0]._worker]
        self.assertTrue(all(side._link.get() for side in sides))
        engine.close()
        for side in sides:
            self.assertIsNone(side._link.get())
            self.assertEqual(side._link._client.fileno(), -1)

    def test_a_daemon_that_stays_away_is_told_of_once(self):
        """And again when it has been there, or after a minute."""
        engine = self.engine(self.daemon(), extra={"retry_s": 0.001})
        link = engine.scheduler._scheduler._link
        self.addCleanup(link._client.close)
        reconnect = mock.Mock()
        link._client = mock.Mock(reconnect=reconnect)
        for _ in range(2):
            reconnect.reset_mock()
            reconnect.side_effect = OSError("away")
            with self.assertLogs("kvcache_client.vllm", "WARNING") as said:
                link.lost(OSError("lost"))
                support.until(lambda: link.get() or reconnect.call_count > 3, "no attempts")
            self.assertEqual(sum("away; trying again" in line for line in said.output), 1)
            reconnect.side_effect = None
            support.until(link.get, "not connected")


support.main(__name__)
