"""Which stream a copy is enqueued on. Without a GPU there are none."""

from __future__ import annotations

from typing import Any, List, Tuple


class NoStreams:
    """The host device: a copy has been made when its call returns."""

    def compute(self) -> Any:
        return None

    def side(self) -> Any:
        return None

    def after_compute(self) -> None:
        """What is enqueued on the side stream from now on runs behind what compute has now."""

    def mark(self) -> Any:
        """A place on the side stream."""

    def passed(self, mark: Any) -> bool:
        return True

    def compute_after(self, mark: Any) -> None:
        """What compute is given from now on runs behind the mark."""


class TorchStreams(NoStreams):
    """torch's current stream, and one beside it."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda, self._device = torch.cuda, device
        self._side = torch.cuda.Stream(device)

    def compute(self) -> Any:
        return self._cuda.current_stream(self._device)

    def side(self) -> Any:
        return self._side

    def after_compute(self) -> None:
        self._side.wait_stream(self.compute())

    def mark(self) -> Any:
        event = self._cuda.Event()
        event.record(self._side)
        return event

    def passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def compute_after(self, mark: Any) -> None:
        self.compute().wait_event(mark)


class Reading:
    """Blocks that saves on the side stream still read: what overwrites them has to wait."""

    def __init__(self, streams: NoStreams) -> None:
        self._streams = streams
        self._marks: List[Tuple[Any, frozenset[int]]] = []

    def add(self, blocks: frozenset[int]) -> None:
        self._marks.append((self._streams.mark(), blocks))

    def overwritten(self, blocks: List[int]) -> int:
        """Compute is about to write these; how many marks it was put behind."""
        self._marks = [(m, b) for m, b in self._marks if not self._streams.passed(m)]
        waits = [m for m, b in self._marks if not b.isdisjoint(blocks)]
        for mark in waits:
            self._streams.compute_after(mark)
        return len(waits)
