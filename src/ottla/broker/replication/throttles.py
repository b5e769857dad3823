"""How fast replicas are copied that are not in sync yet, where somebody has set a limit.

As in Kafka, a topic names the replicas that are throttled, at their leaders and at their followers,
and each broker has a rate for both. Who is in sync is never throttled, and does not count: a move
must not cost a partition its replicas. A rate that is changed holds from the next fetch on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.config.setting import LONG_MAX
from ottla.ports import Clock

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.storage.partition import Partition

# What was not used of the rate can be used so much later.
BURST_S: Final = 1.0
# However long it would take by the rate of now: it may be changed.
PAUSE_S_MAX: Final = 0.5


class ByteRate:
    """Bytes per second; whoever takes more than there is, is followed by a pause."""

    def __init__(self, clock: Clock, rate: Callable[[], int]) -> None:
        self._clock = clock
        self._rate = rate
        self._free_s = 0.0
        self._at_rate = 0
        self.bytes = 0

    def room(self) -> int:
        """How many bytes may be taken now; 0 or less: none."""
        rate, now_s = self._rate(), self._clock.steady_s()
        if rate >= LONG_MAX:
            return LONG_MAX
        if rate != self._at_rate:
            # What was taken at another rate is forgotten with it.
            self._free_s, self._at_rate = now_s - BURST_S, rate
        return int(min(BURST_S, now_s - self._free_s) * rate)

    def pause_s(self) -> float:
        """How long to wait before there is any room."""
        if self.room() > 0:
            return 0.0
        rate = max(1, self._rate())
        return min(PAUSE_S_MAX, max(1 / rate, self._free_s - self._clock.steady_s() + 1 / rate))

    def take(self, count: int) -> None:
        self.bytes += count
        if self.room() < LONG_MAX:
            earliest_s = self._clock.steady_s() - BURST_S
            self._free_s = max(self._free_s, earliest_s) + count / max(1, self._at_rate)


class Throttles:
    """The rates of this broker, and what was copied for replicas that were not in sync."""

    def __init__(self, clock: Clock, metadata: MetadataCache) -> None:
        self.leader = ByteRate(
            clock, lambda: metadata.broker_config.leader_replication_throttled_rate
        )
        self.follower = ByteRate(
            clock, lambda: metadata.broker_config.follower_replication_throttled_rate
        )
        # Of copies from one data directory of this node to another.
        self.directories = ByteRate(
            clock,
            lambda: metadata.broker_config.replica_alter_log_dirs_io_max_bytes_per_second,
        )

    def pause_s(self, partition: Partition) -> float:
        """How long this copy of a partition has to wait before it asks for more."""
        if partition.is_in_sync or not partition.is_following_throttled:
            return 0.0
        return self.follower.pause_s()

    def taken(self, partition: Partition, count: int) -> None:
        """Bytes that this node has copied."""
        if not partition.is_in_sync:
            _count(self.follower, count, is_throttled=partition.is_following_throttled)

    def room(self, partition: Partition, replica: int) -> int:
        """How many bytes of a partition that this node leads another may have now."""
        if not partition.is_leading_throttled or not _is_newcomer(partition, replica):
            return LONG_MAX
        return self.leader.room()

    def given(self, partition: Partition, replica: int, count: int) -> None:
        """Bytes that another node is given."""
        if _is_newcomer(partition, replica):
            _count(self.leader, count, is_throttled=partition.is_leading_throttled)


def _count(rate: ByteRate, count: int, *, is_throttled: bool) -> None:
    if is_throttled:
        rate.take(count)
    else:
        rate.bytes += count


def _is_newcomer(partition: Partition, replica: int) -> bool:
    replicas = partition.replicas
    return replicas is not None and replica not in replicas.isr
