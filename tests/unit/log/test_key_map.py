"""The map from keys to offsets, against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.log.compaction.key_map import FILLED_MAX, SLOT_BYTES, KeyMap

# Keys that differ in nothing but trailing zeros, or lie around the length that is digested.
keys = st.one_of(
    st.binary(max_size=3),
    st.integers(0, 40).map(bytes),
    st.integers(0, 40).map(lambda size: b"\xff" * size),
)


@given(st.lists(st.tuples(keys, st.integers(0, 2**62)), max_size=100))
def test_the_map_says_what_a_dict_says(pairs: list[tuple[bytes, int]]) -> None:
    key_map, known = KeyMap(1 << 20, 1000), {}
    for key, offset in pairs:
        assert key_map.put_all([key], [offset], 0)
        known[key] = offset
    assert key_map.count == len(known)
    asked = [*known, b"never", None]
    assert key_map.newest(asked) == [known.get(key, -1) if key is not None else -1 for key in asked]


def test_a_full_map_takes_known_keys_and_no_others() -> None:
    key_map = KeyMap(64 * SLOT_BYTES, 1000)
    assert key_map.keys_max == 64 * FILLED_MAX
    names = [b"%d" % number for number in range(key_map.keys_max)]
    assert key_map.put_all(names, range(len(names)), 0)
    assert not key_map.put_all([b"one more"], [99], 0)
    assert key_map.put_all([b"7"], [100], 0)
    assert key_map.newest([b"7", b"8", b"one more"]) == [100, 8, -1]


def test_offsets_before_the_dirty_range_and_records_without_a_key_are_passed_over() -> None:
    key_map = KeyMap(1 << 20, 1000)
    assert key_map.put_all([b"a", None, b"b"], [4, 5, 6], 5)
    assert key_map.newest([b"a", None, b"b"]) == [-1, -1, 6]


def test_a_map_is_no_larger_than_it_is_allowed_and_needs_to_be() -> None:
    assert len(KeyMap(128 << 20, 10**9)._table) <= 128 << 20
    assert KeyMap(128 << 20, 10**9).keys_max > 3_000_000
    assert len(KeyMap(128 << 20, 1000)._table) < 64 * 1024
