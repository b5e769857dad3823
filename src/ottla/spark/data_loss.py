"""What retention or a deleted topic took away before the query came to it.

Whether that ends the query is the user's choice (failOnDataLoss); that it is said is not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.errors import OttlaError
from ottla.spark.planning import SHOWN_MAX, LogEnds, OffsetRange, Offsets, ranges
from ottla.types import TopicPartition

log = logging.getLogger(__name__)

WAY_OUT: Final = (
    "set failOnDataLoss=false to go on with what is available, or begin with a new checkpoint"
)


class DataLost(OttlaError):
    """Records that the query has not read are gone, in one line that says which."""


class Loss(NamedTuple):
    """Offsets that were wanted and are not there; `ends` is None when the partition is gone."""

    partition: TopicPartition
    wanted: int
    ends: LogEnds | None

    def __str__(self) -> str:
        where = f"topic {self.partition.topic} partition {self.partition.partition}"
        if self.ends is None:
            return f"{where}: offset {self.wanted} was wanted and the partition is gone"
        earliest, latest = self.ends
        if self.wanted > latest:
            reason = "the log is shorter than it was: the topic was made anew or a leader lost data"
        else:
            reason = "retention or a deletion has overtaken the query"
        return (
            f"{where}: offset {self.wanted} was wanted, available are {earliest} to {latest} "
            f"({reason})"
        )


def tell(losses: Sequence[Loss]) -> str:
    """All of it in one line, the first few by name."""
    told = "; ".join(str(loss) for loss in losses[:SHOWN_MAX])
    more = f"; and {len(losses) - SHOWN_MAX} more" if len(losses) > SHOWN_MAX else ""
    return f"{told}{more}"


def losses(start: Offsets, ends: Mapping[TopicPartition, LogEnds]) -> list[Loss]:
    """Positions that the logs no longer have, or do not have yet."""
    lost = []
    for partition in sorted(start):
        found = ends.get(partition)
        wanted = start[partition]
        if found is None or not found.earliest <= wanted <= found.latest:
            lost.append(Loss(partition, wanted, found))
    return lost


def late_beginnings(new: Mapping[TopicPartition, LogEnds]) -> list[Loss]:
    """New partitions whose first records went before they were seen."""
    return [Loss(p, 0, found) for p, found in sorted(new.items()) if found.earliest > 0]


def within(
    start: Offsets, end: Offsets, ends: Mapping[TopicPartition, LogEnds]
) -> tuple[list[OffsetRange], list[Loss]]:
    """The ranges between two offsets cut to what is there, and what was cut off."""
    kept: list[OffsetRange] = []
    lost: list[Loss] = []
    for wanted in ranges(start, end):
        found = ends.get(wanted.partition)
        if found is None:
            lost.append(Loss(wanted.partition, wanted.start, None))
            continue
        cut = wanted._replace(
            start=max(wanted.start, found.earliest), end=min(wanted.end, found.latest)
        )
        if cut.start > wanted.start:
            lost.append(Loss(wanted.partition, wanted.start, found))
        elif cut.end < wanted.end:
            lost.append(Loss(wanted.partition, wanted.end, found))
        if cut.size > 0:
            kept.append(cut)
    return kept, lost


def report(lost: Sequence[Loss], *, fail: bool) -> None:
    """Raises DataLost, or says in the log that the query goes on without what is gone."""
    if not lost:
        return
    if fail:
        raise DataLost(f"{tell(lost)}; {WAY_OUT}")
    log.warning("%s; failOnDataLoss is false, so the query goes on", tell(lost))
