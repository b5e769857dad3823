"""One Spark session and one broker for all tests of a pytest worker.

A session takes many seconds to start, so tests share it and keep out of each other's way by topic
names and directories. Tests that kill something start their own (see kit/children.py).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.testing import Broker
from ottla.testing.broker import Setting
from spark.kit import session
from spark.kit.toolchain import connector_jars, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    """Spark's own connector for Kafka; empty where Maven is missing."""
    require("java")
    return connector_jars()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, jars: list[Path]) -> Iterator[SparkSession]:
    """local[2] with `format("ottla")` found by itself, and `format("kafka")` (ask `connector`)."""
    started = session.start(tmp_path_factory.mktemp("spark"), jars)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def connector(jars: list[Path]) -> str:
    """The name of the real Kafka connector's format; skips without it."""
    if not jars:
        require("mvn")
    return "kafka"


@pytest.fixture(scope="session")
def ottla_broker_settings() -> Mapping[str, Setting]:
    """Compaction comes at once where a topic asks for it, retention (of old times) never."""
    return {
        "log.cleaner.backoff.ms": 50,
        "log.cleaner.min.cleanable.ratio": 0.01,
        "log.retention.ms": -1,
    }


@pytest.fixture(scope="session")
def broker(ottla_broker: Broker) -> Broker:
    """Shared: tests that stop or kill one use `ottla_broker_factory`."""
    return ottla_broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> MakeTopic:
    """Makes topics with names nobody has used: `topic(3, {"cleanup.policy": "compact"})`."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:60]

    def make(partitions: int = 1, configs: Mapping[str, str | int] | None = None) -> str:
        name = f"{readable}-{secrets.token_hex(4)}"
        broker.create_topic(name, partitions, configs)
        return name

    return make
