"""Fixtures of the client tests: the broker under test, and one running program per client."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clientkit.catalog import BY_NAME
from clientkit.driver import Driver
from clientkit.toolchains import require


@dataclass(frozen=True)
class ExistingCluster:
    """A cluster that somebody else runs (OTTLA_TEST_BOOTSTRAP), so it is never restarted."""

    bootstrap: str


@pytest.fixture(scope="session")
def existing_bootstrap() -> str | None:
    return os.environ.get("OTTLA_TEST_BOOTSTRAP") or None


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, existing_bootstrap: str | None) -> Any:
    if existing_bootstrap is not None:
        return ExistingCluster(existing_bootstrap)
    return request.getfixturevalue("ottla_broker")


@pytest.fixture
def own_broker(request: pytest.FixtureRequest, existing_bootstrap: str | None) -> Any:
    """A broker of this test's own, that may be stopped and started again."""
    if existing_bootstrap is not None:
        pytest.skip("needs to restart the broker; OTTLA_TEST_BOOTSTRAP names a foreign one")
    return request.getfixturevalue("ottla_broker_factory")()


@pytest.fixture(scope="session")
def changed() -> threading.Condition:
    return threading.Condition()


StartClient = Callable[..., Driver]


@pytest.fixture(scope="session")
def _start(
    tmp_path_factory: pytest.TempPathFactory, changed: threading.Condition
) -> Iterator[StartClient]:
    started: list[Driver] = []
    directory = tmp_path_factory.mktemp("clients")

    def start(name: str, bootstrap: str) -> Driver:
        client = BY_NAME[name]
        require(client.toolchain)
        stderr = directory / f"{name}-{len(started)}.stderr"
        driver = Driver(name, client.command(), bootstrap, stderr, changed).start()
        started.append(driver)
        return driver

    yield start
    for driver in started:
        driver.stop()


@pytest.fixture
def new_client(_start: StartClient, broker: Any) -> Iterator[StartClient]:
    """Starts a program of its own process for this test: `new_client("java")`."""
    started: list[Driver] = []

    def start(name: str, bootstrap: str | None = None) -> Driver:
        started.append(_start(name, bootstrap or broker.bootstrap))
        return started[-1]

    yield start
    for driver in started:
        driver.stop()


@pytest.fixture(scope="session")
def _running() -> dict[str, Driver]:
    return {}


@pytest.fixture
def get_client(
    _start: StartClient, _running: dict[str, Driver], broker: Any
) -> Iterator[StartClient]:
    """The program of a client, shared by the tests of this session: `get_client("java")`."""
    used: list[Driver] = []

    def get(name: str) -> Driver:
        if name not in _running or not _running[name].is_running:
            _running[name] = _start(name, broker.bootstrap)
        used.append(_running[name])
        return _running[name]

    yield get
    for driver in used:
        if driver.is_running:
            driver.close_consumers()


@pytest.fixture
def client(request: pytest.FixtureRequest, get_client: StartClient) -> Driver:
    return get_client(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name nobody has used; the test creates the topic as it needs it."""
    story = request.node.originalname.removeprefix("test_")
    return f"{story[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"
