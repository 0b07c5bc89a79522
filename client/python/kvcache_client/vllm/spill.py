"""Blocks for which the GPU tier has no room now: they are saved to the host tier, beside compute."""

from __future__ import annotations

from typing import List, Sequence

from ..names import KEY_BYTES, join
from ..saves import KeyState, SaveEntry

SKIPPED = int(KeyState.SKIPPED)


def skipped(entries: Sequence[SaveEntry], states: bytes) -> List[SaveEntry]:
    """What was skipped of a save, without blocks that are absent. states: a byte a key."""
    found, at = [], 0
    for entry in entries if SKIPPED in states else ():
        keys = join(entry.keys)
        n = len(keys) // KEY_BYTES
        if SKIPPED in states[at : at + n]:
            which = [i for i in range(n)
                     if states[at + i] == SKIPPED and entry.blocks[i] is not None]
            if which:
                found.append(SaveEntry(
                    entry.part, b"".join(keys[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in which),
                    [entry.blocks[i] for i in which]))
        at += n
    return found


def merged(entries: Sequence[SaveEntry], states: bytes, again: bytes) -> bytes:
    """The states of a save, those of what skipped() found of it being the other ones."""
    all_, at, k = bytearray(states), 0, 0
    for entry in entries:
        for block in entry.blocks:
            if all_[at] == SKIPPED and block is not None:
                all_[at] = again[k]
                k += 1
            at += 1
    return bytes(all_)
