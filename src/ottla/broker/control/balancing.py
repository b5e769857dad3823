"""The chore of a controller that balances its cluster (`auto.balance.enable`).

What the nodes hold is asked of them, as `ottla balance` does; what is to be moved is decided by
`cluster/self_balancing.py`, under the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.control.asking import ask_controller
from ottla.broker.control.node_connection import open_connection
from ottla.cluster.self_balancing import Measured
from ottla.errors import OttlaError
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices
    from ottla.cluster.image import BrokerImage

logger = logging.getLogger(__name__)

PAUSE_S: Final = 5.0
ANSWER_S_MAX: Final = 10.0

Sizes = dict[tuple[str, int], int]


class BalancingChore:
    """Implements `Chore`. On nodes that do not lead the metadata a round does nothing."""

    name = "balance"
    pause_s = PAUSE_S

    def __init__(self, services: ControlServices) -> None:
        self._services = services
        self._before: tuple[int, Sizes] | None = None

    async def run(self) -> None:
        services = self._services
        config = services.metadata.broker_config
        is_wanted = config.auto_balance_enable or bool(config.auto_balance_throttled_topics)
        if not services.leadership.is_leader or not is_wanted:
            self._before = None
            return
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                measured = self._measured(await self._sizes())
            count = await ask_controller(
                services,
                lambda controller, now, ticket: controller.balance_step(measured, now, ticket),
            )
        except (OttlaError, OSError, TimeoutError) as error:
            logger.info("nothing is balanced now: %s", error or "a node does not answer")
            return
        if count:
            logger.info("partitions are moved, or a throttle is lifted: %d records", count)

    async def _sizes(self) -> Sizes:
        brokers = [
            each for each in self._services.metadata.image.brokers.values() if each.is_active
        ]
        found: Sizes = {}
        for sizes in await asyncio.gather(*map(self._ask, brokers)):
            for place, size in sizes.items():
                found[place] = max(found.get(place, 0), size)
        return found

    async def _ask(self, broker: BrokerImage) -> Sizes:
        from ottla.client.settings import join_address

        endpoint = next(iter(broker.endpoints.values()))
        address = join_address(endpoint.host, endpoint.port)
        connection = await open_connection(self._services.node_id, address)
        try:
            reply = await connection.ask(
                DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
            )
        finally:
            connection.abort("all is said")
        return {
            (topic.name, one.partition_index): one.partition_size
            for directory in reply.results
            for topic in directory.topics
            for one in topic.partitions
        }

    def _measured(self, sizes: Sizes) -> Mapping[tuple[str, int], Measured]:
        """Traffic is what they have grown by since the last round."""
        now_ms = self._services.clock.now().steady_ms
        before, self._before = self._before, (now_ms, sizes)
        if before is None:
            return {place: Measured(size) for place, size in sizes.items()}
        passed_s = max(1, now_ms - before[0]) / 1000
        return {
            place: Measured(size, max(0, size - before[1].get(place, size)) / passed_s)
            for place, size in sizes.items()
        }
