"""Whether a transaction may begin in this partition (KIP-890).

Before the first batch of a transaction is taken, its coordinator is asked whether it knows of it.
While it is asked, a marker may come and end that transaction: then the answer is worth nothing. So
whoever asks gets an object here first and shows it with the batch; anything that is appended for
the producer meanwhile takes it out of use.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import InvalidTransactionState, OutOfOrderSequence
from ottla.wire.records import BatchHeader

# Of one partition; past it the oldest are given up, and their producers refused.
VERIFICATIONS_MAX: Final = 10_000


class Verification:
    """One question about a producer; those who ask at the same time share it."""

    __slots__ = ("epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, lowest_sequence: int, since_ms: int) -> None:
        self.epoch = epoch
        # The first batch of several under way has to come first.
        self.lowest_sequence = lowest_sequence
        self.since_ms = since_ms


class Verifications(dict[int, Verification]):
    """By producer; asked for every batch of one whether there are any."""

    def begin(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Verification:
        known = self.get(producer_id)
        if known is None or known.epoch < epoch:
            if len(self) >= VERIFICATIONS_MAX:
                del self[next(iter(self))]
            known = self[producer_id] = Verification(epoch, sequence, now_ms)
        elif known.epoch == epoch and sequence < known.lowest_sequence:
            known.lowest_sequence = sequence
        return known

    def end(self, producer_id: int) -> None:
        self.pop(producer_id, None)

    def check(self, header: BatchHeader, verification: Verification | None) -> None:
        known = self.get(header.producer_id)
        if known is None or known is not verification or known.epoch != header.producer_epoch:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has no transaction here that its coordinator knows"
            )
        if header.base_sequence > known.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, "
                f"but {known.lowest_sequence} is still asked about"
            )

    def expire(self, now_ms: int, expiry_ms: int) -> None:
        late = [
            producer_id
            for producer_id, known in self.items()
            if now_ms - known.since_ms >= expiry_ms
        ]
        for producer_id in late:
            del self[producer_id]
