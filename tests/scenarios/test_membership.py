"""A broker's life in its cluster: known again after it was forgotten, and only one of each id."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from ottla.broker.clock import SystemEntropy
from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.lease import Lease
from ottla.broker.control.lifecycle import Lifecycle
from ottla.broker.control.metadata import Change
from ottla.config import BrokerConfig
from ottla.errors import CannotStart
from ottla.types import NodeId
from ottla.wire.messages.broker_registration import Listener
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.schema import Message
from raw_client import RawClient
from scenarios.in_process import TIMEOUT_S, BrokerInside


def test_a_broker_that_was_forgotten_registers_again_and_leads_under_a_new_epoch(
    tmp_path: Path,
) -> None:
    with BrokerInside(tmp_path, broker_heartbeat_interval_ms=20) as inside:
        inside.create_topic("t")
        metadata = inside.node._services.metadata
        lifecycle = inside.node._membership.lifecycle
        epoch, before = lifecycle.epoch, metadata.partition("t", 0).leader_epoch
        leads_again = threading.Event()

        def look(changes: list[Change]) -> None:
            partition = metadata.partition("t", 0)
            if partition.leader == 1 and partition.leader_epoch > before:
                leads_again.set()

        metadata.on_change(look)  # type: ignore[arg-type]
        with RawClient(inside.bootstrap) as client:
            assert client.ask(UnregisterBrokerRequest(broker_id=1), 0).error_code == 0
            assert leads_again.wait(TIMEOUT_S)
            assert lifecycle.epoch > epoch
            assert client.ask(InitProducerIdRequest(transactional_id=None), 4).error_code == 0


def test_a_clean_stop_is_proved_by_the_epoch_that_ended(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        epoch = inside.node._membership.lifecycle.epoch
    with BrokerInside(tmp_path) as inside:
        assert inside.node._stores.clean_epoch == epoch
        assert inside.node._membership.lifecycle.epoch > epoch


class LedBy:
    """What a node knows whose controller is at this address."""

    leader_id = NodeId(1)
    leader_epoch = 1
    is_leader = False
    voter_ids: ClassVar[set[int]] = {1}

    def __init__(self, address: str) -> None:
        self._address = address

    def address_of(self, node_id: NodeId) -> str:
        return self._address

    def on_leader_change(self, callback: Callable[[], None]) -> None: ...


def another(controller: BrokerInside, node_id: int) -> Lifecycle:
    """A broker that speaks to the controller over the wire and reads its metadata."""
    services = controller.node._services

    async def nothing_here(request: Message) -> Message:
        raise AssertionError("the controller is elsewhere")

    channel = ControllerChannel(LedBy(controller.bootstrap), SystemEntropy(), node_id, nothing_here)
    return Lifecycle(
        BrokerConfig().replace(node_id=node_id, request_timeout_ms=5_000),
        services.cluster_id,
        bytes([node_id]) * 16,
        -1,
        channel,
        services.metadata,
        lambda: services.controller.published_offset,
        services.clock,
        Lease(
            services.loop,
            services.clock,
            services.config.broker_session_timeout_ms,
            lambda: False,
            lambda: None,
            lambda: None,
        ),
    )


LISTENERS = [Listener("PLAINTEXT", "127.0.0.1", 1, 0)]


def test_a_second_broker_joins_over_the_wire_and_leaves(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        brokers = inside.node._services.metadata.image.brokers

        async def live() -> list[tuple[bool, bool]]:
            second = another(inside, 2)
            await second.register(LISTENERS, [b"2" * 16])
            standing = [(brokers[2].is_fenced, brokers[2].is_shutting_down)]
            await second.become_unfenced()
            standing.append((brokers[2].is_fenced, brokers[2].is_shutting_down))
            await second.leave()
            standing.append((brokers[2].is_fenced, brokers[2].is_shutting_down))
            return standing

        assert inside.call(live()) == [(True, False), (False, False), (True, False)]


def test_the_second_broker_of_an_id_is_told_where_the_first_is(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        second = inside.call(_made(inside))
        with pytest.raises(CannotStart, match=f"already running at {inside.bootstrap}; give"):
            inside.call(second.register(LISTENERS, [b"2" * 16]))


async def _made(inside: BrokerInside) -> Lifecycle:
    return another(inside, 1)


def test_a_broker_whose_process_is_gone_is_fenced_long_before_its_session_ends(
    tmp_path: Path,
) -> None:
    """Nobody listens on port 1, and the connection of its heartbeats breaks."""
    with BrokerInside(tmp_path, broker_session_timeout_ms=600_000) as inside:
        metadata = inside.node._services.metadata
        fenced = threading.Event()

        async def live_and_die() -> None:
            second = another(inside, 2)
            await second.register(LISTENERS, [b"2" * 16])
            await second.become_unfenced()
            second.close()

            def look(changes: object) -> None:
                if metadata.image.brokers[2].is_fenced:
                    fenced.set()

            metadata.on_change(look)
            second._channel.close()

        inside.call(live_and_die())
        assert fenced.wait(TIMEOUT_S)


def test_the_next_life_of_a_broker_that_has_just_died_is_let_in(tmp_path: Path) -> None:
    with BrokerInside(tmp_path, broker_session_timeout_ms=600_000) as inside:

        async def two_lives() -> tuple[int, int]:
            first, second = another(inside, 2), another(inside, 2)
            second._incarnation_id = b"n" * 16
            await first.register(LISTENERS, [b"2" * 16])
            await first.become_unfenced()
            first.close()
            await second.register(LISTENERS, [b"2" * 16])
            return first.epoch, second.epoch

        first, second = inside.call(two_lives())
        assert second > first
