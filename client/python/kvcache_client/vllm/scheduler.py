"""The scheduler's side: which prefix of a request is cached, what is loaded in its place, and which
blocks are saved. It imports nothing of vLLM: requests and scheduler outputs are what has their
fields.

A request is looked up again and again until it is admitted; its lease goes by the request's name,
so that asking again extends it, and ends when the engine takes no external tokens after all. The
last token is never counted, since its logits are needed. Blocks are named by request.block_hashes,
or by an own chain where those mean nothing to other engines.
"""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ..client import Client, Role
from ..errors import DeadlineError, KvcacheError, SessionError, StaleError
from ..leases import Lease
from ..names import KEY_BYTES
from ..parts import Part, Rule
from .breakeven import BreakEven
from .endings import Endings
from .handed import Handed
from .lately import Lately
from .link import Link
from .messages import LoadOrder, PartInfo, RankInfo, SaveOrder, StepOrders, StepReport
from .options import Options
from .others import Others
from .requests import ExtraKeys, Names, State, group_ids, no_extra_keys
from .resets import Resets

log = logging.getLogger("kvcache_client.vllm")

HOLD_S = 1.0  # until a lease that waits is asked about again: a flush may have ended it


class SchedulerSide:
    """One a scheduler. own_hashes: request.block_hashes are of no use; extra_keys: what belongs
    into an own chain; looks_ahead: a drafter's KV of a token follows from the next token too, so
    that the last block of a prefix is not what its name says. synchronous: a step may wait for a
    load, and the engine is right when it fails. inputs_named: images are named by their content."""

    def __init__(
        self,
        options: Options,
        block_tokens: int,
        *,
        own_hashes: bool = False,
        extra_keys: ExtraKeys = no_extra_keys,
        looks_ahead: bool = False,
        synchronous: bool = True,
        inputs_named: bool = True,
        connect: Optional[Callable[[], Client]] = None,
    ) -> None:
        self.options, self.block_tokens = options, block_tokens
        self._blocks = Names(block_tokens, own_hashes, extra_keys)
        self.looks_ahead = looks_ahead
        self.synchronous, self._inputs_named = synchronous, inputs_named
        self.counts: Dict[str, int] = dict.fromkeys(
            ("lookups", "hit_requests", "hit_tokens", "late_lookups", "failed_lookups", "declined",
             "asked_peers", "peer_blocks", "ordered_loads", "ordered_saves", "failed_blocks",
             "failed_requests", "daemon_losses"), 0
        )
        self.break_even = BreakEven(options.min_tokens)
        self._infos: Tuple[PartInfo, ...] = ()  # of the first rank, by group
        self._all: List[PartInfo] = []
        self._parts: List[Part] = []
        self._ranks = 0
        self._requests: Dict[str, State] = {}
        self._names = itertools.count(1)
        self._orders = StepOrders()
        self._lately = Lately()
        self._only_full = False  # any run of blocks can be loaded behind what the engine has
        self.handed = Handed(lambda name: name not in self._requests or self._requests[name].shares)
        self.others = Others()
        self._again: Set[str] = set()  # for some of their blocks there was no room
        self._step = 0
        self._save_every = options.save_every or max(1, block_tokens // 2)
        self._resets, self._updates = Resets(), 0  # of weights
        self._link = Link(connect or self._connect, self._register, options.retry_s)
        self._endings = Endings(self._link, self._failed)

    # Starting.

    def set_ranks(self, ranks: Sequence[Optional[RankInfo]]) -> bool:
        """What all workers have said about themselves. False, with a line in the log, when the
        engine has to go on without the cache."""
        why = next((r.why for r in ranks if r is not None and r.why), "")
        if not ranks or any(r is None for r in ranks):
            why = why or "some workers said nothing"
        elif len({r.host for r in ranks if r is not None}) > 1:
            why = why or "its workers are on several hosts, which one daemon cannot serve"
        if why:
            log.error("kvcached: not used: %s", why)
            return False
        known = [r for r in ranks if r is not None]
        self.break_even.ranks([r.cost for r in known])
        self._infos, self._ranks = known[0].parts, len(known)
        self.break_even.beside = self._always_beside(known)
        if self.break_even.beside:
            log.info("kvcached: loads from the GPU tier go on beside the steps, too")
        full = all(i.rule == Rule.FULL for i in self._infos)
        self._only_full, self._lately.on = full and not self.looks_ahead, full
        # Identical shards are one part.
        self._all = list(dict.fromkeys(p for r in known for p in r.parts))
        self._link.open()
        return True

    def _connect(self) -> Client:
        return Client(
            self.options.socket, name="vllm scheduler", role=Role.SCHEDULER,
            connect_ms=self.options.connect_ms, lookup_ms=self.options.lookup_ms,
            remote_ms=self.options.remote_ms,
        )

    def _register(self, client: Client) -> None:
        for part in self._parts:
            part.renew()
        self._parts = self._parts or [info.register(client) for info in self._all]
        self._resets.carry_out(client, self._parts)

    def close(self) -> None:
        self._link.close()

    # Names of blocks.

    def _usable(self, request: Any) -> bool:
        given = getattr(request, "kv_transfer_params", None)  # whatever a client has sent
        return bool(
            self._ranks
            and (not isinstance(given, dict) or given.get("kvcached", True))
            and getattr(request, "prompt_embeds", None) is None
            and not getattr(request, "resumable", False)
            and (self._inputs_named or not getattr(request, "mm_features", None))
        )

    def _state(self, request: Any) -> State:
        state = self._requests.get(request.request_id)
        if state is None:
            state = State(request, next(self._names))
            self._requests[request.request_id] = state
        state.request = request
        return state

    # Looking up.

    def matched(self, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        """get_num_new_matched_tokens: tokens behind `computed` that can be loaded, and whether that
        goes on beside other steps. Bounded by lookup_ms; None ("ask again") only while other
        daemons are asked for more than is here (option remote_ms), once a request."""
        self.others.asked(request.request_id, computed)
        if not self._usable(request):
            return 0, False
        state = self._state(request)
        state.outdated = False  # it begins anew
        if not state.shares:
            return 0, False
        state.computed, state.own = computed, computed // self.block_tokens
        n = self._blocks.known(state, (request.num_tokens - 1) // self.block_tokens)
        if computed % self.block_tokens or n <= state.own or state.failed or not self.options.load:
            self._drop(state)
            return 0, False
        if state.fetch and self._under_way(state):
            return None, False
        lease = state.lease if self._holds(state, n) else self._look_up(state, n)
        if lease is not None and lease.fetch and self._ask_peers(state, lease):
            return None, False
        gain = 0 if lease is None else self._gain(state, lease.blocks)
        if lease is None or not self._pays(lease, gain):
            self.counts["declined"] += gain > 0
            state.lease = lease
            self._drop(state)
            return 0, False
        state.lease = lease
        return gain, self._beside(lease)

    def _in_front(self, state: State) -> int:
        """Blocks that the engine has and the daemon is not asked about: the first key of a lookup,
        and the first block of its lease."""
        return state.own if self._only_full else 0

    def _gain(self, state: State, blocks: int) -> int:
        """Tokens, of a lease of so many blocks."""
        return (blocks - (state.own - self._in_front(state))) * self.block_tokens

    def _holds(self, state: State, n: int) -> bool:
        """Whether the lease of the last answer has all of n blocks behind the same ones, and half
        of its time at least, and is not old: then there is nothing to ask."""
        lease = state.lease
        return bool(
            lease and state.answer == (self._in_front(state), n, self._link.losses)
            and self._in_front(state) + lease.blocks == n
            and time.monotonic() < state.answered + min(lease.ms / 2000, HOLD_S))

    def _pays(self, lease: Lease, gain: int) -> bool:
        host = min(gain, (lease.blocks - lease.gpu) * self.block_tokens)
        return self.break_even.pays(gain - host, host)

    def _always_beside(self, ranks: Sequence[RankInfo]) -> bool:
        """Whether no step may wait for a load: engines that go on when it has failed would give
        wrong outputs, or end where there are several groups; states that are there only where a
        step ended are copied before a connector is called; ranks that do not learn of each other's
        failures would save what was computed on them."""
        return (not self.synchronous or len(self._infos) > 1
                or any(i.at_ends for i in self._infos)
                or (len(ranks) > 1 and not all(r.agrees for r in ranks)))

    def _beside(self, lease: Lease) -> bool:
        """Whether it is loaded beside the steps, and known to be there before it is used."""
        return lease.gpu < lease.blocks or self.break_even.beside

    def _look_up(self, state: State, n: int) -> Optional[Lease]:
        if self._resets.due:
            self._renew()
        client = self._link.ready()
        if client is None:
            return None
        self.counts["lookups"] += 1
        first = self._in_front(state)
        keys, state.late = bytes(state.keys[first * KEY_BYTES : n * KEY_BYTES]), False
        try:
            lease = self._lease(client, keys, state.name)
        except StaleError:
            self._renew()  # everything is a miss
        except DeadlineError:
            self.counts["late_lookups"] += 1
            state.late = True
            self._link.late()
        except KvcacheError as error:
            self._failed(error)
        else:
            self._link.answered()
            state.answer, state.answered = (first, n, self._link.losses), time.monotonic()
            if lease is not None and first + lease.blocks < n:
                self._lately.missed(state, first + lease.blocks)
            return lease
        return None

    def _lease(self, client: Client, keys: bytes, name: int) -> Optional[Lease]:
        if self.looks_ahead:
            n = client.probe(self._parts, keys) - 1
            if n <= 0:
                return None
            keys = keys[: n * KEY_BYTES]
        lease = client.lookup(self._parts, keys, request=name, ms=self.options.lease_ms)
        if self.looks_ahead and lease.blocks * KEY_BYTES < len(keys):
            lease.release()  # some went between the two: its last block is not to be had
            return None
        return lease

    def _ask_peers(self, state: State, lease: Lease) -> bool:
        """Whether the request waits for what they have. What is here stays leased meanwhile."""
        gain = self._gain(state, lease.blocks + lease.remote)
        state.fetch = lease.fetch
        if state.asked or not self.break_even.pays(gain, 0):
            self._decline(state)
            return False
        state.asked, state.lease = True, lease
        state.until = time.monotonic() + (self.options.remote_ms + self.options.connect_ms) / 1000
        self.counts["asked_peers"] += 1
        return True

    def _under_way(self, state: State) -> bool:
        client = self._link.get()
        try:
            if client is not None:
                self.counts["peer_blocks"] += client.remote(state.fetch, 0)
        except DeadlineError:  # they have not, or this one does not answer
            if time.monotonic() < state.until:
                return True
            self._decline(state)
        except KvcacheError as error:
            self._failed(error)
        state.fetch = 0
        return False

    def _decline(self, state: State) -> None:
        fetch, state.fetch = state.fetch, 0
        self._endings.decline(fetch)

    def _renew(self) -> None:
        self._lately.clear()
        self._link.renew()

    def _failed(self, error: KvcacheError) -> None:
        self.counts["failed_lookups"] += 1
        if isinstance(error, SessionError):
            self.counts["daemon_losses"] += 1
            self._lately.clear()
            self._link.lost(error)

    def _drop(self, state: State) -> None:
        lease, state.lease = state.lease, None
        self._endings.release(lease)
        self._decline(state)

    # Being given blocks.

    def allocated(self, request: Any, blocks: Sequence[Sequence[int]], external: int) -> None:
        """update_state_after_alloc: blocks of each group, of the whole request."""
        self.others.given(request.request_id, external)
        state = self._requests.get(request.request_id)
        if state is None:
            return
        state.blocks = [list(ids) for ids in blocks]
        if external == 0 or not state.lease:
            self._drop(state)
            self._lately.found(state, 0)
            return
        lease, state.lease = state.lease, None
        first, count = state.own, external // self.block_tokens
        self._lately.found(state, count)
        self._orders.loads.append(
            LoadOrder(
                request.request_id, lease.token, first - self._in_front(state), count,
                tuple(
                    group_ids(
                        info, ids, first, first + count, state.computed + external, loading=True)
                    for info, ids in zip(self._infos, state.blocks)
                ),
                self._beside(lease),
            )
        )
        self.handed.hand(request.request_id, lease, self._ranks)
        state.name = next(self._names)  # that lease is the workers' now, and is not to be another
        self.counts["ordered_loads"] += 1
        self.counts["hit_requests"] += 1
        self.counts["hit_tokens"] += external

    # Steps.

    def build(self, output: Any) -> StepOrders:
        """build_connector_meta: the orders of this step."""
        self._endings.step(self._parts)
        orders, self._orders = self._orders, StepOrders()
        orders.tokens = sum(output.num_scheduled_tokens.values())
        orders.updates = self._updates
        before: Dict[str, int] = {}
        for name in output.preempted_req_ids or ():
            if name in self._requests:
                self._requests[name].blocks = []  # they may be somebody else's by now
        for new in output.scheduled_new_reqs:
            before[new.req_id] = new.num_computed_tokens
            for ids in new.block_ids:
                orders.fresh.extend(ids)
            state = self._requests.get(new.req_id)
            if state is not None:
                state.blocks = [list(ids) for ids in new.block_ids]
        self._take_cached(output.scheduled_cached_reqs, before, orders)
        self.handed.step(output, orders)
        self.others.step(output, orders)
        self._step += 1
        together = self._step % self._save_every == 0
        if self.options.save:
            for request, scheduled in output.num_scheduled_tokens.items():
                if self.others.hold(request):
                    self._again.add(request)
                    continue
                if scheduled == 1 and not together and request not in self._again:
                    continue
                drafts = len(output.scheduled_spec_decode_tokens.get(request, ()))
                self._order_save(request, before.get(request, 0), scheduled - drafts, orders)
        return orders

    def _take_cached(self, cached: Any, before: Dict[str, int], orders: StepOrders) -> None:
        for i, request in enumerate(cached.req_ids):
            before[request] = cached.num_computed_tokens[i]
            state, new = self._requests.get(request), cached.new_block_ids[i]
            if new is None:
                continue
            orders.fresh.extend(b for ids in new for b in ids)
            if state is None:
                continue
            if request in cached.resumed_req_ids or not state.blocks:
                state.blocks = [list(ids) for ids in new]
            else:
                for have, more in zip(state.blocks, new):
                    have.extend(more)

    def _order_save(self, name: str, before: int, scheduled: int, orders: StepOrders) -> None:
        """Blocks that this step completes. Drafts are not counted: they may be rejected."""
        state = self._requests.get(name)
        if state is None or not state.blocks or state.outdated:
            return
        if self._step % self._save_every and before >= state.request.num_prompt_tokens and (
                name not in self._again):
            return  # each save is a question to the daemon: one for many blocks
        self._again.discard(name)
        end = before + scheduled
        if end // self.block_tokens <= state.saved or not self._usable(state.request):
            return
        if not self.options.save_decoded:
            end = min(end, state.request.num_prompt_tokens)
        end = min(end, state.request.num_tokens)
        n = min(end // self.block_tokens, max(map(len, state.blocks)))
        n = self._blocks.known(state, n)
        self._lately.skip(state, n)
        if n <= state.saved:
            return
        whole = before + scheduled == n * self.block_tokens
        keys = bytes(state.keys[state.saved * KEY_BYTES : n * KEY_BYTES])
        orders.saves.append(
            SaveOrder(
                name, keys,
                tuple(
                    group_ids(info, ids, state.saved, n, before, whole=whole)
                    for info, ids in zip(self._infos, state.blocks)
                ),
                state.saved,
            )
        )
        self._lately.ordered(state, n)
        self.counts["ordered_saves"] += 1

    def reported(
        self, report: Optional[StepReport], invalid: Iterable[int], failed: Iterable[str] = ()
    ) -> None:
        """update_connector_output: leases that the workers have adopted end here; blocks that did
        not arrive, and all of failed requests, are computed, and then saved."""
        bad = set(invalid)
        if bad or failed or (report and report.lost):
            self._lately.clear()
        for name in failed:
            self.counts["failed_requests"] += 1
            if name in self._requests:
                self._requests[name].saved, self._requests[name].failed = 0, True
        if bad:
            self.counts["failed_blocks"] += len(bad)
            for state in self._requests.values():
                hit = [i for ids in state.blocks for i, b in enumerate(ids) if b in bad]
                state.saved = min([state.saved, *hit])
                self.counts["failed_requests"] += bool(hit) and not state.failed
                state.failed = state.failed or bool(hit)
        if report and report.updates > self._updates:
            log.info("kvcached: new weights: what was saved before is a miss")
            self._updates = report.updates
            self.reset()
        if report:
            self.others.known(report.number)
            self._link.pause(report.away)  # what is found could not be loaded
            self.break_even.ranks([report.cost] if report.cost else [])
            self.break_even.computed(report.passes)
            for request, block in report.skipped.items():
                self._save_again(request, block)
        for lease in self.handed.adopted(report.adopted if report else {}):
            self._endings.release(lease)

    def _save_again(self, request: str, block: int) -> None:
        state = self._requests.get(request)
        if state is not None and block < state.saved:
            state.saved = block
            self._lately.forget(state, block)
            self._again.add(request)

    def finished(self, request: Any) -> None:
        """request_finished, or aborted. A lease that was handed over ends by its time, or when its
        last rank has reported."""
        self._again.discard(request.request_id)
        state = self._requests.pop(request.request_id, None)
        if state is not None:
            self._drop(state)
            self._endings.ended(state)

    def reset(self) -> bool:
        """reset_cache: everything saved before is a miss, and what requests have by now is not
        saved any more. It never fails: a daemon that cannot be told of it now is told before anything
        is looked up there again."""
        if not self._ranks:
            return True
        self._lately.clear()
        for state in self._requests.values():
            self._drop(state)
            state.saved, state.named, state.outdated = 0, None, bool(state.blocks)
        self._resets.ask()
        client = self._link.get()
        try:
            if client is not None:
                self._register(client)
        except KvcacheError as error:
            self._failed(error)
        if self._resets.due:
            log.warning("kvcached: the daemon cannot be told of a reset now, and is not asked before")
            self._renew()
        return True
