"""Gives up the epoch of partitions that this node cannot go on leading, after a failed sync.

The controller is asked, wherever it is, by an AlterPartition whose in-sync replicas lack the
leader: one of those it names takes over at once, while this node opens its log again as a follower.
Where there is none that can, this node leads on under a new epoch, which begins where its log was
cut.
Of Kafka's other requests, a heartbeat with `want_fence` would move everything that the node leads,
and AssignReplicasToDirs a whole directory, for one partition in trouble.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.errors import OttlaError
from ottla.types import LeaderEpoch
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition

logger = logging.getLogger(__name__)

# A directory may hold thousands.
PARTITIONS_PER_REQUEST_MAX: Final = 2_000
NAMES_MAX: Final = 10
# The metadata that tells of the new epochs is awaited so long; then somebody asks again.
NEWS_S_MAX: Final = 5.0


class Handover:
    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        ask: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]],
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._news = asyncio.Event()

    def see(self) -> None:
        """The metadata has changed."""
        self._news.set()

    async def give_up(self, partitions: Sequence[Partition]) -> None:
        """Returns when none is led here any more under the epoch that it has now, or when that
        takes too long.
        """
        epochs = {each: each.leader_epoch for each in partitions if each.is_elected}
        if not epochs:
            return
        logger.warning(
            "the controller is asked for other leaders, or epochs, of %s", _names(epochs)
        )
        try:
            async with asyncio.timeout(NEWS_S_MAX):
                everybody = tuple(epochs)
                for first in range(0, len(everybody), PARTITIONS_PER_REQUEST_MAX):
                    piece = everybody[first : first + PARTITIONS_PER_REQUEST_MAX]
                    await self._ask(self._request(piece))
                while _still_led(epochs):
                    self._news.clear()
                    await self._news.wait()
        except (OttlaError, OSError) as error:
            logger.warning("no other leaders, nor epochs, yet: %s", error or "no answer")

    def _request(self, partitions: Iterable[Partition]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        for partition in partitions:
            replicas = partition.replicas
            if replicas is None:
                continue
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = TopicData(topic_id=partition.topic_id)
            others = sorted(replicas.isr - {self._node_id})
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.index,
                    leader_epoch=partition.leader_epoch,
                    new_isr_with_epochs=[BrokerState(each) for each in others],
                    partition_epoch=replicas.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )


def _names(partitions: Iterable[Partition]) -> str:
    names = sorted(str(partition.name) for partition in partitions)
    rest = f" and {len(names) - NAMES_MAX} others" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + rest


def _still_led(epochs: dict[Partition, LeaderEpoch]) -> bool:
    return any(
        partition.is_elected and partition.leader_epoch == epoch and not partition.is_retired
        for partition, epoch in epochs.items()
    )
