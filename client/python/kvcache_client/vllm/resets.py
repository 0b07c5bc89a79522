"""reset_cache: what was saved before is a miss, however long the daemon cannot be told so, and also
where vLLM clears its caches, or takes new weights, without a word to the connector."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from typing import Any, Sequence

from ..client import Client
from ..parts import Part

log = logging.getLogger("kvcache_client.vllm")


UPDATES = "reload_weights", "update_weights", "finish_weight_update"


class Resets:
    """Those that were asked for, and those that the daemon has carried out. They are counted, since
    what sets up a connection runs in a thread of its own."""

    def __init__(self) -> None:
        self._asked = self._done = 0

    def ask(self) -> None:
        self._asked += 1

    @property
    def due(self) -> bool:
        """Until then nothing that is found may be loaded."""
        return self._asked != self._done

    def carry_out(self, client: Client, parts: Sequence[Part]) -> None:
        asked = self._asked
        if self._done != asked:
            for part in parts:
                client.flush(part)
            self._done = asked


def of_the_engine() -> None:
    """vLLM 0.20 and some versions behind it clear their own caches alone when generation is paused for
    new weights, or when they are put to sleep; later ones reset the connector then."""
    from vllm.v1.engine import core

    kind: Any = getattr(core, "EngineCore", None)
    theirs: Any = getattr(kind, "_reset_caches", None)
    if theirs is None or "reset_connector" in inspect.signature(theirs).parameters:
        return

    def reset(self: Any, *arguments: Any, reset_connector: bool = True, **keywords: Any) -> None:
        theirs(self, *arguments, **keywords)
        if reset_connector:
            self.scheduler.reset_connector_cache()

    kind._reset_caches = reset
    log.info("kvcached: pausing for new weights resets the connector, too")


def of_the_worker(side: Any) -> None:
    """vLLM's worker of this process takes new weights when it is told to, whether or not the engine was
    paused. side: its new_weights() is called behind that, however it went."""
    kind: Any = getattr(sys.modules.get("vllm.v1.worker.gpu_worker"), "Worker", None)
    if kind is None:
        return
    if "kvcached_sides" not in vars(kind):
        kind.kvcached_sides = weakref.WeakSet()
        for name in UPDATES:
            if hasattr(kind, name):
                setattr(kind, name, _telling(getattr(kind, name), kind.kvcached_sides))
    kind.kvcached_sides.add(side)


def _telling(theirs: Any, sides: Any) -> Any:
    @functools.wraps(theirs)
    def update(*arguments: Any, **keywords: Any) -> Any:
        try:
            return theirs(*arguments, **keywords)
        finally:
            for side in list(sides):
                side.new_weights()

    return update
