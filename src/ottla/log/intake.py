"""What a follower takes of the bytes that its leader sent: whole batches, checked, in order.

They are the leader's own, so nothing is assigned or stamped here. But they have come over a wire,
and the CRC covers neither offsets nor epochs; what they would break is checked here. All is looked
at before any of it is taken: a bad batch leaves the log as it was.
"""

from __future__ import annotations

from ottla.errors import CorruptBatch
from ottla.log.scan import OFFSET_DELTA_MAX
from ottla.types import LeaderEpoch
from ottla.wire.records import BatchHeader, crc_matches, headers_in


class BatchBeginsEarlier(CorruptBatch):
    """An empty log begins in the middle of the leader's first batch: `restart_at` its beginning.

    DeleteRecords can move a leader's start there; a batch is given as a whole.
    """

    def __init__(self, base_offset: int, end_offset: int) -> None:
        super().__init__(f"a batch from {base_offset} on, for an empty log at {end_offset}")
        self.base_offset = base_offset


def batches_to_take(
    data: memoryview,
    end_offset: int,
    last_epoch: LeaderEpoch,
    epoch_max: LeaderEpoch,
    *,
    is_empty: bool,
) -> list[tuple[int, BatchHeader]]:
    """Positions and headers; CorruptBatch on what no leader has.

    A batch cut short at the end is left out, as is everything from an epoch above `epoch_max` on:
    a leader that has just lost its lead may have sent what its successor wrote (KAFKA-18723).
    """
    taken: list[tuple[int, BatchHeader]] = []
    next_offset, epoch = end_offset, int(last_epoch)
    for at, header in headers_in(data):
        if not crc_matches(data, at, header):
            raise CorruptBatch(f"a wrong CRC of the batch at offset {header.base_offset}")
        if header.leader_epoch > epoch_max:
            break
        base_offset, delta = header.base_offset, header.last_offset_delta
        if (
            base_offset < next_offset
            or header.leader_epoch < epoch
            or not 0 <= header.count <= delta + 1
            or base_offset + delta - next_offset > OFFSET_DELTA_MAX
        ):
            raise _objection(header, next_offset, epoch, is_empty=is_empty and not taken)
        taken.append((at, header))
        next_offset, epoch = base_offset + delta + 1, header.leader_epoch
    return taken


def _objection(
    header: BatchHeader, next_offset: int, epoch: int, *, is_empty: bool
) -> CorruptBatch:
    if not 0 <= header.count <= header.last_offset_delta + 1:
        return CorruptBatch(f"{header.count} records in {header.last_offset_delta + 1} offsets")
    if header.base_offset < next_offset:
        if is_empty and header.base_offset >= 0 and next_offset <= header.last_offset:
            return BatchBeginsEarlier(header.base_offset, next_offset)
        return CorruptBatch(f"a batch at offset {header.base_offset} after {next_offset - 1}")
    if header.leader_epoch < epoch:
        return CorruptBatch(f"a batch of leader epoch {header.leader_epoch} after one of {epoch}")
    # A segment begins where the one before it ends, and reaches no further than its index can say.
    return CorruptBatch(f"a batch at offset {header.base_offset}, the log ends at {next_offset}")
