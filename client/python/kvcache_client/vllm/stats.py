"""Figures as vLLM takes them, in its log and for its metrics. It adds up those of workers, also from
what came to another process as plain data."""

from __future__ import annotations

import contextlib
from typing import Any, Dict

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

NOW = "_now_"


class KvcacheStats(KVConnectorStats):
    """Counters, of all workers together, and figures of now (NOW in their names)."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "KvcacheStats":
        for name, n in other.data.items():
            self.data[name] = n if NOW in name else self.data.get(name, 0) + n
        return self

    def reduce(self) -> Dict[str, Any]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class KvcacheMetrics(KVConnectorPromMetrics):
    """None: the daemon has its own. But the MultiConnector of vLLM 0.20 to 0.26, and maybe later ones,
    ends the front end when one of its connectors has figures and nothing that takes them."""

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        pass


def known_by_name(name: str, module: str) -> None:
    """A MultiConnector looks for a connector's figures under its name, also where it was made by the
    path of its module, and ends the front end when there is none of that name."""
    with contextlib.suppress(ValueError):  # it is there
        KVConnectorFactory.register_connector(name, module, name)
