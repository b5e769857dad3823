"""What the requests of the quorum have in common on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.errors import InvalidRequest
from ottla.types import METADATA_TOPIC, NO_NODE

if TYPE_CHECKING:
    from ottla.broker.control.metadata_quorum import MetadataQuorum
    from ottla.quorum.decisions import Answer


def asked_partition(topics: Sequence[Any]) -> Any:
    """The one partition that has a quorum."""
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC:
        raise InvalidRequest(f"only {METADATA_TOPIC} has a quorum")
    partitions = topics[0].partitions
    if len(partitions) != 1 or partitions[0].partition_index != 0:
        raise InvalidRequest(f"{METADATA_TOPIC} has partition 0 and no other")
    return partitions[0]


def leader_endpoints(quorum: MetadataQuorum, answer: Answer) -> list[tuple[int, str, int]]:
    """(id, host, port) of the leader that an answer names, if it is known."""
    endpoint = None if answer.leader_id == NO_NODE else quorum.endpoint_of(answer.leader_id)
    return [] if endpoint is None else [(answer.leader_id, endpoint.host, endpoint.port)]
