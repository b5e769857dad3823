"""The pytest plugin: a broker per session, a topic per test, more brokers where asked for.

pytest loads it wherever Ottla is installed, so it imports only the standard library and pytest.
Under pytest-xdist every worker has a session, and so a broker, of its own.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final

import pytest

from ottla.testing.broker import LOG_TAIL_CHARS, Broker, Setting
from ottla.testing.cluster import Cluster

TOPIC_NAME_CHARS_MAX: Final = 200
MARKER: Final = "ottla_topic(partitions=1, configs={}): how the fixture ottla_topic is created"


class BrokerFactory:
    """Starts brokers for one test: `factory(num_partitions=3)` sets `num.partitions`."""

    def __init__(self) -> None:
        self.brokers: list[Broker] = []

    def __call__(
        self, *, data_dir: str | os.PathLike[str] | None = None, **settings: Setting
    ) -> Broker:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        broker = Broker(named, data_dir=data_dir)
        self.brokers.append(broker)
        broker.start()
        return broker

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def ottla_broker_settings() -> Mapping[str, Setting]:
    """Settings of the session's broker, by Kafka's names; override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def ottla_broker(ottla_broker_settings: Mapping[str, Setting]) -> Iterator[Broker]:
    """One broker for the whole session, in a process of its own on a free port."""
    with Broker(ottla_broker_settings) as broker:
        yield broker


@pytest.fixture
def ottla_broker_factory() -> Iterator[BrokerFactory]:
    """Starts further brokers, each with its own data; they end with the test."""
    factory = BrokerFactory()
    try:
        yield factory
    finally:
        factory.close()


@pytest.fixture
def ottla_cluster(ottla_broker_settings: Mapping[str, Setting]) -> Iterator[Cluster]:
    """Three brokers that are one cluster, for one test: `ottla_cluster[2].kill()` is a crash."""
    with Cluster(ottla_broker_settings) as cluster:
        yield cluster


@pytest.fixture
def ottla_topic(ottla_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a fresh topic; `@pytest.mark.ottla_topic(partitions=3)` says how many."""
    marker = request.node.get_closest_marker("ottla_topic")
    options: dict[str, Any] = {} if marker is None else marker.kwargs
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:TOPIC_NAME_CHARS_MAX]
    name = f"{readable}-{secrets.token_hex(4)}"
    ottla_broker.check_alive()
    ottla_broker.create_topic(name, **options)
    return name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """A test does not begin with a broker that has died in an earlier one."""
    yield
    for broker in _brokers_of(item):
        broker.check_alive()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows what its brokers logged."""
    report = yield
    if report.failed:
        for broker in _brokers_of(item):
            state = "" if broker.is_running else f", exit code {broker.exit_code}"
            title = f"log of ottla broker {broker.pid}{state}"
            report.sections.append((title, broker.log_text()[-LOG_TAIL_CHARS:]))
    return report


def _brokers_of(item: pytest.Item) -> Iterator[Broker]:
    fixtures: Mapping[str, object] = getattr(item, "funcargs", {})
    for fixture in fixtures.values():
        for broker in _held_by(fixture):
            if isinstance(broker, Broker) and broker.was_started:
                yield broker


def _held_by(fixture: object) -> Iterable[object]:
    if isinstance(fixture, BrokerFactory):
        return fixture.brokers
    return fixture.nodes.values() if isinstance(fixture, Cluster) else [fixture]
