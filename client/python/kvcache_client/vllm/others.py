"""Loads of other connectors in front of a step (vLLM's MultiConnector): whether they came is known with
the step's report. Until then nothing is saved of requests that were admitted in that step or behind it,
since they may have been computed on what did not come, perhaps by way of the engine's own cache."""

from __future__ import annotations

from typing import Any, Dict, List, Set, Tuple

from .messages import StepOrders


class Others:
    def __init__(self) -> None:
        self.on = False  # there are some
        # Of requests that were asked for since the last step: tokens that are there, or loaded here.
        self._asked: Dict[str, int] = {}
        self._number = 0
        # Steps of which nothing is known yet, from the first one with such a load on; who was admitted.
        self._steps: List[Tuple[int, Set[str]]] = []

    def asked(self, request: str, computed: int) -> None:
        if self.on:
            self._asked[request] = computed

    def given(self, request: str, external: int) -> None:
        """Tokens that are loaded here."""
        if request in self._asked:
            self._asked[request] += external

    def step(self, output: Any, orders: StepOrders) -> None:
        """A scheduler output. A load beside the steps was asked for in an earlier one."""
        if not self.on:
            return
        self._number += 1
        admitted = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        if cached.resumed_req_ids:
            admitted.update((name, n) for name, n in zip(cached.req_ids, cached.num_computed_tokens)
                            if name in cached.resumed_req_ids)
        by_others = any(n > self._asked.get(name, n) for name, n in admitted.items())
        self._asked.clear()
        if by_others or self._steps:
            self._steps.append((self._number, set(admitted)))
            orders.number = self._number

    def known(self, number: int) -> None:
        """What steps up to this one lacked has been told."""
        while self._steps and self._steps[0][0] <= number:
            self._steps.pop(0)

    def hold(self, request: str) -> bool:
        return any(request in admitted for _, admitted in self._steps)
