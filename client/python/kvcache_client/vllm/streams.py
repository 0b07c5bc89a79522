"""Which stream a copy is enqueued on. Without a GPU there are none."""

from __future__ import annotations

import time
from typing import Any, Iterable, List, Optional, Tuple

PROBE_BYTES = 16 << 20
PROBES = 5


class Timer:
    """Time between two calls."""

    def begin(self) -> None:
        self._at = time.perf_counter()

    def end(self) -> None:
        self._took = time.perf_counter() - self._at

    def seconds(self) -> Optional[float]:
        """None: what was enqueued between the two is not over yet."""
        return self._took


class TorchTimer(Timer):
    """Time on a stream between two places."""

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._stream = stream
        self._events = [cuda.Event(enable_timing=True) for _ in range(2)]

    def begin(self) -> None:
        self._events[0].record(self._stream)

    def end(self) -> None:
        self._events[1].record(self._stream)

    def seconds(self) -> Optional[float]:
        if not self._events[1].query():
            return None
        return float(self._events[0].elapsed_time(self._events[1])) / 1000


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

    def side_after(self, mark: Any) -> None:
        """What the side stream is given from now on runs behind the mark, which is another's."""

    def another(self) -> "NoStreams":
        """The same compute, with a side stream of its own."""
        return self

    def timer(self) -> Timer:
        """Of what compute is given between its begin() and end()."""
        return Timer()

    def copy_seconds(self) -> Tuple[float, float]:
        """Of a byte: from memory like the GPU tier's, and like the host tier's."""
        source, target = bytearray(PROBE_BYTES // 4), bytearray(PROBE_BYTES // 4)
        took = []
        for _ in range(PROBES):
            at = time.perf_counter()
            target[:] = source
            took.append(time.perf_counter() - at)
        return (min(took) / len(source),) * 2


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

    def side_after(self, mark: Any) -> None:
        self._side.wait_event(mark)

    def another(self) -> "TorchStreams":
        return TorchStreams(self._device)

    def timer(self) -> Timer:
        return TorchTimer(self._cuda, self.compute())

    def copy_seconds(self) -> Tuple[float, float]:
        import torch

        try:
            target = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=self._device)
            near = torch.zeros_like(target)
            far = torch.zeros(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            return 0.0, 0.0  # no memory to spare
        found = []
        for source in (near, far):
            took = []
            for _ in range(PROBES):
                timer = self.timer()
                timer.begin()
                target.copy_(source, non_blocking=True)
                timer.end()
                self._cuda.synchronize(self._device)
                took.append(timer.seconds() or 0.0)
            found.append(min(took) / PROBE_BYTES)
        return found[0], found[1]


class Reading:
    """Blocks that saves on their side stream still read: what overwrites them has to wait."""

    def __init__(self, streams: NoStreams) -> None:
        self._streams = streams
        self._marks: List[Tuple[Any, frozenset[int]]] = []

    def add(self, blocks: frozenset[int]) -> None:
        self._marks.append((self._streams.mark(), blocks))

    def overwritten(self, blocks: Iterable[int]) -> int:
        """Compute is about to write these; how many marks it was put behind."""
        return self._wait(self._of(blocks))

    def loaded(self, blocks: Iterable[int], streams: NoStreams) -> int:
        """The same of loads on the side stream of those."""
        marks = self._of(blocks)
        for mark in marks:
            streams.side_after(mark)
        return len(marks)

    def _of(self, blocks: Iterable[int]) -> List[Any]:
        self._marks = [(m, b) for m, b in self._marks if not self._streams.passed(m)]
        return [m for m, b in self._marks if not b.isdisjoint(blocks)]

    def all_overwritten(self) -> int:
        """The same of whatever is read: nobody will say which blocks compute writes."""
        marks, self._marks = self._marks, []
        return self._wait([m for m, _ in marks if not self._streams.passed(m)])

    def _wait(self, marks: List[Any]) -> int:
        for mark in marks:
            self._streams.compute_after(mark)
        return len(marks)
