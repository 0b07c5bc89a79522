#!/usr/bin/env python3
"""How the vLLM connector names blocks, and its options."""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import types
from unittest import mock

import stand_in
import support
from stand_in import Request
from vllm_case import Case, prompt

from kvcache_client.vllm import chain
from kvcache_client.vllm.connector import _hashing
from kvcache_client.vllm.options import options_of
from kvcache_client.vllm.requests import Names as Naming
from kvcache_client.vllm.requests import State

VECTORS = os.path.join(support.ROOT, "tests", "unit", "chain.json")

# Of a file of vectors: the hashes that the package gives.
CHAIN = """
import json, sys
sys.path[:0] = [sys.argv[1]]
from kvcache_client.vllm import chain

def value(v):
    if isinstance(v, dict):
        return bytes.fromhex(v["bytes"])
    return [value(one) for one in v] if isinstance(v, list) else v

with open(sys.argv[2]) as f:
    blocks = json.load(f)["blocks"]
hashes = {None: chain.ROOT}
for b in blocks:
    hashes[b["name"]] = chain.link(hashes[b["parent"]], b["tokens"], value(b["extra"]))
print(" ".join(h.hex() for h in hashes.values()))
"""


def other_pythons():
    """Those that are found, and those that lie where this one does, each version in its folder."""
    names = [f"python3.{n}" for n in range(9, 15)]
    beside = os.path.join(os.path.dirname(sys.base_prefix), "*", "bin")
    found = [shutil.which(name) for name in names] + [
        path for name in names for path in glob.glob(os.path.join(beside, name))]
    return sorted({os.path.realpath(path) for path in found if path and os.access(path, os.X_OK)})


class Names(Case):
    def test_engines_with_random_hashes_meet(self):
        """As before vLLM had a fixed seed: hashes that differ in each process."""
        stand_in.install(fixed_seed=False)
        self.addCleanup(stand_in.install)
        daemon = self.daemon()
        tokens = prompt(30)
        self.engine(daemon).serve(Request(tokens, seed=b"one"))
        self.assertEqual(self.engine(daemon).serve(Request(tokens, seed=b"two")), 28)

    def test_engines_meet_whose_hashes_mean_the_same(self):
        """The same algorithm and seed; pickled tuples are those of one kind of Python, too."""
        config = stand_in.config({})

        def name(algorithm, seed, python):
            with mock.patch.dict(os.environ, PYTHONHASHSEED=seed), mock.patch(
                    "platform.python_version_tuple", lambda: python), mock.patch.object(
                    config.cache_config, "prefix_caching_hash_algo", algorithm):
                own, names = _hashing(config, None)
            self.assertFalse(own)
            return names

        old, new = ("3", "11", "7"), ("3", "12", "0")
        some = [(a, s, p) for a in ("sha256", "sha256_cbor", "xxhash_cbor") for s in "01"
                for p in (old, new)]
        self.assertEqual(len({name(*one) for one in some}), 2 * 2 + 2 + 2)
        self.assertEqual(name("sha256_cbor", "0", old), name("sha256_cbor", "0", new))
        self.assertEqual(name("sha256", "0", old), name("sha256", "0", ("3", "11", "9")))

    def test_secret_seeds_are_not_taken_for_shared_ones(self):
        """Hashes that are not cryptographic keep a random one beside vLLM's fixed seed."""
        config = stand_in.config({})
        for algorithm, own in (("sha256", False), ("xxhash", True), ("xxhash_cbor", True)):
            with mock.patch.object(config.cache_config, "prefix_caching_hash_algo", algorithm):
                self.assertEqual(_hashing(config, None)[0], own)

    def test_an_engine_has_blocks_that_have_no_names(self):
        """Of its own cache, in front of a request that is not saved."""
        class Unnamed(Request):
            block_hashes = ()

        side = self.engine(self.daemon(), extra={"own_hashes": False}).scheduler._scheduler
        request = Unnamed(prompt(30))
        self.assertEqual(side.matched(request, 8), (0, False))
        side.allocated(request, [list(range(1, 9))], 0)
        step = stand_in.step(
            new=[(request.request_id, [list(range(1, 9))], 8)], scheduled={request.request_id: 22})
        self.assertEqual(side.build(step).saves, [])

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
        own, its = (True, "kvcache_client chain 1"), _hashing(engine.config, None)
        for fields, found in (({"prefix_match_unit": 2}, own), ({"hash_block_size": 2}, own),
                              ({"prefix_match_unit": None, "hash_block_size": 4}, its)):
            with mock.patch.dict(engine.config.cache_config.__dict__, fields):
                self.assertEqual(_hashing(engine.config, None), found)
        self.assertNotEqual(own, its)

    def test_a_salt_is_not_an_adapter_of_that_name(self):
        """vLLM before 0.33 hashes both as bare words, and adapters without their path."""
        for own in (False, True):
            engine, tokens = self.engine(self.daemon(), extra={"own_hashes": own}), prompt(20)
            one = Request(tokens, adapter="a")
            engine.serve(one)
            other = Request(tokens, adapter="a")
            other.lora_request = types.SimpleNamespace(lora_name="a", lora_path="/b")
            for request in (Request(tokens, salt="a"), other):
                self.assertEqual(request.block_hashes[0], one.block_hashes[0])
                self.assertEqual(engine.serve(request), 0)
            self.assertEqual(engine.serve(Request(tokens, adapter="a")), 16)

    def test_images_belong_to_the_names_of_an_own_chain(self):
        """As vLLM says which of them a block has: the tokens in their places are the same."""
        def keys(request, first, end, inputs):
            some = [i.identifier for i in request.mm_features if first < i.end and i.begin < end]
            return tuple(some) or None, inputs

        def image(name):
            return [types.SimpleNamespace(identifier=name, begin=6, end=10)]

        engine, tokens = self.engine(self.daemon(), extra={"own_hashes": True}), prompt(20)
        with mock.patch("vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys", keys):
            engine.serve(Request(tokens, mm_features=image("a")))
            self.assertEqual(engine.serve(Request(tokens, mm_features=image("b"))), 4)
            self.assertEqual(engine.serve(Request(tokens)), 4)
            self.assertEqual(engine.serve(Request(tokens, mm_features=image("a"))), 16)

    def test_images_that_are_only_numbered_are_not_cached(self):
        """As vLLM does in an engine that caches neither prefixes nor inputs: other engines have the
        same numbers."""
        plain = stand_in.config

        def without(*arguments, **how):
            config = plain(*arguments, **how)
            config.cache_config.enable_prefix_caching = False
            return config

        daemon, tokens = self.daemon(), prompt(20)
        image = [types.SimpleNamespace(identifier="renderer0-mm-0-image-0")]
        with mock.patch.object(stand_in, "config", without):
            engine = self.engine(daemon)
        for _ in range(2):
            self.assertEqual(engine.serve(Request(tokens, mm_features=image)), 0)
        self.assertEqual(self.figures(daemon)["blocks"], 0)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 16)

    def test_models_may_have_any_name(self):
        """Of which the daemon shows some 60 bytes."""
        daemon, tokens = self.daemon(), prompt(30)
        for i in range(4):
            model = 50 * "\u044f\u6a21" + i * "x" + "\n"
            engine = self.engine(daemon, extra={"model": model})
            engine.serve(Request(tokens))
            self.assertEqual(engine.serve(Request(tokens)), 28)

    def F42_chain_vectors(self):
        """Equal in every process and every Python, and in C (unit/chain)."""
        with open(VECTORS) as f:
            vectors = json.load(f)
        wanted = " ".join([vectors["root"], *(b["hash"] for b in vectors["blocks"])])
        where = os.path.join(support.ROOT, "client", "python")
        for python, seed in [(sys.executable, "0"), *((p, "1") for p in other_pythons())]:
            said = subprocess.run(
                [python, "-c", CHAIN, where, VECTORS], env=dict(os.environ, PYTHONHASHSEED=seed),
                capture_output=True, text=True)
            if said.returncode != 127 or python == sys.executable:  # a name without a program
                self.assertEqual(said.stdout.strip(), wanted, said.stderr)

    def test_what_has_no_encoding_names_nothing(self):
        """Nor does it fail the engine, whatever a request brings."""
        self.assertEqual(chain.encode("\ud800"), b"s\3\0\0\0\xed\xa0\x80")
        names = Naming(4, True, lambda request, first, end, inputs: (request.salt, inputs))
        for tokens, salt, known in (([1, 2, 3, 4], "\ud800", 1), ([1, 2, 3, -1], None, 0),
                                    ([1, 2, 3, 1 << 32], None, 0), ([1, 2, 3, 4], 1.5, 0)):
            request = Request(tokens)
            request.salt = salt
            self.assertEqual(names.known(State(request, 1), 1), known)

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

    def test_options_that_cannot_be_so_are_named(self):
        """A bound of -1 ms would be one of weeks."""
        for name, value in (("lookup_ms", -1), ("save_ms", 1 << 32), ("log_s", -0.5),
                            ("retry_s", float("nan")), ("min_tokens", -1), ("lookup_ms", 0)):
            with self.assertRaisesRegex(ValueError, f"{name}: {value} is not in [01] to"):
                options_of({name: value})

support.main(__name__)
