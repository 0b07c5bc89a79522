"""Loads and saves layer by layer, so that a layer is computed while the next ones are loaded, and
saved while the next ones are computed. It takes Python between the layers: with whole CUDA graphs
nothing would call it (the connector asks for piecewise ones).
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..client import Client
from ..errors import DeadlineError, KvcacheError
from ..loads import SlicedLoad
from ..names import KEY_BYTES
from ..saves import Save, SaveEntry
from ..structs import KEYS_MAX
from .streams import NoStreams

ENTRIES_MAX = 64

#: A layer's name, and its slices in its part: the first, and how many.
Layer = Tuple[str, int, int]


def _number(name: str) -> int:
    found = re.search(r"\.(\d+)\.", f".{name}.")
    return int(found.group(1)) if found else 0


class LayerLoads:
    """The loads of one step, on the side stream; compute waits for a layer before it runs."""

    def __init__(self, groups: Sequence[Sequence[Layer]], streams: NoStreams) -> None:
        self._streams = streams
        self._order = sorted(
            ((name, g, first, n) for g, layers in enumerate(groups) for name, first, n in layers),
            key=lambda layer: (_number(layer[0]), layer[1], layer[2]),
        )
        self._marks: Dict[str, Any] = {}

    def start(self, loads: Sequence[Tuple[int, SlicedLoad]]) -> None:
        """loads: each with its group. In the order in which the layers will run."""
        self._streams.after_compute()
        for name, group, first, n in self._order:
            mine = [load for g, load in loads if g == group]
            for load in mine:
                load.load(first, n, stream=self._streams.side())
            if mine:
                self._marks[name] = self._streams.mark()

    def needed(self, name: str) -> None:
        """The layer is about to run."""
        if name in self._marks:
            self._streams.compute_after(self._marks.pop(name))

    def end(self) -> None:
        """Whatever was not asked for is behind compute from now on, too."""
        for name in list(self._marks):
            self.needed(name)


@dataclasses.dataclass
class _Saving:
    group: int
    entries: List[SaveEntry]
    save: Optional[Save] = None
    failed: bool = False
    given: int = 0  # layers


class LayerSaves:
    """The saves of one step. The last layer's slices are held back until the step's loads have been
    judged: with them the blocks are published."""

    def __init__(self, groups: Sequence[Sequence[Layer]], streams: NoStreams) -> None:
        self._groups, self._streams = groups, streams
        self._where = {
            name: (g, i) for g, layers in enumerate(groups) for i, (name, _, _) in enumerate(layers)
        }
        self._client: Optional[Client] = None
        self._savings: List[_Saving] = []
        self.errors: List[KvcacheError] = []

    def begin(self, client: Client, entries: Sequence[Tuple[int, SaveEntry]]) -> None:
        """entries: each with its group."""
        self._client, self._savings = client, []
        for group in range(len(self._groups)):
            room = 0
            for g, entry in entries:
                n = len(entry.keys) // KEY_BYTES
                if g != group or n == 0:
                    continue
                full = room < n or len(self._savings[-1].entries) == ENTRIES_MAX
                if full:
                    self._savings.append(_Saving(group, []))
                    room = KEYS_MAX
                self._savings[-1].entries.append(entry)
                room -= n

    def computed(self, name: str) -> None:
        """The layer has been enqueued on the compute stream."""
        if name not in self._where:
            return
        group, i = self._where[name]
        if i == len(self._groups[group]) - 1:
            return
        for saving in self._savings:
            if saving.group == group and saving.given == i:
                self._give(saving)

    def _give(self, saving: _Saving) -> None:
        """The next layer of it."""
        _, first, n = self._groups[saving.group][saving.given]
        saving.given += 1
        if saving.failed or self._client is None:
            return
        try:
            if saving.save is None:
                saving.save = self._client.save_entries(
                    saving.entries, stream=self._streams.compute(), slices=(first, n), no_wait=True
                )
            else:
                saving.save.more(first, n, stream=self._streams.compute())
        except KvcacheError as error:
            saving.failed = True
            self.errors.append(error)

    def end(self, trusted: bool) -> List[Tuple[Save, List[SaveEntry]]]:
        """Gives what is missing, or ends all of them; those that are complete, and of what."""
        done = []
        for saving in self._savings:
            while trusted and saving.given < len(self._groups[saving.group]):
                self._give(saving)
            if trusted and not saving.failed and saving.save is not None:
                done.append((saving.save, saving.entries))
            elif saving.save is not None:
                self._cancel(saving.save)
        self._savings = []
        return done

    def _cancel(self, save: Save) -> None:
        try:
            if save.id:
                save.cancel(0)
        except DeadlineError:
            pass  # nobody waits for that answer
        except KvcacheError as error:
            self.errors.append(error)
