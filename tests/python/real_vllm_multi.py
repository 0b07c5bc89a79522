#!/usr/bin/env python3
"""The connector beside others, in the MultiConnector of the vLLM that is installed: which of them is
told what by the workers, who loads, what is saved of it, and what becomes of the figures.

scripts/check-vllm runs this; make check does not.
"""

import real_vllm
import support

OTHER, OURS = "OtherConnector", "KvcacheConnector"


class Engine(real_vllm.Engine):
    """order: of the connectors. policy: of the engine, and of this connector alone."""

    order = [OTHER, OURS]
    policy = "recompute", None

    def transfer(self, extra):
        from vllm.config import KVTransferConfig

        engine, own = self.policy
        each = {
            OTHER: {"kv_connector": OTHER, "kv_connector_module_path": "other_connector",
                    "kv_role": "kv_both"},
            OURS: {"kv_connector": OURS, "kv_connector_module_path": "kvcache_client.vllm",
                   "kv_role": "kv_both", "kv_connector_extra_config": extra,
                   **({"kv_load_failure_policy": own} if own else {})},
        }
        return KVTransferConfig(
            kv_connector="MultiConnector", kv_role="kv_both", kv_load_failure_policy=engine,
            kv_connector_extra_config={"connectors": [each[name] for name in self.order]})

    def child(self, connector, kind):
        return next(c for c in connector._connectors if type(c).__name__ == kind)

    def ours(self, connector):
        return self.child(connector, OURS)

    def other(self, role="scheduler"):
        connector = self.worker if role == "worker" else self.scheduler.connector
        return self.child(connector, OTHER)

    def compute(self, name, group, layers, begin, n, lost):
        lost = lost or self.other("worker")._errors
        super().compute(name, group, layers, begin, n, lost)

    def offer(self, name, end, beside=True, lost=False):
        """By the other connector, of a request."""
        for role in ("scheduler", "worker"):
            self.other(role).beside = beside
        self.other().finds[name] = end
        self.other("worker").fill, self.other("worker").lost = self.fill, lost

    def fill(self, name, first, end, ids):
        for g, layers in enumerate(self.layers):
            for i, layer in enumerate(layers, g * real_vllm.LAYERS):
                for p in range(first, end):
                    block = ids[g][p // real_vllm.TOKENS]
                    place = self.tensors[layer].view(self.torch.int16)[block]
                    place[:, p % real_vllm.TOKENS].copy_(self.row(name, p, i))


def orders():
    return [OTHER, OURS], [OURS, OTHER], [OTHER, OURS, OTHER]


class Beside(real_vllm.Served):
    def beside(self, daemon, order=(OTHER, OURS), policy=("recompute", None), **how):
        kind = type("Engine", (Engine,), {"order": list(order), "policy": policy})
        engine = kind(daemon.socket, self.folder, **how)
        self.addCleanup(engine.close)
        return engine

    def counts(self, engine, side="worker"):
        ours = engine.ours(engine.worker if side == "worker" else engine.scheduler.connector)
        return (ours._worker or ours._scheduler).counts

    def test_each_is_told_by_its_own_workers(self):
        for n, order in enumerate(orders()):
            daemon = self.daemon()
            first, second = (self.beside(daemon, order) for _ in range(2))
            tokens = [(i * 59) % 900 for i in range(330)]
            self.assertEqual(first.serve("a", tokens), 0)
            self.settled(daemon)
            self.assertEqual(second.serve("b", tokens), 320)
            self.assertEqual(len(first.other().ranks), 1)
            self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_a_worker_that_cannot_take_part_says_why(self):
        from unittest import mock

        from kvcache_client.vllm import layout

        daemon = self.daemon()
        for order in orders():
            with self.assertLogs("kvcache_client.vllm", "ERROR") as said, mock.patch.object(
                    layout, "groups_of", side_effect=layout.LayoutError("a strange layout")):
                engine = self.beside(daemon, order)
            self.assertEqual([r.getMessage() for r in said.records],
                             ["kvcached: not used: a strange layout"] * 2)
            self.assertEqual(engine.serve("a", [(i * 61) % 900 for i in range(100)], 4), 0)
            self.assertEqual(len(engine.other().ranks), 1)

    def test_what_another_one_loads_is_saved(self):
        """As where prompts are computed elsewhere."""
        for order in orders():
            for beside in (True, False):
                daemon = self.daemon()
                first, second = self.beside(daemon, order), self.engine(daemon)
                tokens = [(i * 67) % 900 for i in range(330)]
                first.offer("a", 320, beside)
                self.assertEqual(first.serve("a", tokens, 8), 320)
                self.settled(daemon)
                self.assertEqual(second.serve("b", tokens), 320)

    def test_the_one_that_does_not_load_ends_its_lease(self):
        daemon = self.daemon()
        first, second = (self.beside(daemon) for _ in range(2))
        tokens = [(i * 71) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        second.offer("b", 160)
        self.assertEqual(second.serve("b", tokens), 160)
        self.assertEqual(self.counts(second)["loads"], 0)
        self.assertEqual(self.figures(daemon)["leases"], 0)

    def test_blocks_that_another_one_sends_are_freed_when_it_has(self):
        for order in orders()[:2]:
            daemon = self.daemon()
            engine = self.beside(daemon, order)
            for role in ("scheduler", "worker"):
                engine.other(role).sends = True
            engine.serve("a", [(i * 73) % 900 for i in range(330)])
            self.assertIn("a", engine.scheduler.requests)
            support.until(lambda: engine.step() or "a" not in engine.scheduler.requests, "kept")
            self.settled(daemon)
            self.assertTrue(engine.scheduler.reset_prefix_cache(reset_connector=True))

    def test_a_load_of_another_one_that_fails_before_a_step(self):
        """What was computed behind it, by others, too, is not saved."""
        for order in orders()[:2]:
            daemon = self.daemon()
            first, second = self.beside(daemon, order), self.engine(daemon)
            tokens = [(i * 79) % 900 for i in range(200)]
            for name in ("a", "b"):
                first.request(name, tokens[: 200 if name == "a" else 150], 4)
            first.offer("a", 160, beside=False, lost=True)
            support.until(lambda: first.step() or not first.scheduler.has_unfinished_requests(),
                          "the requests do not end", 60)
            self.settled(daemon)
            self.assertEqual(second.serve("c", tokens), 192)  # and they are right

    def test_figures_reach_the_front_end(self):
        from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
            KVConnectorLogging, KVConnectorProm,
        )
        from vllm.v1.metrics.stats import SchedulerStats
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        engine = self.beside(self.daemon())
        logging = KVConnectorLogging(engine.config.kv_transfer_config)
        prom = KVConnectorProm(engine.config, ["engine"], {0: ["0"]})
        encoder, decoder = MsgpackEncoder(), MsgpackDecoder(SchedulerStats)
        engine.request("a", [(i * 83) % 900 for i in range(100)])
        while engine.scheduler.has_unfinished_requests():
            engine.step()
            stats = [said.scheduler_stats for said in engine.said.values()]
            for one in filter(None, stats):
                told = decoder.decode(encoder.encode(one)).kv_connector_stats
                if told:
                    logging.observe(told)
                    prom.observe(told)
        lines = []
        logging.log(lambda *line: lines.append(line))
        self.assertIn("'worker_saves': 1", str(lines))

    def test_a_failed_load_is_treated_as_the_engine_was_told(self):
        """Whatever is said for this connector alone."""
        daemon = self.daemon()
        for own in ("fail", "recompute", None):
            with self.assertLogs("kvcache_client.vllm", "WARNING") as said:
                engine = self.beside(daemon, policy=("fail", own))
            self.assertIn("kv_load_failure_policy is not recompute", str(said.output))
            self.assertTrue(
                engine.ours(engine.scheduler.connector)._scheduler.break_even.beside)
            with self.assertNoLogs("kvcache_client.vllm", "WARNING"):
                self.beside(daemon, policy=("recompute", own))


if __name__ == "__main__":
    support.LIMIT_S = 300
    support.main(__name__)
