#!/usr/bin/env python3
"""Every method of the base class of the vLLM that is installed: called by vLLM itself (real_vllm.py's
scheduler and model runner's frame), or here as the parts of it do that need a GPU. One that a new
version has, and that nobody has looked at, is named.

scripts/check-vllm runs this; make check does not.
"""

import collections
import contextlib
import inspect
import time
from unittest import mock

import real_vllm
import support

# What is asked of an object, not done, or inherited by all.
ASKED = {"role", "prefer_cross_layer_blocks", "requires_kv_delivery", "has_connector_metadata",
         "supports_divergent_local_hybrid_hits"}

# By the runners, the executor and the core of an engine: (of the worker's, arguments).
ELSEWHERE = {
    "set_host_xfer_buffer_ops": lambda e: (lambda *_: None,),
    "handle_preemptions": lambda e: (e.scheduler.connector.build_connector_meta(nothing()),),
    "get_finished_count": lambda e: (),
    "get_required_kvcache_layout": lambda e: (e.config,),
    "requires_piecewise_for_cudagraph": lambda e: ({},),
    "build_kv_connector_stats": lambda e: (),
    "supports_sleep_mode": lambda e: (e.config.kv_transfer_config,),
    "get_mem_pool_context": lambda e: (),
    "finish_forward": lambda e: (),
    "unregister_kv_caches": lambda e: (),
    "restore_kv_caches": lambda e: (),
    "reset_capture_state": lambda e: (),
    "build_prom_metrics": lambda e: (e.config, collections.defaultdict(str), [], {}),
    "has_pending_push_work": lambda e: (),
    "has_pending_block_frees": lambda e: (),
    "bind_gpu_block_pool": lambda e: (None,),
    "get_external_cache_hit_sources": lambda e: (e.requests["a"], 16),
}
# Never called of one that says what this one does; by name, why.
NEVER = {
    "register_cross_layers_kv_cache": "in place of register_kv_caches",
    "set_xfer_handshake_metadata": "in place of the one for pipelines, or the other way round",
    "set_xfer_handshake_metadata_pp_aware": "in place of the other",
    "request_finished": "in place of the one for all groups, which calls it here",
    "get_loaded_kv_cache_group_ids": "of those that load single groups",
    "register_finished_partial_tail": "of those that keep pieces of blocks",
}


def nothing():
    from vllm.v1.core.sched.output import SchedulerOutput

    return SchedulerOutput.make_empty()


def methods():
    """Of the base classes, without those of Python."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    return {
        name for kind in (base.KVConnectorBase_V1, base.SupportsHMA)
        for name, what in vars(kind).items()
        if not name.startswith("_") and (callable(what) or isinstance(
            what, (classmethod, staticmethod, property)))
    }


@contextlib.contextmanager
def recorded():
    """[(role, method)] of all calls of connectors, in order, and of what the base class calls."""
    from kvcache_client.vllm import KvcacheConnector

    calls = []

    def noting(name, method):
        def noted(self, *arguments, **keywords):
            calls.append((self.role.name, name))
            return method(self, *arguments, **keywords)

        return noted

    with contextlib.ExitStack() as stack:
        for name in methods() - ASKED:
            method = inspect.getattr_static(KvcacheConnector, name)
            if inspect.isfunction(method):
                stack.enter_context(
                    mock.patch.object(KvcacheConnector, name, noting(name, method)))
        yield calls


class Called(real_vllm.Served):
    def test_every_method_of_the_base_class(self):
        daemon = self.daemon()
        tokens = [(i * 3) % 900 for i in range(330)]
        with recorded() as calls:
            engine = self.engine(daemon)
            engine.serve("a", tokens, 20)
            self.settled(daemon)
            self.assertTrue(engine.scheduler.reset_prefix_cache())
            self.assertEqual(engine.serve("b", tokens), 320)
            engine.scheduler.make_stats()
            engine.scheduler.reset_prefix_cache(reset_connector=True)
            engine.worker.shutdown()
            engine.scheduler.shutdown()
        called = {name for _, name in calls}
        for name in sorted((methods() - called) & set(ELSEWHERE)):
            getattr(engine.worker, name)(*ELSEWHERE[name](engine))
        self.assertEqual(methods() - called - ASKED - set(ELSEWHERE) - set(NEVER), set())

    def test_in_the_order_of_a_step(self):
        daemon = self.daemon()
        with recorded() as calls:
            engine = self.engine(daemon)
            engine.request("a", [(i * 5) % 900 for i in range(50)])
            del calls[:]
            engine.step()
        sides = collections.defaultdict(list)
        for role, name in calls:
            if name not in sides[role]:
                sides[role].append(name)

        def ordered(side, *names):
            self.assertEqual([n for n in sides[side] if n in names], list(names))

        ordered("SCHEDULER", "get_num_new_matched_tokens", "update_state_after_alloc",
                "build_connector_meta", "request_finished_all_groups")
        ordered("SCHEDULER", "build_connector_meta", "update_connector_output")
        ordered("WORKER", "bind_connector_metadata", "wait_for_layer_load", "save_kv_layer",
                "wait_for_save", "get_finished", "clear_connector_metadata")
        ordered("WORKER", "bind_connector_metadata", "start_load_kv", "wait_for_save")
        self.assertEqual(engine.scheduler.get_num_unfinished_requests(), 0)

    def test_new_weights_without_a_pause(self):
        """Whatever becomes of them: here there is no model."""
        from vllm.v1.worker import gpu_worker

        daemon = self.daemon()
        first, second = self.engine(daemon), self.engine(daemon)
        tokens = [(i * 9) % 900 for i in range(330)]
        first.serve("a", tokens)
        self.settled(daemon)
        self.assertEqual(second.serve("b", tokens), 320)
        loaded = second.worker._worker.counts["loaded_blocks"]
        with contextlib.suppress(Exception):
            gpu_worker.Worker.reload_weights(mock.MagicMock())
        self.assertEqual(second.worker._worker._updates, 1)
        self.assertTrue(second.scheduler.reset_prefix_cache())
        second.serve("c", tokens, 8)
        self.assertEqual(second.worker._worker.counts["loaded_blocks"], loaded)
        self.assertEqual(second.worker._worker.counts["failed_loads"], 1)
        support.until(lambda: second.scheduler.reset_prefix_cache() and second.serve(
            f"again {time.monotonic()}", tokens) == 320, "no hit")
        self.assertEqual(second.worker._worker.counts["failed_loads"], 1)


if __name__ == "__main__":
    support.LIMIT_S = 300
    support.main(__name__)
