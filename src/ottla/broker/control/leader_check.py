"""What a node compares with the leader of the metadata log: its list of voters, and its clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.broker.control.channel import ControllerChannel
from ottla.config import BrokerConfig
from ottla.errors import CannotStart, ErrorCode, OttlaError
from ottla.ports import Clock
from ottla.types import METADATA_TOPIC
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumPartitionResult,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)

if TYPE_CHECKING:
    from ottla.broker.control.metadata_quorum import MetadataQuorum

logger = logging.getLogger(__name__)

CLOCK_OFF_MS_MAX: Final = 30_000
TIMEOUT_S: Final = 10.0


class LeaderCheck:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        channel: ControllerChannel,
        quorum: MetadataQuorum,
    ) -> None:
        self._config = config
        self._clock = clock
        self._channel = channel
        self._quorum = quorum
        self._looking: asyncio.Task[None] | None = None

    async def at_start(self) -> None:
        """CannotStart where the voters differ. From here on each new leader is looked at."""
        seen = await self._described()
        self._quorum.on_leader_change(self._look_again)
        if seen is None:
            return
        difference = self._difference(seen)
        if difference is not None:
            raise CannotStart(difference)
        self._compare_clocks(seen)

    def _look_again(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        seen = await self._described()
        if seen is not None:
            difference = self._difference(seen)
            if difference is not None:
                logger.error("%s", difference)
            self._compare_clocks(seen)

    async def _described(self) -> DescribeQuorumPartitionResult | None:
        """As the leader sees it; None where this node leads, or nobody answers."""
        wanted = DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])
        request = DescribeQuorumRequest([wanted])
        try:
            reply = await self._channel.ask(request, DescribeQuorumResponse, TIMEOUT_S)
        except OttlaError as error:
            logger.debug("the leader does not describe its quorum: %s", error)
            return None
        result = reply.topics[0].partitions[0]
        is_other = result.leader_id != self._quorum.node_id
        return result if is_other and result.error_code == ErrorCode.NONE else None

    def _difference(self, seen: DescribeQuorumPartitionResult) -> str | None:
        listed = {voter.node_id for voter in self._config.voters()}
        theirs = {voter.replica_id for voter in seen.current_voters}
        # A log that tells its voters itself has the last word, and the setting has none.
        if not listed or listed != self._quorum.voter_ids or listed == theirs:
            return None
        leader = self._quorum.address_of(self._quorum.leader_id) or "an unknown address"
        return (
            f"controller.quorum.voters names {_ids(listed)} here, and {_ids(theirs)} at node "
            f"{seen.leader_id}, which leads ({leader}); give all nodes the same list."
        )

    def _compare_clocks(self, seen: DescribeQuorumPartitionResult) -> None:
        """The leader tells of itself as of now."""
        for voter in seen.current_voters:
            if voter.replica_id == seen.leader_id and voter.last_fetch_timestamp > 0:
                ahead_ms = self._clock.wall_ms() - voter.last_fetch_timestamp
                if abs(ahead_ms) > CLOCK_OFF_MS_MAX:
                    logger.warning(
                        "the clock of this node is %d s %s, by that of node %d, which leads the "
                        "metadata log: timestamps and retention go wrong, set the clocks right",
                        abs(ahead_ms) // 1000,
                        "fast" if ahead_ms > 0 else "slow",
                        seen.leader_id,
                    )

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


def _ids(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
