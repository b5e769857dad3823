"""What the driver asks the brokers: which partitions there are, and what they hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from ottla.client.blocking import Blocking, shared
from ottla.client.cluster import Cluster
from ottla.client.failures import PartitionsFailed
from ottla.client.values import EARLIEST, LATEST
from ottla.errors import OttlaError, UnknownTopicOrPartition
from ottla.spark.data_loss import losses
from ottla.spark.options.positions import Committed, Position
from ottla.spark.options.source import SourceOptions
from ottla.spark.options.subscriptions import Assigned, Pattern, Topics
from ottla.spark.planning import (
    CannotRead,
    LogEnds,
    Resolved,
    assigned,
    missing,
    resolve,
    times_wanted,
)
from ottla.types import TopicPartition

log = logging.getLogger(__name__)

# An idle query asks for its end about ninety times a second.
AGE_S_MAX: Final = 0.1
# Asking takes at most this part of the time when the cluster is large and answers slowly.
ASKING_SHARE: Final = 0.05
# A new leader may not know its end yet, and metadata may not be everywhere: asked this often.
SETTLE_TRIES: Final = 6
SETTLE_PAUSE_S: Final = 0.5
DELETED_TRIES: Final = 3

Ends = dict[TopicPartition, LogEnds]
Result = TypeVar("Result")


class Asker:
    """One per query, on the driver. Errors are one line that stands by itself."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._ends: Ends | None = None
        self._asked_at = 0.0
        self._age_s_max = AGE_S_MAX
        self._told_missing: list[str] = []

    @property
    def blocking(self) -> Blocking:
        return shared(self._options.client)

    def ends(self, *, fresh: bool = False) -> Ends:
        """The ends of all partitions of the subscription, at most a moment old."""
        now = time.monotonic()
        if fresh or self._ends is None or now - self._asked_at > self._age_s_max:
            self._ends = self._run(self._ask_ends)
            self._asked_at = time.monotonic()
            self._age_s_max = max(AGE_S_MAX, (self._asked_at - now) / ASKING_SHARE)
        return self._ends

    def settled_ends(self, wanted: Mapping[TopicPartition, int], *, fresh: bool = False) -> Ends:
        """The ends, asked again for a while when a partition seems gone or shorter than it was."""
        for attempt in range(SETTLE_TRIES):
            ends = self.ends(fresh=fresh or attempt > 0)
            gone = [loss for loss in losses(wanted, ends) if _may_pass(loss.wanted, loss.ends)]
            if not gone:
                break
            log.info("asking again, since %s", gone[0])
            time.sleep(SETTLE_PAUSE_S)
        return ends

    def resolve(self, position: Position, ends: Ends, *, is_start: bool) -> Resolved:
        """Offsets for a position, for all partitions in `ends`."""
        times = times_wanted(position, ends)
        group = self._options.group_id if position is Committed else None

        async def ask(cluster: Cluster) -> Resolved:
            by_time, committed = {}, {}
            if times:
                found = await cluster.list_offsets(
                    times, read_committed=self._options.read_committed
                )
                by_time = {partition: one.offset for partition, one in found.items()}
            if group is not None:
                committed = await cluster.committed(group, list(ends))
            return resolve(position, ends, by_time=by_time, committed=committed, is_start=is_start)

        return self._run(ask)

    def check_topics_exist(self, *, some: bool) -> None:
        """A mistyped topic is an error; with `some`, those that are missing may come later."""
        if not self._told_missing or (some and self._ends):
            return
        where = ", ".join(self._options.client.bootstrap)
        what = ", ".join(self._told_missing)
        raise CannotRead(f"{what} does not exist on {where}: create it first, or correct the name")

    async def _ask_ends(self, cluster: Cluster) -> Ends:
        subscription = self._options.subscription
        names: list[str] | None
        match subscription:
            case Topics(names=topics):
                names = list(topics)
            case Assigned(partitions=named):
                names = list(named)
            case Pattern():
                names = None
        for attempt in range(DELETED_TRIES):
            found = await cluster.topics(names)
            existing = {name: info.partitions for name, info in found.items()}
            self._tell_missing(missing(subscription, existing))
            try:
                return await self._ask_offsets(cluster, assigned(subscription, existing))
            except (UnknownTopicOrPartition, PartitionsFailed):
                # Deleted between the two questions: the next answer will be without it.
                if attempt == DELETED_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _ask_offsets(self, cluster: Cluster, partitions: list[TopicPartition]) -> Ends:
        if not partitions:
            return {}
        read_committed = self._options.read_committed
        first = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
        last = await cluster.list_offsets(
            dict.fromkeys(partitions, LATEST), read_committed=read_committed
        )
        return {
            partition: LogEnds(first[partition].offset, last[partition].offset)
            for partition in partitions
        }

    def _tell_missing(self, names: list[str]) -> None:
        new = sorted(set(names) - set(self._told_missing))
        if new:
            log.warning("%s does not exist (yet)", ", ".join(new))
        self._told_missing = names

    def _run(self, make: Callable[[Cluster], Awaitable[Result]]) -> Result:
        client = self._options.client
        timeout_s = client.retry_timeout_s + client.request_timeout_s
        try:
            return self.blocking.run(make, timeout_s)
        except (OttlaError, OSError, TimeoutError) as error:
            if isinstance(error, CannotRead):
                raise
            where = ", ".join(client.bootstrap)
            raise CannotRead(f"cannot ask {where} for offsets: {error or 'no answer'}") from None


def _may_pass(wanted: int, ends: LogEnds | None) -> bool:
    return ends is None or wanted > ends.latest
