"""Which offset is the newest of each key, in a fixed amount of memory.

A table of 24 bytes per slot: what stands for the key in 16, the offset in 8. A dict of the same
keys takes seven times as much. A key of up to 15 bytes stands for itself; of a longer one 120 bits
of BLAKE2b do, so that no two keys are ever taken for one another in practice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

SLOT_BYTES: Final = 24
# Above this share, looking for a key that is not there takes too many steps.
FILLED_MAX: Final = 0.75
SLOTS_MIN: Final = 16
NOT_THERE: Final = -1

_NAME_BYTES: Final = 16
_KEY_BYTES_MAX: Final = _NAME_BYTES - 1
# What makes a name of a short key: zeros up to the last byte, which is one more than its length.
# So no two keys get the same name, and the last byte of a slot that is taken is never zero.
_PADDING: Final = tuple(
    bytes(_KEY_BYTES_MAX - size) + bytes([size + 1]) for size in range(_NAME_BYTES)
)
_DIGEST: Final = b"\xff"
_OFFSET: Final = struct.Struct("<q")


def _name_of_long(key: bytes) -> bytes:
    return blake2b(key, digest_size=_KEY_BYTES_MAX).digest() + _DIGEST


class KeyMap:
    """Takes at most `byte_count` bytes, and less when no more than `keys_expected` can come."""

    __slots__ = ("_mask", "_table", "count", "keys_max")

    def __init__(self, byte_count: int, keys_expected: int) -> None:
        slots = max(SLOTS_MIN, 1 << (max(1, byte_count // SLOT_BYTES).bit_length() - 1))
        while slots > SLOTS_MIN and slots // 2 * FILLED_MAX > keys_expected:
            slots //= 2
        self._mask = slots - 1
        self._table = bytearray(slots * SLOT_BYTES)
        self.keys_max = int(slots * FILLED_MAX)
        self.count = 0

    def put_all(self, keys: Sequence[bytes | None], offsets: Sequence[int], first: int) -> bool:
        """Takes note of newer offsets from `first` on; False when there is no room for a key."""
        table, mask, keys_max = self._table, self._mask, self.keys_max
        pack_into = _OFFSET.pack_into
        for key, offset in zip(keys, offsets, strict=True):
            if key is None or offset < first:
                continue
            size = len(key)
            name = key + _PADDING[size] if size <= _KEY_BYTES_MAX else _name_of_long(key)
            slot, step = hash(name) & mask, 0
            while True:
                at = slot * SLOT_BYTES
                if not table[at + _KEY_BYTES_MAX]:
                    if self.count >= keys_max:
                        return False
                    self.count += 1
                    table[at : at + _NAME_BYTES] = name
                    break
                if table.startswith(name, at):
                    break
                # Steps of 1, 2, 3 … come past every slot of a table sized a power of two.
                step += 1
                slot = (slot + step) & mask
            pack_into(table, at + _NAME_BYTES, offset)
        return True

    def newest(self, keys: Sequence[bytes | None]) -> list[int]:
        """The newest offset of each key; -1 for one that is not in the map."""
        table, mask = self._table, self._mask
        unpack_from = _OFFSET.unpack_from
        found = []
        for key in keys:
            if key is None:
                found.append(NOT_THERE)
                continue
            size = len(key)
            name = key + _PADDING[size] if size <= _KEY_BYTES_MAX else _name_of_long(key)
            slot, step = hash(name) & mask, 0
            while True:
                at = slot * SLOT_BYTES
                if not table[at + _KEY_BYTES_MAX]:
                    found.append(NOT_THERE)
                    break
                if table.startswith(name, at):
                    found.append(unpack_from(table, at + _NAME_BYTES)[0])
                    break
                step += 1
                slot = (slot + step) & mask
        return found
