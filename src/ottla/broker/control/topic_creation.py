"""Topics that come into being because somebody uses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.cluster.names import check_topic_name
from ottla.cluster.topics import candidates
from ottla.errors import (
    ErrorCode,
    LeaderNotAvailable,
    NotController,
    OttlaError,
    StorageFailed,
    UnknownTopicOrPartition,
    error_of,
)
from ottla.types import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices

# Then the client is told that there is no leader yet, and asks again.
CREATION_WAIT_S: Final = 5.0


async def ensure_topic(services: ControlServices, name: str) -> None:
    """The topic exists, committed and with its partitions, when this returns."""
    failures = await ensure_topics(services, (name,))
    if failures:
        raise failures[name]


async def ensure_topics(services: ControlServices, names: Iterable[str]) -> dict[str, OttlaError]:
    """As `ensure_topic` for many at once; names that could not be created, and why.

    Any number of callers may ask for the same name: the controller sees the first creation at
    once, and the others wait for its commit.
    """
    failures: dict[str, OttlaError] = {}
    wanted = []
    for name in dict.fromkeys(names):
        if services.metadata.has_topic(name):
            continue
        try:
            check_topic_name(name)
            wanted.append(_wanted(services, name))
        except OttlaError as error:
            failures[name] = error
    if wanted:
        try:
            failures |= await _created(services, wanted)
        except NotController as error:
            # To a producer or consumer this is a topic that has no leader yet: it asks again.
            unavailable = LeaderNotAvailable(str(error))
            failures |= dict.fromkeys((topic.name for topic in wanted), unavailable)
        except StorageFailed as error:
            failures |= dict.fromkeys((topic.name for topic in wanted), error)
    return failures


async def _created(
    services: ControlServices, wanted: list[CreatableTopic]
) -> dict[str, OttlaError]:
    """Existing before is no failure."""
    request = CreateTopicsRequest(topics=wanted)
    reply = await services.channel.ask(request, CreateTopicsResponse, CREATION_WAIT_S)
    return {
        result.name: error_of(result.error_code, result.error_message)
        for result in reply.topics
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    }


def _wanted(services: ControlServices, name: str) -> CreatableTopic:
    config = services.config
    if name == OFFSETS_TOPIC:
        return _compacted(
            services,
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            config.offsets_topic_segment_bytes,
        )
    if name == TRANSACTIONS_TOPIC:
        return _compacted(
            services,
            name,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            config.transaction_state_log_segment_bytes,
            config.transaction_state_log_min_isr,
        )
    if name in INTERNAL_TOPICS:
        raise UnknownTopicOrPartition(f"{name} is not created by being asked for.")
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)


def _compacted(
    services: ControlServices,
    name: str,
    partition_count: int,
    replica_count: int,
    segment_bytes: int,
    in_sync_min: int | None = None,
) -> CreatableTopic:
    """A topic of the coordinators, with no more replicas than there are hosts."""
    hosts = len({broker.host for broker in candidates(services.metadata.image)})
    replicas = max(1, min(replica_count, hosts))
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(segment_bytes),
    }
    if in_sync_min is not None:
        settings["min.insync.replicas"] = str(min(in_sync_min, replicas))
    return CreatableTopic(
        name=name,
        num_partitions=partition_count,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=setting, value=value) for setting, value in settings.items()
        ],
    )
