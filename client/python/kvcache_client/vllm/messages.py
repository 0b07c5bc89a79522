"""What goes between the scheduler's side and the workers'. Plain data, pickled by vLLM."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

from ..client import Client
from ..memory import Slice
from ..parts import Part, Rule
from .breakeven import LoadCost, slowest

#: Block ids of one group; None: the group has no such block (vLLM's null block).
Ids = List[Optional[int]]


@dataclasses.dataclass(frozen=True)
class PartInfo:
    """One KV cache group of one rank: as much as a scheduler needs to register it."""

    digest: bytes
    slices: Tuple[Tuple[int, int], ...]  #: bytes of a block's piece, number of its dtype
    block_tokens: int
    rule: int
    window: int
    name: str
    family: bytes
    at_ends: bool = False  #: states are there only where a step ended

    def register(self, client: Client, slices: Sequence[Slice] = (), blocks: int = 0) -> Part:
        """slices: in memory; a scheduler has none."""
        return client.register(
            self.digest, slices or [Slice(0, size, size, dtype) for size, dtype in self.slices],
            blocks=blocks, block_tokens=self.block_tokens, rule=Rule(self.rule), window=self.window,
            name=self.name, family=self.family,
        )


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """parts: by group; none when the rank cannot take part, and why. agrees: it learns of loads that
    failed on other ranks before it saves what was computed on them."""

    parts: Tuple[PartInfo, ...]
    host: str
    why: str = ""
    cost: LoadCost = LoadCost()
    agrees: bool = False


@dataclasses.dataclass(frozen=True)
class LoadOrder:
    """Blocks first .. first + count - 1 of the lease behind the token, into these blocks."""

    request: str
    token: bytes
    first: int
    count: int
    ids: Tuple[Ids, ...]  #: of each group
    asynchronous: bool


@dataclasses.dataclass(frozen=True)
class SaveOrder:
    """Blocks that are complete when this step's forward pass has run."""

    request: str
    keys: bytes
    ids: Tuple[Ids, ...]
    first: int = 0  #: which of the request's blocks the first key names


@dataclasses.dataclass
class StepOrders:
    loads: List[LoadOrder] = dataclasses.field(default_factory=list)
    saves: List[SaveOrder] = dataclasses.field(default_factory=list)
    fresh: List[int] = dataclasses.field(default_factory=list)  #: blocks given out in this step
    tokens: int = 0  #: that its forward pass computes
    updates: int = 0  #: of weights, that the scheduler's side knew of
    number: int = 0  #: of a step that is to be told of


@dataclasses.dataclass
class StepReport:
    """adopted: of each request, how many leases its ranks have of their own (or need not). passes:
    tokens and seconds of forward passes. cost: where it was measured after the start. lost: some
    save was given up. skipped: of a request, the first block for which there was no room, where there
    was some for those around it, so that asking again is of use. updates: of weights, until the
    scheduler's side knows of as many. number: of the step."""

    adopted: Dict[str, int] = dataclasses.field(default_factory=dict)
    passes: List[Tuple[int, float]] = dataclasses.field(default_factory=list)
    cost: Optional[LoadCost] = None
    lost: bool = False
    skipped: Dict[str, int] = dataclasses.field(default_factory=dict)
    away: float = 0.0
    updates: int = 0
    number: int = 0

    def __bool__(self) -> bool:
        return bool(self.adopted or self.passes or self.cost or self.lost or self.skipped
                    or self.away or self.updates or self.number)

    def add(self, other: "StepReport") -> "StepReport":
        self.passes += other.passes
        self.lost, self.away = self.lost or other.lost, max(self.away, other.away)
        self.updates = max(self.updates, other.updates)
        self.number = max(self.number, other.number)
        for request, block in other.skipped.items():
            self.skipped[request] = min(block, self.skipped.get(request, block))
        self.cost = slowest([c for c in (self.cost, other.cost) if c is not None])
        for request, n in other.adopted.items():
            self.adopted[request] = self.adopted.get(request, 0) + n
        return self
