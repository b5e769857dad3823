"""What compaction has to know of transactions: how each one ended.

It is read from the markers in the log, as the range has to be read anyway. A transaction that has
no marker within the range is undecided: compaction stops in front of it. So no transaction is ever
cleaned in halves, and what lies before the cleaned offset is decided. Of the aborted ones no record
is left there, so the transaction index need not tell of them any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.markers import ABORT, COMMIT, OTHER, read_marker
from ottla.wire.records import BatchHeader
from ottla.wire.schema import Buffer


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int


class Outcomes(NamedTuple):
    """Aborted transactions by first offset, and where the first one begins that has no end."""

    aborted: list[Aborted]
    undecided_from: int | None


def read_outcomes(batches: Iterable[tuple[BatchHeader, Buffer]], first_dirty: int) -> Outcomes:
    aborted: list[Aborted] = []
    begun: dict[int, int] = {}
    for header, batch in batches:
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and marker.kind == OTHER:
                continue
            first_offset = begun.pop(header.producer_id, None)
            if first_offset is not None and marker is not None and marker.kind == ABORT:
                aborted.append(Aborted(header.producer_id, first_offset))
        elif header.is_transactional:
            begun.setdefault(header.producer_id, header.base_offset)
    aborted.sort(key=lambda transaction: transaction.first_offset)
    undecided = [offset for offset in begun.values() if offset >= first_dirty]
    return Outcomes(aborted, min(undecided, default=None))


class Transactions:
    """Goes along the log and says of each batch whether its transaction lets it go."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._to_come = deque(outcomes.aborted)
        # Whether a batch of the aborted transaction has been met.
        self._aborted: dict[int, bool] = {}
        self._committed: set[int] = set()

    def lets_go(self, header: BatchHeader, batch: Buffer) -> bool:
        """Records of aborted transactions may go; a marker, once no batch before it is left."""
        if not header.is_control and not header.is_transactional:
            return False
        self._come_to(header.last_offset)
        producer_id = header.producer_id
        if header.is_control:
            marker = read_marker(batch)
            return self._lets_marker_go(producer_id, None if marker is None else marker.kind)
        if producer_id in self._aborted:
            self._aborted[producer_id] = True
            return True
        self._committed.add(producer_id)
        return False

    def _lets_marker_go(self, producer_id: int, kind: int | None) -> bool:
        if kind is None:
            return True
        if kind == ABORT:
            return not self._aborted.pop(producer_id, False)
        if kind == COMMIT:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False
            return True
        return False

    def _come_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0].first_offset <= offset:
            self._aborted.setdefault(self._to_come.popleft().producer_id, False)
