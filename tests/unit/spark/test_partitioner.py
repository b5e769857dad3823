"""Keys go where Kafka's clients send them: numbers made by running Kafka 4.0's Java classes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ottla.spark.encoding import rows_numba
from ottla.spark.encoding.partitioner import murmur2, murmur2_of_all, partition_of

# Utils.murmur2(key), BuiltInPartitioner.partitionForKey(key, 12): most are in its UtilsTest.
FROM_JAVA = {
    b"": (275646681, 9),
    b"a": (-1563381124, 4),
    b"ab": (316155434, 2),
    b"abc": (479470107, 3),
    b"21": (-973932308, 0),
    b"foobar": (-790332482, 6),
    b"a-little-bit-long-string": (-985981536, 8),
    b"a-little-bit-longer-string": (-1486304829, 11),
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": (-58897971, 5),
}
# SHA-256 over what Java said of the thousand keys below, as decimal numbers with commas.
THOUSAND_FROM_JAVA = "fc63846c1bcaefad3577be260915d79577694e30ba4facea755ca35cfdc34cb5"


def thousand_keys() -> list[bytes]:
    """All lengths up to 130, all bytes, from a generator that is one line in Java as well."""
    state = 1
    keys = []
    for number in range(1000):
        key = bytearray()
        for _ in range(number % 131):
            state = (state * 1103515245 + 12345) & 0xFFFFFFFF
            key.append(state >> 16 & 0xFF)
        keys.append(bytes(key))
    return keys


def by_python(keys: list[bytes]) -> list[int]:
    return [murmur2(key) for key in keys]


def by_numpy(keys: list[bytes]) -> list[int]:
    return murmur2_of_all(*in_one_buffer(keys)).tolist()


def by_numba(keys: list[bytes]) -> list[int]:
    data, starts, lengths = in_one_buffer(keys)
    return [
        int(rows_numba.murmur2(data, start, length))
        for start, length in zip(starts, lengths, strict=True)
    ]


def in_one_buffer(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.array([len(key) for key in keys], np.int64)
    data = np.frombuffer(b"".join(keys), np.uint8)
    return data, np.cumsum(lengths) - lengths, lengths


WAYS = pytest.mark.parametrize("hash_all", [by_python, by_numpy, by_numba])


def signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


@WAYS
def test_hashes_are_those_of_the_java_client(hash_all) -> None:
    found = [signed(number) for number in hash_all(list(FROM_JAVA))]
    assert found == [number for number, _ in FROM_JAVA.values()]


@WAYS
def test_a_thousand_keys_hash_as_in_java(hash_all) -> None:
    text = ",".join(str(signed(number)) for number in hash_all(thousand_keys()))
    assert hashlib.sha256(text.encode()).hexdigest() == THOUSAND_FROM_JAVA


def test_few_and_long_keys_take_numpys_other_way() -> None:
    few = [b"x" * 1001, b"", b"y" * 77]
    many = [*few, *(b"key-%07d" % number for number in range(20))]
    for keys in (few, many):
        assert by_numpy(keys) == by_python(keys)
    assert by_numpy([]) == []


def test_partitions_are_those_of_the_java_client() -> None:
    found = {key: partition_of(key, 12) for key in FROM_JAVA}
    assert found == {key: partition for key, (_, partition) in FROM_JAVA.items()}
