"""The worker's side: one rank's KV cache, and the copies that the scheduler ordered. It imports
neither vLLM nor torch.

Order in a step: begin() before the forward pass, start() too if the pass needs what it loads, else
perhaps behind it; judge() and finish() behind it (all of them only enqueue, and wait for loads whose
copies the pass is behind), poll() at the end, which may come before finish(). Loads that a step waits
for go on the compute stream before the forward pass, others on a side stream. Saves go behind the
forward pass on the compute stream, or, to the host tier, on another side stream: when the daemon has
only that, and what the GPU tier has no room for. Blocks that are still being read are not given to
compute, nor to loads, before that has ended: begin() has them wait for those that are new, or the save
itself for all, where the engine writes to new blocks before begin() is called. Nothing waits for room.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import time
from typing import Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple, Union

from ..client import Client, Role
from ..errors import DeadlineError, KvcacheError, SessionError, StaleError
from ..leases import Lease
from ..loads import Load, SlicedLoad, packets
from ..memory import Slice
from ..names import KEY_BYTES
from ..parts import Part, Rule
from ..saves import KeyState, Save, SaveEntry
from .breakeven import LoadCost
from .entries import entries_of, packed, together
from .layers import Layer, LayerLoads, LayerSaves
from .link import Link
from .messages import LoadOrder, PartInfo, RankInfo, SaveOrder, StepOrders, StepReport
from .options import Options
from .passes import Passes
from .spill import merged, skipped
from .streams import NoStreams, Reading

log = logging.getLogger("kvcache_client.vllm")

PINGS = 9
WORTH = 1 / 16  # of a save: if less was copied, there is no room to be waited for
IDLE_MS = 1  # an engine without anything else to do waits for a load; it goes on in the next step
JUDGE_MS = 30000  # copies that a forward pass was put behind; they are over long before


@dataclasses.dataclass(frozen=True)
class Group:
    """A KV cache group as this rank has it."""

    info: PartInfo
    slices: Tuple[Slice, ...]
    blocks: int
    layers: Tuple[Layer, ...] = ()  #: none when they cannot be told apart


@dataclasses.dataclass
class _Loading:
    order: LoadOrder
    loads: List[Union[Load, SlicedLoad]]
    wanted: Set[int]  # block ids
    bad: Set[int] = dataclasses.field(default_factory=set)  # of those that are over
    failed: bool = False


class WorkerSide:
    def __init__(
        self,
        options: Options,
        groups: Sequence[Group],
        *,
        host: str,
        streams: Optional[NoStreams] = None,
        gpu: object = None,
        run_ahead: int = 2,
        early: bool = False,
        connect: Optional[Callable[[], Client]] = None,
        agree: Optional[Callable[[bool], bool]] = None,
    ) -> None:
        """agree: whether it is so on any rank, each of which asks in the same step."""
        self.options, self.groups, self.host, self._gpu = options, tuple(groups), host, gpu
        self.counts: Dict[str, int] = dict.fromkeys(
            ("loads", "loaded_blocks", "failed_loads", "failed_blocks", "saves", "saved_blocks",
             "hit_blocks", "spilled_blocks", "skipped_blocks", "dropped_saves", "waits_for_copies",
             "daemon_losses"), 0
        )
        self._streams = streams or NoStreams()
        # Loads do not wait for what slow copies were saved before.
        self._saving = self._streams.another()
        self._reading = Reading(self._saving)
        # Whether new blocks are written to before begin(): where states are they always are.
        self._early = early or any(g.info.rule == Rule.STATE for g in self.groups)
        self._parts: List[Part] = []
        self._host_only = self._spills = False
        self._now: List[_Loading] = []  # this step's forward pass waits for them
        self._beside: List[_Loading] = []
        self._held: Deque[LoadOrder] = collections.deque()  # until there is room for one more
        self._invalid: Set[int] = set()
        self._report = StepReport()
        self._copies = self._streams.copy_seconds() if self.groups else (0.0, 0.0)
        self._cost = LoadCost()
        self._passes = Passes(self._streams)
        self._idle = False  # this step computes nothing
        # Steps whose saves are dropped: they may have been scheduled on blocks that did not arrive.
        self._run_ahead, self._distrust = run_ahead, 0
        self._lost = False  # something that this step's forward pass waited for
        self._updates = 0  # of weights
        self._old = False  # this step's orders are from before one
        self.agree = agree
        self._leases: List[Lease] = []
        self._by_layer = options.layer_by_layer and all(g.layers for g in self.groups)
        layers = [g.layers for g in self.groups]
        self._layer_loads = LayerLoads(layers, self._streams)
        self._layer_saves = LayerSaves(layers, self._streams)
        self._link = Link(connect or self._connect, self._register, options.retry_s)
        if self.groups:
            self._link.open()

    def info(self) -> RankInfo:
        return RankInfo(tuple(g.info for g in self.groups), self.host, cost=self._cost,
                        agrees=self.agree is not None)

    def _connect(self) -> Client:
        return Client(
            self.options.socket, name="vllm worker",
            role=Role.WORKER if self.options.save else Role.READER, gpu=self._gpu,
            connect_ms=self.options.connect_ms, save_ms=self.options.save_ms,
        )

    def _register(self, client: Client) -> None:
        tiers = client.statistics()
        self._host_only = tiers["tiers.gpu.bytes"] == 0
        self._spills = not self._host_only and tiers["tiers.host.bytes"] > 0
        if not self._cost.fixed:
            self._cost = self._report.cost = self._measure(client)
        for part in self._parts:
            part.renew()
        self._parts = self._parts or [
            g.info.register(client, g.slices, g.blocks) for g in self.groups]

    def _measure(self, client: Client) -> LoadCost:
        """What loads cost: copies of this device, and the answers of the daemon to a lookup, an
        adoption and a load."""
        took = []
        for _ in range(PINGS):
            at = time.perf_counter()
            client.ping()
            took.append(time.perf_counter() - at)
        full = [g for g in self.groups if g.info.rule == Rule.FULL] or self.groups
        a_token = sum(sum(s.bytes for s in g.slices) / g.info.block_tokens for g in full)
        near, far = self._copies
        return LoadCost(3 * sorted(took)[PINGS // 2], near * a_token, far * a_token)

    def close(self) -> None:
        self._link.close()

    def new_weights(self) -> None:
        """Between two steps. What is loaded now is of the old ones, and so is what is ordered until
        the scheduler's side knows."""
        self._updates += 1
        self._beside += [self._loading(order) for order in self._held]
        self._held.clear()
        for loading in self._beside:
            loading.bad |= loading.wanted

    def _failed(self, error: KvcacheError) -> None:
        if isinstance(error, DeadlineError):
            self._link.late()
        if isinstance(error, StaleError):
            self._link.renew()
        if isinstance(error, SessionError):
            self.counts["daemon_losses"] += 1
            self._link.lost(error)

    # Loads.

    def begin(self, orders: StepOrders) -> None:
        """Before the forward pass, whatever that needs."""
        self._distrust = max(0, self._distrust - 1)
        self._idle, self._report.number = orders.tokens == 0, orders.number
        self._old = orders.updates < self._updates
        if orders.fresh:
            self.counts["waits_for_copies"] += self._reading.overwritten(orders.fresh)
        beside = [order for order in orders.loads if order.asynchronous]
        if beside:
            # Whoever had these blocks before may still be read by compute, and by saves.
            self._streams.after_compute()
            blocks = {b for order in beside for ids in order.ids for b in ids if b is not None}
            self.counts["waits_for_copies"] += self._reading.loaded(blocks, self._streams)
        self._passes.begin(orders.tokens)
        if self._by_layer and orders.saves and not self._host_only and not self._old:
            client = self._link.ready()
            if client is None:
                self._dropped(len(orders.saves))
                return
            self._layer_saves.begin(client, entries_of(together(orders.saves), self._parts))

    def start(self, orders: StepOrders) -> None:
        """Before the forward pass; behind it if all of the loads go on beside the steps."""
        sliced: List[Tuple[int, SlicedLoad]] = []
        for order in orders.loads:
            if order.asynchronous and self._old:
                self._beside.append(self._start(order, []))
            elif order.asynchronous:
                self._held.append(order)
            else:
                self._room(order, JUDGE_MS)
                self._now.append(self._start(order, sliced))
        if sliced:
            self._start_sliced(sliced)
        self._end_leases()
        self._start_held()
        if self._now:
            self._passes.again()

    def _start_held(self) -> None:
        """Loads beside the steps, as many as can be under way. A step waits for none of them."""
        while self._held and self._room(self._held[0], 0):
            self._beside.append(self._start(self._held.popleft(), []))

    def _room(self, order: LoadOrder, ms: int) -> bool:
        client = self._link.ready()
        return client is None or client.room_for_loads(sum(map(packets, order.ids)), ms)

    def _start_sliced(self, sliced: Sequence[Tuple[int, SlicedLoad]]) -> None:
        try:
            self._layer_loads.start(sliced)
        except KvcacheError as error:
            self._failed(error)
            for loading in self._now:
                self._give_up(loading)
            self._now.clear()

    def _end_leases(self) -> None:
        for lease in self._leases:
            try:
                lease.release()
            except KvcacheError as error:
                self._failed(error)
        self._leases.clear()

    def layer_needed(self, name: str) -> None:
        """Before a layer runs, if layers go one by one."""
        if self._by_layer:
            self._layer_loads.needed(name)

    def layer_computed(self, name: str) -> None:
        """Behind a layer, if layers go one by one."""
        if self._by_layer:
            self._layer_saves.computed(name)

    def _start(self, order: LoadOrder, sliced: List[Tuple[int, SlicedLoad]]) -> _Loading:
        loading = self._loading(order)
        stream = self._streams.compute()
        if order.asynchronous:
            stream = self._streams.side()
        if self._old:
            self._give_up(loading)
            return loading
        client = self._link.ready()
        if client is None:
            self._report.away = max(self._report.away, self._link.away_s())
            self._give_up(loading)
            return loading
        try:
            mine: List[Tuple[int, SlicedLoad]] = []
            for group, (part, ids) in enumerate(zip(self._parts, order.ids)):
                if any(b is not None for b in ids):
                    load = self._load(client, part, order, ids, stream)
                    loading.loads.append(load)
                    if isinstance(load, SlicedLoad):
                        mine.append((group, load))
            sliced.extend(mine)
            self.counts["loads"] += 1
            self._link.answered()
        except KvcacheError as error:
            self._failed(error)
            self._give_up(loading)
        return loading

    def _loading(self, order: LoadOrder) -> _Loading:
        told = self._report.adopted
        told[order.request] = told.get(order.request, 0) + 1
        return _Loading(order, [], {b for ids in order.ids for b in ids if b is not None})

    def _give_up(self, loading: _Loading) -> None:
        loading.loads.clear()
        self._lose(loading, loading.wanted)

    def _load(
        self, client: Client, part: Part, order: LoadOrder, ids: Sequence[Optional[int]],
        stream: object
    ) -> Union[Load, SlicedLoad]:
        lease: Lease = client.adopt(order.token, part)
        first, verify = order.first, self.options.verify
        if self._by_layer and not order.asynchronous:
            self._leases.append(lease)  # until all of its loads are open
            return client.load_slices(lease, part, ids, first=first, verify=verify)
        try:  # a load that is open keeps its blocks
            return client.load(
                lease, part, ids, first=first, stream=stream, verify=verify, release=True)
        except KvcacheError as error:
            if not isinstance(error, (SessionError, DeadlineError)):
                lease.release()  # it may have been refused before the daemon was asked
            raise

    def _lose(self, loading: _Loading, blocks: Set[int]) -> None:
        loading.failed = True
        # Whatever was enqueued of it before it failed: these blocks are computed next.
        self._streams.compute_after(self._streams.mark())
        self._invalid |= blocks
        self.counts["failed_loads"] += 1
        self.counts["failed_blocks"] += len(blocks)
        if not loading.order.asynchronous:
            self._lost = True
            self._distrust_steps()

    def _distrust_steps(self) -> None:
        self._distrust = max(self._distrust, self._run_ahead + 1)

    def _ask_ranks(self, orders: StepOrders) -> None:
        """What one rank lacked, all of them have computed on."""
        lost, self._lost = self._lost, False
        if self.agree is None or all(order.asynchronous for order in orders.loads):
            return
        if self.agree(lost):
            self._distrust_steps()

    def _judge(self, loading: _Loading, ms: int) -> bool:
        """Whether it is over; then what did not arrive is lost."""
        while loading.loads:
            load = loading.loads[0]
            try:
                loading.bad.update(load.wait(ms))
            except DeadlineError:
                return False
            except KvcacheError as error:
                self._failed(error)
                loading.bad.update(load.invalid_blocks())
            loading.loads.pop(0)
            self.counts["loaded_blocks"] += load.valid.count(1)
        if loading.bad:
            self._lose(loading, loading.bad)
        return True

    # Saves.

    def judge(self) -> None:
        """Behind the forward pass: what it computed on is told before its tokens are used."""
        self._passes.end()
        self._layer_loads.end()
        for loading in self._now:
            if not self._judge(loading, JUDGE_MS):
                self._lose(loading, loading.wanted)
        self._now.clear()

    def finish(self, orders: StepOrders) -> None:
        """Behind the forward pass, and a drafter's."""
        self.judge()
        self._ask_ranks(orders)
        by_layer = self._layer_saves.end(trusted=not self._distrust)
        if self._distrust or self._old:
            self._dropped(len(orders.saves))
        elif self._by_layer and not self._host_only:
            self._fail_layers()
            self._finish_layers(by_layer)
        elif orders.saves:
            self._save(orders.saves)

    def _dropped(self, saves: int) -> None:
        self.counts["dropped_saves"] += saves
        self._report.lost = self._report.lost or saves > 0

    def _fail_layers(self) -> None:
        for error in self._layer_saves.errors:
            self._dropped(1)
            self._failed(error)
        self._layer_saves.errors.clear()

    def _finish_layers(self, saves: Sequence[Tuple[Save, List[SaveEntry]]]) -> None:
        for save, entries in saves:
            self._count(save, entries)
            client = self._link.ready() if self._spills else None
            try:
                if client is not None:
                    self._spill(client, entries, save.raw_states)
            except KvcacheError as error:
                self._dropped(1)
                self._failed(error)

    def _count(self, save: Save, entries: Sequence[SaveEntry]) -> None:
        states = save.raw_states
        self.counts["saves"] += 1
        self.counts["saved_blocks"] += states.count(KeyState.SAVED)
        self.counts["hit_blocks"] += states.count(KeyState.HIT)
        if KeyState.SKIPPED in states:
            absent = sum(e.blocks.count(None) for e in entries)
            self.counts["skipped_blocks"] += states.count(KeyState.SKIPPED) - absent

    def _save(self, orders: Sequence[SaveOrder]) -> None:
        client = self._link.ready()
        if client is None:
            self._dropped(len(orders))
            return
        if self._host_only:
            self._saving.after_compute()
        states = b""
        for entries in packed(orders, self._parts):
            try:
                some = self._save_entries(client, entries, far=self._host_only)
                self._link.answered()
                states += self._spill(client, entries, some) if self._spills else some
            except KvcacheError as error:
                self._dropped(1)
                self._failed(error)
                if isinstance(error, (SessionError, DeadlineError, StaleError)):
                    return
        self._note_skipped(orders, states)

    def _note_skipped(self, orders: Sequence[SaveOrder], states: bytes) -> None:
        """The GPU tier makes room for so many blocks at a time: of a long prompt there is none for
        the rest, but soon."""
        if len(self.groups) > 1 or KeyState.SKIPPED not in states:
            return
        n = [len(order.keys) // KEY_BYTES for order in orders]
        if len(states) != sum(n):
            return
        for order, at, end in zip(orders, itertools.accumulate([0, *n]), itertools.accumulate(n)):
            first = states.find(KeyState.SKIPPED, at, end)
            if first >= 0 and states.count(KeyState.SAVED, at, end) >= (end - at) * WORTH:
                self._report.skipped[order.request] = order.first + first - at

    def _save_entries(
        self, client: Client, entries: List[SaveEntry], far: bool, spilled: bool = False
    ) -> bytes:
        """far: to the host tier; spilled: of what there is no room for in the other one."""
        stream = self._saving.side() if far else self._streams.compute()
        try:
            save = client.save_entries(entries, stream=stream, to_host=spilled, no_wait=True)
        except KvcacheError:
            self._read_beside(entries, far)  # some copies may be under way
            raise
        self._read_beside(entries, far and save.id != 0)
        self._count(save, entries)
        self.counts["spilled_blocks"] += save.count(KeyState.SAVED) if spilled else 0
        return save.raw_states

    def _read_beside(self, entries: List[SaveEntry], far: bool) -> None:
        if far:
            self._reading.add(frozenset(b for e in entries for b in e.blocks if b is not None))
        if far and self._early:
            self.counts["waits_for_copies"] += self._reading.all_overwritten()

    def _spill(self, client: Client, entries: List[SaveEntry], states: bytes) -> bytes:
        """What became of a save's blocks when those without room have been offered to the host
        tier."""
        some = skipped(entries, states)
        if not some:
            return states
        self._saving.after_compute()
        again = self._save_entries(client, some, far=True, spilled=True)
        self.counts["skipped_blocks"] -= sum(len(e.blocks) for e in some)  # counted again
        return merged(entries, states, again)

    # The end of a step.

    def poll(self) -> Tuple[Set[str], Set[int], Set[str]]:
        """Requests whose loads beside the steps are over, blocks that did not arrive, and those of
        the requests that lack some. Once a step."""
        self._report.passes += self._passes.over()
        done, failed = set(), set()
        ms = IDLE_MS if self._idle else 0
        for loading in list(self._beside):
            if self._judge(loading, ms):
                self._beside.remove(loading)
                done.add(loading.order.request)
                if loading.failed:
                    failed.add(loading.order.request)
            ms = 0  # one that is over is something to do
        self._start_held()
        invalid, self._invalid = self._invalid, set()
        return done, invalid, failed

    def report(self) -> StepReport:
        report, self._report = self._report, StepReport()
        report.updates = self._updates if self._old else 0
        return report
