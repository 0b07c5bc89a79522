#!/usr/bin/env python3
"""Nothing that happens to the daemon reaches a request of an engine with the vLLM connector."""

import logging
import os
import signal
import threading
import time
from unittest import mock

import support
from stand_in import TOKENS, Request, step
from vllm_case import Case, layer_by_layer, prompt, record

from kvcache_client import Client, library
from kvcache_client.errors import NoMemoryError, SessionError
from kvcache_client.parts import Part
from kvcache_client.vllm.endings import LATE_S


class Faults(Case):
    def test_a_daemon_that_comes_back_with_other_tiers(self):
        daemon = self.daemon()
        engine = self.engine(daemon)
        worker = engine.workers[0]._worker
        self.assertFalse(worker._host_only)
        daemon.kill()
        daemon._command += ["--gpu-bytes", "0"]
        daemon.start()
        tokens = prompt(30)

        def hits():
            time.sleep(0.02)
            return engine.serve(Request(tokens)) == 28

        support.until(hits, "no hit after the daemon came back")
        self.assertTrue(worker._host_only)

    def test_a_daemon_that_is_killed_and_comes_back(self):
        daemon = self.daemon()
        engine = self.engine(daemon, ranks=2)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertEqual(engine.serve(Request(tokens)), 28)
        request = Request(tokens)
        engine.scheduler.get_num_new_matched_tokens(request, 0)
        daemon.kill()
        begin = time.monotonic()
        for _ in range(5):
            self.assertEqual(engine.serve(Request(tokens)), 0)
        engine.finish(request)
        self.assertLess(time.monotonic() - begin, 5 * support.MULTIPLIER)
        daemon.start()

        def hits():
            time.sleep(0.02)
            return engine.serve(Request(tokens)) == 28

        support.until(hits, "no hit after the daemon came back")

    def test_a_lease_of_a_session_that_has_ended_is_not_given_out(self):
        """However short a time ago it was granted."""
        daemon = self.daemon()
        engine = self.engine(daemon)
        tokens, link = prompt(30), engine.scheduler._scheduler._link
        engine.serve(Request(tokens))
        request, now = Request(tokens), time.monotonic()
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (28, False))
        daemon.kill()
        daemon.start()
        link.lost(SessionError("lost"))
        support.until(link.get, "not connected")
        with mock.patch("time.monotonic", lambda: now):
            found = engine.scheduler.get_num_new_matched_tokens(request, 0)
        self.assertEqual(found, (0, False))
        engine.finish(request)

    def test_a_daemon_that_starts_last(self):
        daemon = self.daemon()
        daemon.stop()
        engine = self.engine(daemon, extra={"connect_ms": 50})
        self.assertEqual(engine.serve(Request(prompt(20))), 0)
        daemon.start()
        tokens = prompt(30)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")

    def test_a_lookup_that_is_late_is_a_miss(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lookup_ms": 30})
        tokens = prompt(30)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            found = engine.scheduler.get_num_new_matched_tokens(Request(tokens), 0)
            took = time.monotonic() - begin
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(found, (0, False))
        self.assertLess(took, 1 * support.MULTIPLIER)
        self.assertEqual(engine.counts("scheduler")["late_lookups"], 1)

    def test_what_ends_behind_a_late_lookup_is_no_hit(self):
        """Of a prompt that nobody had, and that is there when its lease, if any, is ended."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lookup_ms": 30})
        asked = engine.scheduler.get_num_new_matched_tokens

        def late(*arguments):
            daemon.process.send_signal(signal.SIGSTOP)
            try:
                return asked(*arguments)
            finally:
                daemon.process.send_signal(signal.SIGCONT)

        with mock.patch.object(engine.scheduler, "get_num_new_matched_tokens", late):
            self.assertEqual(engine.serve(Request(prompt(30))), 0)
        self.assertEqual(engine.counts("scheduler")["late_lookups"], 1)
        endings = engine.scheduler._scheduler._endings
        support.until(lambda: engine.run(step()) and not endings._states, "not ended")
        figures = self.figures(daemon)
        self.assertEqual((figures["blocks"], figures["hits.gpu"], figures["leases"]), (7, 0, 0))

    def test_a_daemon_that_does_not_answer_is_left_alone(self):
        """However long it hangs, few answers are waited for."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lookup_ms": 30, "save_ms": 30})
        tokens = prompt(30)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")
        before = dict(engine.counts("scheduler")), dict(engine.counts())
        engine.settle = lambda: None
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            for _ in range(60):
                self.assertEqual(engine.serve(Request(tokens)), 0)
            took = time.monotonic() - begin
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        late = (engine.counts("scheduler")["late_lookups"] - before[0]["late_lookups"]
                + engine.counts()["dropped_saves"] - before[1]["dropped_saves"])
        self.assertGreater(late, 1)
        asked = engine.counts("scheduler")["lookups"] - before[0]["lookups"]
        self.assertLess(asked, 4 + 2 * max(1, took) + 8)  # pauses are doubled, to a second
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit after it went on")

    def test_leases_that_end_while_the_daemon_does_not_answer_wait_for_one_of_them(self):
        """As when many requests are aborted at once. They end when it goes on."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lookup_ms": 30, "lease_ms": 600000})
        tokens, check, released = prompt(30), Client._check, []
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")
        many = [Request(tokens) for _ in range(40)]
        for one in many:
            support.until(lambda: engine.scheduler.get_num_new_matched_tokens(one, 0)[0] == 28,
                          "no hit")

        def counted(client, call, *arguments):
            if call == "kvc_release":
                released.append(call)
            return check(client, call, *arguments)

        daemon.process.send_signal(signal.SIGSTOP)
        try:
            with mock.patch.object(Client, "_check", counted):
                begin = time.monotonic()
                for one in many:
                    engine.finish(one)
                took = time.monotonic() - begin
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertLessEqual(len(released), 1 + took / LATE_S)

        def ended():
            engine.run(step())
            return self.figures(daemon)["leases"] == 0

        support.until(ended, "leases that nobody ends")

    def test_loads_behind_one_that_is_late_are_given_up(self):
        """A daemon that hangs behind the lookup: the requests of a step do not wait one by one."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"lookup_ms": 20})
        tokens = prompt(30)
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")
        many = [Request(tokens[:n]) for n in range(30, 20, -1)]
        found = [engine.admit(r)[0] for r in many]
        self.assertGreater(min(found), 0)
        new = [(r.request_id, engine.tables[r.request_id], n) for r, n in zip(many, found)]
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            invalid, _ = engine.run(
                step(new=new, scheduled={r.request_id: r.num_tokens - n
                                         for r, n in zip(many, found)}))
            took = time.monotonic() - begin
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(len(invalid), sum(found) // TOKENS)
        self.assertLess(took, 1 * support.MULTIPLIER)  # of the connect time-out
        for r in many:
            engine.finish(r)

    def test_an_engine_that_starts_without_a_daemon_waits_for_one_time_out(self):
        daemon = self.daemon()
        daemon.stop()
        begin = time.monotonic()
        engine = self.engine(daemon, extra={"connect_ms": 200})
        for _ in range(20):
            self.assertEqual(engine.serve(Request(prompt(20))), 0)
        # A worker's and a scheduler's, each a process of its own in vLLM.
        self.assertLess(time.monotonic() - begin, 2 * (0.2 + 1) * support.MULTIPLIER)
        daemon.start()

    def test_new_weights_end_what_was_saved_with_the_old_ones(self):
        """vLLM resets the connector when its weights change: all engines of the model take part
        in a new epoch, and what was under way is not published."""
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        worker = engine.workers[0]._worker
        stale = other.workers[0]._worker._parts[0]
        self.assertTrue(engine.scheduler.reset_cache())
        engine.row = lambda r, p, layer, rank, row=type(engine).row: row(
            engine, r, p, layer + 100, rank)
        self.assertEqual(engine.serve(Request(tokens)), 0)

        def found():  # the parts of the old epoch are refused, and made anew beside the steps
            n = engine.serve(Request(tokens))
            self.assertIn(n, (0, 28))
            return n == 28

        support.until(found, "nothing is found")
        self.assertGreater(worker.counts["loaded_blocks"], 0)
        self.assertIs(other.workers[0]._worker._parts[0], stale)

    def test_nobody_waits_while_a_daemon_is_tried_again(self):
        """Which may take the whole connect time-out, each time."""
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"retry_s": 0})
        tokens, gate, tried = prompt(30), threading.Event(), set()
        engine.serve(Request(tokens))
        self.addCleanup(gate.set)
        links = [side._link for side in (engine.scheduler._scheduler, engine.workers[0]._worker)]

        def reconnect(client):
            tried.add((client, threading.current_thread()))
            gate.wait(20)
            return again(client)

        again = Client.reconnect
        with mock.patch.object(Client, "reconnect", reconnect):
            for link in links:
                link.lost(SessionError("lost"))
            engine.settle = lambda: None
            for one in (tokens, prompt(30), tokens):
                self.assertEqual(engine.serve(Request(one)), 0)
            support.until(lambda: len(tried) == 2, tried)
            self.assertNotIn(threading.main_thread(), {thread for _, thread in tried})
            gate.set()
            support.until(lambda: all(link.get() for link in links), "not connected")
        support.until(lambda: engine.serve(Request(tokens)) == 28, "no hit")

    def test_a_daemon_that_is_away_is_not_tried_in_every_step(self):
        daemon = self.daemon()
        engine = self.engine(daemon, extra={"retry_s": 600})
        link = engine.scheduler._scheduler._link
        with mock.patch.object(Client, "reconnect", side_effect=SessionError("away")) as tried, (
                mock.patch.object(link._closed, "wait", return_value=True)) as wait:
            link.lost(SessionError("lost"))
            self.assertIsNone(link.get())
            link._thread.join()  # as if it were closed now, in which the thread waits
            for _ in range(5):
                self.assertIsNone(link.get())
        self.assertEqual((tried.call_count, wait.call_args_list), (1, [mock.call(600)]))

    def test_nobody_waits_until_a_flushed_namespace_is_registered_again(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        other.scheduler.reset_cache()
        gate, renew = threading.Event(), Part.renew
        self.addCleanup(gate.set)
        with mock.patch.object(Part, "renew", lambda part: gate.wait(20) and renew(part)):
            # Its lookup and its saves find the flush; nothing goes on before the gate is open.
            engine.settle = lambda: None
            self.assertEqual(engine.serve(Request(tokens)), 0)
            self.assertEqual(engine.serve(Request(tokens)), 0)
            self.assertFalse(gate.is_set())
            gate.set()
            sides = [engine.scheduler._scheduler, engine.workers[0]._worker]
            support.until(lambda: all(side._link.get() for side in sides), "not registered")
        engine.serve(Request(tokens))
        self.settled(daemon)
        self.assertEqual(engine.serve(Request(tokens)), 28)

    def test_an_abort_while_blocks_are_loaded_beside_the_steps(self):
        daemon = self.daemon("--gpu-bytes", "0")
        engine = self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        request = Request(tokens)
        self.assertEqual(engine.admit(request), (28, True))
        engine.finish(request)  # vLLM keeps its blocks until the load is told to be over
        done = set()
        for _ in range(3):
            done |= engine.run(step())[1]
        self.assertEqual(done, {request.request_id})
        self.settled(daemon)

    def test_a_load_that_is_refused_here_ends_its_lease(self):
        """Before the daemon is asked, as without memory to look at its blocks."""
        daemon = self.daemon("--gpu-bytes", "0")
        engine = self.engine(daemon, extra={"lease_ms": 60000})
        tokens = prompt(30)
        engine.serve(Request(tokens))
        with mock.patch.object(engine.workers[0]._worker._link.get(), "load",
                               side_effect=NoMemoryError("no memory")):
            engine.serve(Request(tokens))
        self.assertEqual(engine.counts()["failed_loads"], 1)
        self.settled(daemon)

    def test_a_flush_ends_what_waits_for_room(self):
        """The lease of a request that waits is asked about again before long."""
        daemon = self.daemon()
        engine, other = (self.engine(daemon, extra={"lease_ms": 60000}) for _ in range(2))
        tokens = prompt(30)
        request = Request(tokens)
        engine.serve(Request(tokens))
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (28, False))
        other.scheduler.reset_cache()
        support.until(
            lambda: engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False),
            "a hit of what was flushed")
        engine.finish(request)
        self.settled(daemon)

    def test_a_reset_makes_everything_a_miss(self):
        daemon = self.daemon()
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.assertTrue(engine.scheduler.reset_cache())
        self.assertEqual(engine.serve(Request(tokens)), 0)
        self.assertEqual(other.serve(Request(tokens)), 0)
        support.until(lambda: other.serve(Request(tokens)) == 28, "never saved again")

    def test_a_full_daemon_slows_nobody(self):
        daemon = self.daemon("--gpu-bytes", "2M", "--host-bytes", "2M")
        engine = self.engine(daemon)
        for _ in range(60):
            engine.serve(Request(prompt(60)))
        self.assertLessEqual(self.figures(daemon)["tiers.gpu.used_bytes"], 2 << 20)

    def test_loaded_from_the_host_tier_beside_the_steps(self):
        daemon = self.daemon("--gpu-bytes", "0")
        engine, other = self.engine(daemon), self.engine(daemon)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        self.settled(daemon)
        request = Request(tokens)
        self.assertEqual(other.admit(request), (28, True))
        other.finish(request)
        other.run(step())
        self.assertEqual(other.serve(Request(tokens)), 28)
        self.settled(daemon)

    def test_saves_to_the_host_tier_are_not_before_compute(self):
        """They are on the side stream; blocks that are still read are not given to compute before
        that is over, whoever gets them: another request, or one that took them by preemption."""
        from kvcache_client.vllm.streams import NoStreams

        class Recorder(NoStreams):
            def __init__(self):
                self.said, self.over = [], False

            def side(self):
                self.said.append("side")

            def compute(self):
                self.said.append("compute")

            def after_compute(self):
                self.said.append("side behind compute")

            def mark(self):
                return len(self.said)

            def passed(self, mark):
                return self.over

            def compute_after(self, mark):
                self.said.append("compute behind side")

        daemon = self.daemon("--gpu-bytes", "0")
        engine = self.engine(daemon)
        worker = engine.workers[0]._worker
        recorder = record(worker, Recorder())
        request = Request(prompt(30))
        engine.serve(request)
        self.assertNotIn("compute behind side", recorder.said)
        if not self.by_layer:
            self.assertLess(recorder.said.index("side behind compute"),
                            recorder.said.index("side"))
        blocks = engine.tables[request.request_id]
        worker._reading.add(frozenset(blocks[0]))  # on the host a copy is over at once
        other = Request(prompt(30))
        engine.run(step(new=[(other.request_id, blocks, 0)], scheduled={other.request_id: 1}))
        self.assertIn("compute behind side", recorder.said)
        self.assertGreater(engine.counts()["waits_for_copies"], 0)
        recorder.over, recorder.said[:] = True, []
        engine.run(step(new=[(other.request_id, blocks, 0)], scheduled={other.request_id: 1}))
        self.assertNotIn("compute behind side", recorder.said)

    def test_another_failure_policy_is_warned_of(self):
        with self.assertLogs("kvcache_client.vllm", "WARNING") as said:
            self.engine(self.daemon(), kv_load_failure_policy="fail")
        self.assertIn("kv_load_failure_policy is not recompute", said.output[0])

    def test_lines_go_where_vllms_own_go(self):
        """vLLM gives a handler to its own loggers, and none to the root."""
        said = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())
        theirs, ours = logging.getLogger("vllm"), logging.getLogger("kvcache_client")
        theirs.addHandler(handler)
        theirs.setLevel("INFO")
        self.addCleanup(theirs.removeHandler, handler)
        self.addCleanup(lambda: ours.handlers.clear())
        engine = self.engine(self.daemon(), extra={"log_s": 1e-6})
        engine.serve(Request(prompt(30)))
        engine.serve(Request(prompt(30)))
        self.assertIn("kvcached: connected, device host", said)
        for what in ("scheduler_lookups=1", "worker_saved_blocks=7"):
            self.assertTrue(any(what in line for line in said), said)

    def test_without_the_library_the_engine_runs_on(self):
        daemon = self.daemon()
        with mock.patch.object(library, "_loaded", None), mock.patch.dict(
                os.environ, KVCACHE_LIBRARY="/nowhere/libkvcache.so.0"), self.assertLogs(
                "kvcache_client.vllm", "ERROR") as said:
            engine = self.engine(daemon)
            engine.settle = lambda: None  # it is a client, too
            for _ in range(2):
                self.assertEqual(engine.serve(Request(prompt(30, 9))), 0)
        self.assertIn("not used: cannot load /nowhere", said.output[0])

    def test_statistics_add_up(self):
        engine = self.engine(self.daemon(), ranks=2)
        tokens = prompt(30)
        engine.serve(Request(tokens))
        engine.serve(Request(tokens))
        stats = engine.workers[0].get_kv_connector_stats()
        stats = stats.aggregate(engine.workers[1].get_kv_connector_stats())
        stats = stats.aggregate(engine.scheduler.get_kv_connector_stats())
        self.assertEqual(stats.reduce()["worker_loaded_blocks"], 14)
        self.assertEqual(stats.reduce()["scheduler_hit_tokens"], 28)
        self.assertIsNone(engine.workers[0].get_kv_connector_stats())
        engine.serve(Request(prompt(14)))
        self.assertEqual(engine.workers[0].get_kv_connector_stats().reduce(),
                         {"worker_saves": 1, "worker_saved_blocks": 3})


FaultsByLayer = layer_by_layer(Faults)

support.main(__name__)
