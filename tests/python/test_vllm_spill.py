#!/usr/bin/env python3
"""What the GPU tier has no room for goes to the host tier, beside compute."""

import dataclasses
import types

import support
from stand_in import FullAttentionSpec, MambaSpec, Request, SlidingWindowSpec, step
from vllm_case import Case, layer_by_layer, prompt, record

from kvcache_client.errors import BusyError, DeviceError
from kvcache_client.saves import KeyState, SaveEntry
from kvcache_client.vllm.connector import _writes_early
from kvcache_client.vllm.spill import merged, skipped
from kvcache_client.vllm.streams import NoStreams

ROOM = 3 / 4  # of the blocks of a save


class Recorder(NoStreams):
    """Copies are never over."""

    def __init__(self):
        self.said = []

    def side(self):
        return "side"

    def after_compute(self):
        self.said.append("side behind compute")

    def mark(self):
        return len(self.said)

    def passed(self, mark):
        return False

    def compute_after(self, mark):
        self.said.append("compute behind side")


class Short(Case):
    def short(self, engine):
        """The GPU tier has room for a part of each save. What it is asked: (stream, to_host, how
        many blocks)."""
        asked = []
        for worker in engine.workers:
            client = worker._worker._link.get()
            save = client.save_entries

            def some(entries, *, stream=None, to_host=False, no_wait=False, save=save, **how):
                self.assertTrue(no_wait)
                asked.append((stream, to_host, sum(len(e.blocks) for e in entries)))
                if not to_host:
                    entries = [dataclasses.replace(e, blocks=[
                        b if i < len(e.blocks) * ROOM else None for i, b in enumerate(e.blocks)])
                        for e in entries]
                return save(entries, stream=None, to_host=to_host, no_wait=no_wait, **how)

            client.save_entries = some
        return asked

    def served(self, specs=None, **how):
        daemon = self.daemon()
        engine, other = (self.engine(daemon, specs, **how) for _ in range(2))
        asked = self.short(engine)
        tokens = prompt(82)
        self.assertEqual(engine.serve(Request(tokens), chunk=32), 0)
        self.assertEqual(other.serve(Request(tokens)), 80)
        return engine, asked


class Spill(Short):
    def test_a_part_goes_to_the_host_tier(self):
        engine, asked = self.served()
        counts = engine.counts()
        self.assertEqual((counts["saved_blocks"], counts["spilled_blocks"]), (20, 5))
        self.assertEqual(counts["skipped_blocks"], 0)
        self.assertEqual([n for _, to_host, n in asked if to_host], [2, 2, 1])

    def test_of_two_ranks(self):
        self.served(ranks=2)

    def test_of_a_window(self):
        self.served([FullAttentionSpec(), SlidingWindowSpec()])

    def test_it_is_not_before_compute(self):
        """Whoever gets its blocks next waits until they have been read."""
        daemon = self.daemon()
        engine = self.engine(daemon)
        worker = engine.workers[0]._worker
        recorder = record(worker, Recorder())
        asked = self.short(engine)
        request = Request(prompt(34))
        engine.serve(request)
        self.assertEqual({(stream, to_host) for stream, to_host, _ in asked},
                         {(None, False), ("side", True)})
        self.assertEqual(recorder.said, ["side behind compute"])
        blocks, other = engine.tables[request.request_id][0], Request(prompt(6))
        for mine, waits in ((blocks[:2], 0), (blocks[6:8], 1)):
            engine.run(step(new=[(other.request_id, [mine], 0)], scheduled={}))
            self.assertEqual(recorder.said.count("compute behind side"), waits)

    def test_where_states_are_nothing_is_read_beside_the_next_step(self):
        """vLLM clears new blocks, and copies states to them, before it calls a connector."""
        specs = [FullAttentionSpec(), MambaSpec(mamba_cache_mode="all")]
        engine = self.engine(self.daemon(), specs)
        worker = engine.workers[0]._worker
        recorder = record(worker, Recorder())
        self.short(engine)
        engine.serve(Request(prompt(34)))
        self.assertGreater(engine.counts()["waits_for_copies"], 0)
        self.assertEqual(recorder.said[0], "side behind compute")
        self.assertEqual(recorder.said[-1], "compute behind side")

    def test_one_that_fails_leaves_its_blocks_skipped(self):
        engine = self.engine(self.daemon())
        self.short(engine)
        client = engine.workers[0]._worker._link.get()
        save = client.save_entries

        def busy(entries, *, to_host=False, **how):
            if to_host:
                raise BusyError("busy")
            return save(entries, to_host=to_host, **how)

        client.save_entries = busy
        engine.serve(Request(prompt(34)))
        counts = engine.counts()
        self.assertEqual((counts["skipped_blocks"], counts["spilled_blocks"]), (2, 0))
        self.assertEqual(counts["dropped_saves"], 1)

    def test_blocks_of_one_that_failed_may_still_be_read(self):
        """Of several copies the first may be on its way when another cannot be enqueued."""
        engine = self.engine(self.daemon())
        worker = engine.workers[0]._worker
        recorder = record(worker, Recorder())
        self.short(engine)
        client = worker._link.get()
        save = client.save_entries

        def fails_behind(entries, *, to_host=False, **how):
            given = save(entries, to_host=to_host, **how)
            if to_host:
                raise DeviceError("the copy of chunk 1 failed")
            return given

        client.save_entries = fails_behind
        request, other = Request(prompt(34)), Request(prompt(6))
        engine.serve(request)
        blocks = engine.tables[request.request_id][0]
        engine.run(step(new=[(other.request_id, [blocks[6:8]], 0)], scheduled={}))
        self.assertEqual(recorder.said.count("compute behind side"), 1)

    def test_there_is_none_without_a_host_tier(self):
        daemon = self.daemon("--host-bytes", "0")
        engine = self.engine(daemon)
        asked = self.short(engine)
        engine.serve(Request(prompt(34)))
        self.assertEqual([to_host for _, to_host, _ in asked if to_host], [])
        self.assertEqual(engine.counts()["skipped_blocks"], 2)


SpillByLayer = layer_by_layer(Spill)


class States(Case):
    def test_which_engines_write_to_new_blocks_before_they_call(self):
        space = types.SimpleNamespace
        for pieces, cache, early in ((None, space(), False), (2, space(), True),
                                     (None, space(needs_kv_cache_zeroing=False), False),
                                     (None, space(needs_kv_cache_zeroing=True), True)):
            config = space(cache_config=space(prefix_match_unit=pieces))
            self.assertEqual(_writes_early(config, cache), early)

    def test_those_that_were_skipped_are_asked_about_again(self):
        hit, saved, skip = KeyState.HIT, KeyState.SAVED, KeyState.SKIPPED
        keys = [bytes([i]) * 16 for i in range(5)]
        entries = [SaveEntry(None, b"".join(keys[:3]), [7, None, 9]),
                   SaveEntry(None, b"".join(keys[3:]), [4, 5])]
        states = bytes([skip, skip, hit, saved, skip])
        again = skipped(entries, states)
        self.assertEqual([(e.keys, e.blocks) for e in again], [(keys[0], [7]), (keys[4], [5])])
        self.assertEqual(merged(entries, states, bytes([saved, skip])),
                         bytes([saved, skip, hit, saved, skip]))
        self.assertEqual(skipped(entries, bytes([hit, skip, hit, hit, hit])), [])


support.main(__name__)
