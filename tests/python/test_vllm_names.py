#!/usr/bin/env python3
"""How the vLLM connector names blocks, and its options."""

import hashlib
import os
import shutil
import subprocess
import sys
from unittest import mock

import stand_in
import support
from stand_in import Request
from vllm_case import Case, prompt

from kvcache_client.vllm import chain
from kvcache_client.vllm.connector import _hashing
from kvcache_client.vllm.options import options_of

VECTORS = ["a6b1a69b4c2da042", "64aa33b59f9f8bd8", "12a375dab6f98df3"]


class Names(Case):
    def test_engines_with_random_hashes_meet(self):
        """As before vLLM had a fixed seed: hashes that differ in each process."""
        stand_in.install(fixed_seed=False)
        self.addCleanup(stand_in.install)
        daemon = self.daemon()
        tokens = prompt(30)
        self.engine(daemon).serve(Request(tokens, seed=b"one"))
        self.assertEqual(self.engine(daemon).serve(Request(tokens, seed=b"two")), 28)

    def test_hashes_of_pieces_of_blocks_name_nothing(self):
        """vLLM can be told to hash shorter pieces than blocks (prefix_match_unit): the first hashes
        of two prompts are equal, their first blocks are not."""
        class Fine(Request):
            @property
            def block_hashes(self):
                tokens = self.all_token_ids
                return [hashlib.sha256(repr(tokens[: i + 2]).encode()).digest()
                        for i in range(0, len(tokens) - 1, 2)]

        daemon = self.daemon()
        tokens = prompt(30)
        other = tokens[:6] + prompt(24)
        engine = self.engine(daemon, extra={"own_hashes": False})
        for one in (tokens, other, tokens):
            self.assertEqual(engine.serve(Fine(one)), 0)
        with mock.patch.dict(
                engine.config.cache_config.__dict__, {"prefix_match_unit": 2}):
            self.assertEqual(_hashing(engine.config, None), (True, "kvcache_client chain 1"))

    def F42_chain_vectors(self):
        """Equal in every process and every Python."""
        first = chain.link(chain.ROOT, [1, 2, 3, 4])
        second = chain.link(first, [5, 6, 7, 8], ("adapter", ("image", -3), b"x", None, True))
        self.assertEqual(
            [chain.ROOT.hex()[:16], first.hex()[:16], second.hex()[:16]], VECTORS)
        code = ("import sys; sys.path[:0] = [sys.argv[1]]\n"
                "from kvcache_client.vllm import chain\n"
                "print(chain.link(chain.ROOT, [1, 2, 3, 4]).hex())")
        where = os.path.join(support.ROOT, "client", "python")
        others = [p for p in (shutil.which(f"python3.{n}") for n in range(9, 15)) if p]
        for python, seed in [(sys.executable, "0"), *((p, "1") for p in others)]:
            said = subprocess.run(
                [python, "-c", code, where], env=dict(os.environ, PYTHONHASHSEED=seed),
                capture_output=True, text=True)
            if said.returncode != 127 or python == sys.executable:  # a name without a program
                self.assertEqual(said.stdout.strip(), first.hex(), said.stderr)

    def test_different_extra_keys_give_different_hashes(self):
        values = [None, 0, "", b"", (), (0,), ("",), (("",),), ("a", "b"), ("ab",), 1, True, "1",
                  (1, 2), ((1,), 2), (1, (2,))]
        found = {chain.link(chain.ROOT, [1], v) for v in values}
        self.assertEqual(len(found), len(values))
        with self.assertRaises(TypeError):
            chain.encode(1.5)

    def test_options_that_do_not_exist_are_named(self):
        with self.assertRaisesRegex(ValueError, "no option sockt"):
            options_of({"sockt": "x"})
        with self.assertRaisesRegex(ValueError, "lookup_ms: 'x'"):
            options_of({"lookup_ms": "x"})
        with self.assertRaisesRegex(ValueError, "save: 1"):
            options_of({"save": 1})

support.main(__name__)
