"""One Spark session and one broker for all tests of a pytest worker.

A session takes many seconds to start, so tests share it and keep out of each other's way by topic
names and directories. Tests that kill something start their own (see kit/children.py).
"""

from __future__ import annotations

import importlib
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.pipelines.running.attempts import make_active
from ottla.testing import Broker
from ottla.testing.broker import Setting
from spark.kit import session
from spark.kit.postgres import Postgres, running
from spark.kit.secured_kafka import SecuredKafka
from spark.kit.toolchain import ROOT, connector_jars, delta_jars, jdbc_jars, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# How the files are called whose tests ask for `real_kafka`.
REAL_KAFKA = "_kafka.py"
MakeTopic = Callable[..., str]
PREPARING = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[PREPARING] = session.prepare()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """One by one, as `--dist load` does; but a real Kafka is started and filled by one worker."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneKafka(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return REAL_KAFKA if file.endswith(REAL_KAFKA) else nodeid

    return OneKafka(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start their own Spark come first: they are long, and a long one at the end would
    let the other workers wait. In `make test` all is about Spark; elsewhere nothing is moved."""
    here = Path(__file__).parent
    places = [at for at, item in enumerate(items) if here in item.path.parents]
    ours = sorted(
        (items[at] for at in places), key=lambda item: "spark" in getattr(item, "fixturenames", ())
    )
    for at, item in zip(places, ours, strict=True):
        items[at] = item


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    """Spark's own connector for Kafka; empty where Maven is missing."""
    require("java")
    return connector_jars()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, jars: list[Path]) -> Iterator[SparkSession]:
    """local[2] with `format("ottla")` found by itself, and `format("kafka")` (ask `connector`)."""
    import pyspark

    delta = delta_jars(pyspark.__version__)
    started = session.start(
        tmp_path_factory.mktemp("spark"),
        [*jars, *jdbc_jars(), *delta],
        settings=session.DELTA if delta else None,
        is_quick=True,
    )
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Spark looks for formats in the session that was used last, which may be another test's."""
    if "spark" in request.fixturenames:
        make_active(request.getfixturevalue("spark"))


@pytest.fixture(scope="session")
def connector(jars: list[Path]) -> str:
    """The name of the real Kafka connector's format; skips without it."""
    if not jars:
        require("mvn")
    return "kafka"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A database of one's own, whose driver the session `spark` has."""
    if not jdbc_jars():
        require("java", "mvn")
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A node of Kafka itself; tests keep out of each other's way by topic names."""
    require("java", "openssl", "keytool")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.chdir(ROOT)
        kafka_jars: Path = importlib.import_module("bench.peers").resolve_jars()
    node = SecuredKafka(tmp_path_factory.mktemp("kafka"), kafka_jars)
    try:
        node.start()
        yield node
    finally:
        node.close()


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
