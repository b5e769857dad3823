"""What only the controller may decide, asked of another node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ottla.broker.clock import SystemEntropy
from ottla.broker.control.channel import ControllerChannel
from ottla.errors import ErrorCode
from ottla.types import NodeId
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from raw_client import RawClient
from scenarios.in_process import BrokerInside

MADE, EXISTS = ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS


class LedElsewhere:
    """What a node knows whose controller is at this address, or nowhere."""

    leader_id = NodeId(2)
    leader_epoch = 1
    is_leader = False
    voter_ids: ClassVar[set[int]] = {2}

    def __init__(self, address: str | None) -> None:
        self.address = address

    def address_of(self, node_id: NodeId) -> str | None:
        return self.address

    def on_leader_change(self, callback: Callable[[], None]) -> None: ...


async def follow(node: BrokerInside, leadership: LedElsewhere) -> None:
    services = node.node._services
    services.leadership = leadership
    services.channel = ControllerChannel(leadership, SystemEntropy(), 1, services.router.answer)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[BrokerInside, BrokerInside]]:
    """A node, and the controller that it knows."""
    with (
        BrokerInside(tmp_path / "a") as node,
        BrokerInside(tmp_path / "b", node_id=2) as controller,
    ):
        node.call(follow(node, LedElsewhere(controller.bootstrap)))
        yield node, controller


def created(client: RawClient, name: str, version: int, timeout_ms: int = 5_000) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    reply = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), version)
    code: int = reply.topics[0].error_code
    return code


def test_the_controller_decides_and_its_errors_come_back_as_they_are(
    two: tuple[BrokerInside, BrokerInside],
) -> None:
    node, controller = two
    with RawClient(node.bootstrap) as there, RawClient(controller.bootstrap) as here:
        for version in (2, 5, 7):
            assert created(there, f"by-{version}", version) == MADE
            assert created(here, f"by-{version}", version) == EXISTS
            assert created(there, f"by-{version}", version) == EXISTS
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="by-7")])
        assert there.ask(gone, 6).responses[0].error_code == ErrorCode.NONE
        assert created(here, "by-7", 7) == MADE


def test_without_a_controller_the_client_is_told_so_in_its_time(
    two: tuple[BrokerInside, BrokerInside],
) -> None:
    node, _ = two
    node.call(follow(node, LedElsewhere(None)))
    with RawClient(node.bootstrap) as there:
        assert created(there, "nobody", 7, timeout_ms=100) == ErrorCode.NOT_CONTROLLER


def test_a_controller_that_is_gone_is_asked_again_where_it_is_next(
    two: tuple[BrokerInside, BrokerInside], tmp_path: Path
) -> None:
    node, _controller = two
    with RawClient(node.bootstrap) as there, BrokerInside(tmp_path / "c", node_id=3) as third:
        assert created(there, "first", 7) == MADE
        node.node._services.leadership.address = third.bootstrap  # type: ignore[attr-defined]
        assert created(there, "first", 7) == MADE, "the third knows nothing of the second"
