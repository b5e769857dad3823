"""What a log tells of the producers that write to it, and of their transactions."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.log.handles import Handles
from ottla.log.opening.listing import Loaded
from ottla.log.producer_state import Producer
from ottla.log.values import LogConfig, LogPosition
from ottla.log.verification import Verification
from ottla.log.view import LogView
from ottla.wire.records import BatchHeader


class ProducerLog(LogView):
    __slots__ = ("_producers",)

    def __init__(self, handles: Handles, directory: str, config: LogConfig, loaded: Loaded) -> None:
        super().__init__(handles, directory, config, loaded)
        self._producers = loaded.producers

    @property
    def has_transactions(self) -> bool:
        """Whether some have no end, or one that was not known to be committed."""
        return bool(self._producers.transactions)

    def first_unstable(self, high_watermark: int) -> LogPosition | None:
        """Where the first transaction begins that has no end before the high watermark."""
        return self._producers.transactions.first_unstable(high_watermark)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        return self._producers.has_open(producer_id, epoch)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> Verification | None:
        """For a transaction that is to begin here; None when it has begun already."""
        return self._producers.begin_verification(producer_id, epoch, sequence, now_ms)

    def producers(self, count_max: int) -> list[tuple[int, Producer]]:
        """So many of those it knows, with their ids; first those with an open transaction."""
        return self._producers.first(count_max)

    def last_data_of_producers(self) -> dict[int, tuple[int, int]]:
        return self._producers.last_data()

    def refuse(self, header: BatchHeader, now_ms: int) -> None:
        """A batch was not appended; what its producer has sent after it may not go before it."""
        self._producers.refuse(header, now_ms)

    def producer_ids(self) -> list[int]:
        return self._producers.ids()

    def expire_producers(self, now_ms: int, ids: Iterable[int] | None = None) -> None:
        """Those of these ids, or of all; many are too many for one turn of a loop."""
        self._producers.expire(now_ms, self.config.producer_expiry_ms, ids)
