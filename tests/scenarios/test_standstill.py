"""A loop that a hanging disk holds up lets its clients go, and serves them again later."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ottla.broker.standstill import Standstill
from ottla.wire.messages.api_versions import ApiVersionsRequest
from raw_client import RawClient
from scenarios.in_process import TIMEOUT_S, BrokerInside

LIMIT_S = 0.5
# Longer than a busy machine keeps one thread from running and not another.
LONG_LIMIT_S = 2.0


def test_clients_of_a_loop_that_stands_still_are_let_go_and_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerInside(tmp_path) as inside:
        goes_on, stands = threading.Event(), threading.Event()
        let_go = threading.Semaphore(0)

        def hang() -> None:
            stands.set()
            goes_on.wait(TIMEOUT_S)

        def watched() -> None:
            inside.node.let_clients_go()
            let_go.release()

        async def begin() -> Standstill:
            standstill = Standstill(inside._loop, LIMIT_S, watched)
            standstill.start()
            return standstill

        standstill = inside.call(begin())
        # As with others, to whom clients can go.
        monkeypatch.setattr(type(inside.node._quorum), "has_others", True)
        with RawClient(inside.bootstrap) as client:
            assert client.ask(ApiVersionsRequest(), 2).error_code == 0
            inside._loop.call_soon_threadsafe(hang)
            assert stands.wait(TIMEOUT_S)
            with pytest.raises((ConnectionError, EOFError)):
                client.ask(ApiVersionsRequest(), 2)
            assert let_go.acquire(timeout=TIMEOUT_S)
            assert not let_go.acquire(timeout=2 * LIMIT_S), "once is enough"
            goes_on.set()
        with RawClient(inside.bootstrap) as client:
            assert client.ask(ApiVersionsRequest(), 2).error_code == 0
        standstill.close()
        monkeypatch.undo()


def test_a_loop_that_moves_is_left_alone(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        let_go = threading.Semaphore(0)

        async def begin() -> Standstill:
            standstill = Standstill(inside._loop, LONG_LIMIT_S, let_go.release)
            standstill.start()
            return standstill

        standstill = inside.call(begin())
        assert not let_go.acquire(timeout=1.5 * LONG_LIMIT_S)
        standstill.close()
