"""Orders to save as the library takes them: entries of one group each, in packets."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from ..names import KEY_BYTES
from ..parts import Part
from ..saves import SaveEntry
from ..structs import KEYS_MAX
from .layers import ENTRIES_MAX
from .messages import SaveOrder


def together(orders: Sequence[SaveOrder]) -> SaveOrder:
    """As one: an entry costs as much as some blocks of it."""
    if len(orders) == 1:
        return orders[0]
    ids = tuple([b for ids in group for b in ids] for group in zip(*(o.ids for o in orders)))
    return SaveOrder("", b"".join([o.keys for o in orders]), ids)


def entries_of(order: SaveOrder, parts: Sequence[Part]) -> List[Tuple[int, SaveEntry]]:
    """Of an order, cut at prefixes, each with its group. parts: of the groups."""
    found, piece = [], KEYS_MAX // len(parts)
    for at in range(0, len(order.keys) // KEY_BYTES, piece):
        keys = order.keys[at * KEY_BYTES : (at + piece) * KEY_BYTES]
        for group, (part, ids) in enumerate(zip(parts, order.ids)):
            some = ids[at : at + piece]
            if any(b is not None for b in some):
                found.append((group, SaveEntry(part, keys, some)))
    return found


def packed(orders: Sequence[SaveOrder], parts: Sequence[Part]) -> List[List[SaveEntry]]:
    """At most KEYS_MAX keys and ENTRIES_MAX entries in one save, cut at prefixes."""
    packets: List[List[SaveEntry]] = [[]]
    room = KEYS_MAX
    for _, entry in entries_of(together(orders), parts):
        n = len(entry.keys) // KEY_BYTES
        if n > room or len(packets[-1]) == ENTRIES_MAX:
            packets.append([])
            room = KEYS_MAX
        packets[-1].append(entry)
        room -= n
    return [p for p in packets if p]
