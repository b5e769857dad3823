"""A broker's life in its cluster: known again after it was forgotten, and only one of each id."""

from __future__ import annotations

import threading
from pathlib import Path

from ottla.broker.control.metadata import Change
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from raw_client import RawClient
from scenarios.in_process import TIMEOUT_S, BrokerInside


def test_a_broker_that_was_forgotten_registers_again_and_leads_under_a_new_epoch(
    tmp_path: Path,
) -> None:
    with BrokerInside(tmp_path, broker_heartbeat_interval_ms=20) as inside:
        inside.create_topic("t")
        metadata = inside.node._services.metadata
        epoch, before = inside.node._lifecycle.epoch, metadata.partition("t", 0).leader_epoch
        leads_again = threading.Event()

        def look(changes: list[Change]) -> None:
            partition = metadata.partition("t", 0)
            if partition.leader == 1 and partition.leader_epoch > before:
                leads_again.set()

        metadata.on_change(look)  # type: ignore[arg-type]
        with RawClient(inside.bootstrap) as client:
            assert client.ask(UnregisterBrokerRequest(broker_id=1), 0).error_code == 0
            assert leads_again.wait(TIMEOUT_S)
            assert inside.node._lifecycle.epoch > epoch
            assert client.ask(InitProducerIdRequest(transactional_id=None), 4).error_code == 0


def test_a_clean_stop_is_proved_by_the_epoch_that_ended(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        epoch = inside.node._lifecycle.epoch
    with BrokerInside(tmp_path) as inside:
        assert inside.node._stores.clean_epoch == epoch
        assert inside.node._lifecycle.epoch > epoch
