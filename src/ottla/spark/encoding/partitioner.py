"""Which partition a key belongs to: as Kafka's clients decide it, so that both find the same.

`org.apache.kafka.common.utils.Utils.murmur2` with its 32-bit arithmetic; librdkafka calls it the
partitioner `murmur2_random`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

SEED: Final = 0x9747B28C
MIX: Final = 0x5BD1E995
SHIFT: Final = 24
POSITIVE: Final = 0x7FFFFFFF
_WORD: Final = 0xFFFFFFFF

# Below this many rows a word of each by numpy costs more than a word of each by Python.
_ROWS_WORTH_NUMPY: Final = 16

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def murmur2(key: bytes) -> int:
    """The hash as the unsigned number with the bits of Java's."""
    return _finish(_mix_words((SEED ^ len(key)) & _WORD, key, 0), key)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key that is not null; the empty key is one."""
    return (murmur2(key) & POSITIVE) % partitions


def murmur2_of_all(data: Bytes, starts: Numbers, lengths: Numbers) -> npt.NDArray[np.uint32]:
    """The hashes of many keys in one buffer, a word of every key at a time; lengths are ≥ 0."""
    hashes = (np.uint32(SEED) ^ lengths.astype(np.uint32)).astype(np.uint32)
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    h = hashes[longest_first]
    words = lengths >> 2
    # The longest come first: those that still have a word are always the first so many.
    word = 0
    while (alive := int(np.searchsorted(-words, -word, side="left"))) >= _ROWS_WORTH_NUMPY:
        at = starts[:alive] + 4 * word
        k = _word_at(data, at)
        h[:alive] = h[:alive] * np.uint32(MIX) ^ _scramble(k)
        word += 1
    for row in range(alive):
        key = data[starts[row] : starts[row] + lengths[row]].tobytes()
        h[row] = _mix_words(int(h[row]), key, 4 * word)
    h = _finish_all(h, data, starts, lengths)
    hashes[longest_first] = h
    return hashes


def _mix_words(h: int, key: bytes, pos: int) -> int:
    for at in range(pos, len(key) & ~3, 4):
        k = int.from_bytes(key[at : at + 4], "little") * MIX & _WORD
        k ^= k >> SHIFT
        h = (h * MIX & _WORD) ^ (k * MIX & _WORD)
    return h


def _finish(h: int, key: bytes) -> int:
    rest = len(key) & 3
    if rest:
        h = (h ^ int.from_bytes(key[-rest:], "little")) * MIX & _WORD
    h = (h ^ h >> 13) * MIX & _WORD
    return h ^ h >> 15


def _finish_all(
    h: npt.NDArray[np.uint32], data: Bytes, starts: Numbers, lengths: Numbers
) -> npt.NDArray[np.uint32]:
    rest = lengths & 3
    tails = starts + (lengths & ~3)
    for place in (2, 1, 0):
        has = np.flatnonzero(rest > place)
        h[has] ^= data[tails[has] + place].astype(np.uint32) << np.uint32(8 * place)
    mixed = np.flatnonzero(rest)
    h[mixed] *= np.uint32(MIX)
    h ^= h >> np.uint32(13)
    h *= np.uint32(MIX)
    h ^= h >> np.uint32(15)
    return h


def _word_at(data: Bytes, at: Numbers) -> npt.NDArray[np.uint32]:
    k = data[at].astype(np.uint32)
    for place in (1, 2, 3):
        k |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return k


def _scramble(k: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    k = k * np.uint32(MIX)
    k ^= k >> np.uint32(SHIFT)
    return k * np.uint32(MIX)
