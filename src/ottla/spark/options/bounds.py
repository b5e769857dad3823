"""Where a read begins and ends: the options that say it, and which of them go together.

The rules are those of Spark's own Kafka connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from ottla.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    Latest,
    Named,
    NoMatch,
    Position,
    parse_offsets,
    parse_timestamps,
)
from ottla.spark.options.values import BadOption, as_choice, as_long, raise_bad_option

ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse_range(
    options: Mapping[str, str], *, streaming: bool, has_group: bool
) -> tuple[Position, Position]:
    starting = _position(options, "starting", Latest if streaming else Earliest)
    if starting is Committed and not has_group:
        raise BadOption("option startingOffsets is 'committed', which needs the option groupId")
    if streaming:
        for name in ENDINGS:
            if name.lower() in options:
                raise BadOption(f"option {name} is for batch reads; a stream has no end")
        return starting, Latest
    ending = _position(options, "ending", Latest)
    _check_batch_start(starting)
    _check_batch_end(ending)
    _check_order(starting, ending)
    return starting, ending


def _position(options: Mapping[str, str], side: str, default: Named) -> Position:
    """A time for all partitions wins over times for each, and these over offsets."""
    strategy = as_choice(
        "startingOffsetsByTimestampStrategy",
        options.get("startingoffsetsbytimestampstrategy", "error"),
        ("error", "latest"),
    )
    no_match = cast(NoMatch, strategy)
    name = f"{side}Timestamp"
    text = options.get(name.lower())
    if text is not None:
        return AtTimestamp(as_long(name, text, least=0, example="1735689600000"), no_match)
    name = f"{side}OffsetsByTimestamp"
    text = options.get(name.lower())
    if text is not None:
        return AtTimestamps(parse_timestamps(name, text), no_match)
    name = f"{side}Offsets"
    text = options.get(name.lower(), default.value).strip()
    named = next((one for one in Named if one.value == text.lower()), None)
    if named is not None:
        return named
    if not text.startswith("{"):
        words = "earliest, latest, committed or JSON" if side == "starting" else "latest or JSON"
        raise_bad_option(name, text, words, '{"topicA":{"0":23,"1":-1}}')
    return AtOffsets(parse_offsets(name, text))


def _check_batch_start(starting: Position) -> None:
    if starting is Latest:
        raise BadOption(
            "option startingOffsets cannot be latest in a batch read, which would be empty"
        )
    if isinstance(starting, AtOffsets):
        for partition, offset in starting.offsets.items():
            if offset == LATEST_OFFSET:
                raise BadOption(
                    f"option startingOffsets has -1 (latest) for {partition}; "
                    "a batch read cannot begin at the end"
                )


def _check_batch_end(ending: Position) -> None:
    if ending is Earliest or ending is Committed:
        raise BadOption(f"option endingOffsets cannot be {ending.value}; wanted: latest or JSON")
    if isinstance(ending, AtOffsets):
        for partition, offset in ending.offsets.items():
            if offset == EARLIEST_OFFSET:
                raise BadOption(
                    f"option endingOffsets has -2 (earliest) for {partition}; "
                    "a batch read cannot end at the beginning"
                )


def _check_order(starting: Position, ending: Position) -> None:
    """Two explicit limits must be about the same partitions, and the end not before the start."""
    if isinstance(starting, AtTimestamp) and isinstance(ending, AtTimestamp):
        if starting.ms > ending.ms:
            raise BadOption(
                f"startingTimestamp {starting.ms} is later than endingTimestamp {ending.ms}"
            )
        return
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        first, last = starting.offsets, ending.offsets
    elif isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        first, last = starting.ms, ending.ms
    else:
        return
    if first.keys() != last.keys():
        odd = ", ".join(sorted(str(one) for one in first.keys() ^ last.keys()))
        raise BadOption(f"start and end must name the same partitions; only in one of them: {odd}")
    for partition, begin in first.items():
        if 0 <= last[partition] < begin:
            raise BadOption(
                f"the start {begin} of {partition} is greater than its end {last[partition]}"
            )
