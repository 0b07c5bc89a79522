"""Leases that were handed to the workers, until all ranks have told that they adopted them; with the
same report they tell what did not arrive of loads that a step waited for."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Set, Tuple

from ..leases import Lease
from .messages import StepOrders

GONE = ""  # stands for a request that had blocks which nobody can tell any more


class Handed:
    """shares: whether a request may have blocks that others have computed or loaded."""

    def __init__(self, shares: Callable[[str], bool]) -> None:
        self._shares = shares
        # By request, to so many ranks each; more than one where it was preempted and admitted again
        # while the first step was in flight.
        self._leases: Dict[str, List[Tuple[Lease, int]]] = {}
        # Of steps from the first one on that waits for loads of which nothing is known yet: requests
        # that load, and those that were admitted.
        self._steps: List[Tuple[Set[str], Set[str]]] = []

    def hand(self, request: str, lease: Lease, ranks: int) -> None:
        self._leases.setdefault(request, []).append((lease, ranks))

    def step(self, output: Any, orders: StepOrders) -> None:
        """A scheduler output, and what the workers are told with it."""
        preempted = set(output.preempted_req_ids or ())
        for _, admitted in self._steps:
            if not preempted.isdisjoint(admitted):
                admitted.add(GONE)  # it may run again by now, with other blocks
        waited = {order.request for order in orders.loads if not order.asynchronous}
        if waited or self._steps:
            new = [new.req_id for new in output.scheduled_new_reqs]
            self._steps.append((waited, set(filter(
                self._shares, [*new, *output.scheduled_cached_reqs.resumed_req_ids]))))

    def adopted(self, ranks: Mapping[str, int]) -> List[Lease]:
        """By so many ranks each, in the order in which they were handed out; those that nobody needs
        any more."""
        over = []
        for request, n in ranks.items():
            leases = self._leases.get(request, [])
            while leases and n:
                lease, left = leases.pop(0)
                if left > n:
                    leases.insert(0, (lease, left - n))
                else:
                    over.append(lease)
                n -= min(n, left)
            if not leases:
                self._leases.pop(request, None)
        while self._steps and self._steps[0][0].isdisjoint(self._leases):
            self._steps.pop(0)
        return over

    def admitted(self) -> Set[str]:
        """Requests that may have computed on blocks whose load a step waited for, and of which it is
        not known yet whether they have arrived. With GONE among them, if one has other blocks now."""
        return {name for _, admitted in self._steps for name in admitted}

    def begun_again(self, names: Set[str]) -> None:
        """Nothing is left of what these had computed."""
        for _, admitted in self._steps:
            admitted -= names
