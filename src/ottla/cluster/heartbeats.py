"""What a heartbeat makes of a broker (KIP-631): fenced, unfenced, leaving, or free to stop."""

from __future__ import annotations

from enum import Enum, auto

from ottla.cluster.image import BrokerImage, MetadataImage
from ottla.cluster.sessions import Session
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


class State(Enum):
    FENCED = auto()
    UNFENCED = auto()
    LEAVING = auto()
    SHUT_DOWN = auto()


def next_state(
    image: MetadataImage,
    broker: BrokerImage,
    session: Session,
    request: BrokerHeartbeatRequest,
    lowest_offset: int | None,
) -> State:
    """`lowest_offset` is how far the slowest of the other active brokers has read."""
    if broker.is_fenced:
        if request.want_shut_down:
            return State.SHUT_DOWN
        wants_to_serve = not request.want_fence and is_caught_up(session, request)
        return State.UNFENCED if wants_to_serve else State.FENCED
    if broker.is_shutting_down:
        has_moved = session.moved_offset is not None and (
            lowest_offset is None or lowest_offset >= session.moved_offset
        )
        return State.SHUT_DOWN if has_moved else State.LEAVING
    if request.want_fence:
        return State.SHUT_DOWN if request.want_shut_down else State.FENCED
    if request.want_shut_down:
        return State.LEAVING if leads(image, broker.id) else State.SHUT_DOWN
    return State.UNFENCED


def is_caught_up(session: Session, request: BrokerHeartbeatRequest) -> bool:
    return (
        session.caught_up_offset is not None
        and request.current_metadata_offset >= session.caught_up_offset
    )


def leads(image: MetadataImage, node_id: int) -> bool:
    return any(
        partition.leader == node_id
        for topic in image.topics_by_id.values()
        for partition in topic.partitions.values()
    )


def reply(
    state: State, session: Session, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        is_caught_up=is_caught_up(session, request),
        is_fenced=state in (State.FENCED, State.SHUT_DOWN),
        should_shut_down=state is State.SHUT_DOWN,
    )
