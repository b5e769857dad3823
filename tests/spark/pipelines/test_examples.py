"""Every example, the README's pipeline, and the pipelines of docs/pipelines.md, for real.

What comes out is held against what plain Python makes of the bytes that went in.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from ottla.pipelines.cases.suite import run_tests
from ottla.pipelines.checks.validation import validate
from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.running.run import run
from ottla.testing import Broker
from pipeline_pages import read_page
from spark.kit import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
NAMES = sorted(folder.parent.name for folder in EXAMPLES.glob("*/pipeline.yaml"))
TIMEOUT_S = 60.0


class Example:
    """A copy of an example's folder, wired to a broker."""

    def __init__(self, name: str, directory: Path, bootstrap: str) -> None:
        self.directory = directory / name
        self.bootstrap = bootstrap
        shutil.copytree(EXAMPLES / name, self.directory, ignore=shutil.ignore_patterns(".ottla"))

    @property
    def generator(self) -> ModuleType:
        name = f"generator_of_{self.directory.name.replace('-', '_')}"
        spec = importlib.util.spec_from_file_location(name, self.directory / "generate.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def pipeline(self) -> Pipeline:
        environment = {"OTTLA_BOOTSTRAP": self.bootstrap}
        return read_pipeline(self.directory / "pipeline.yaml", environment=environment)

    def run_once(self, spark: SparkSession) -> None:
        run(
            spark.newSession(),
            self.pipeline(),
            checkpoint=str(self.directory / ".ottla"),
            once=True,
            report=lambda _: None,
            stop=threading.Event(),
            stop_now=threading.Event(),
        )


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """The examples' topics have names that others may use as well."""
    with Broker() as broker:
        yield broker


def messages(bootstrap: str, topic: str) -> list[Message]:
    """All that is in the topic now, partition by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "examples"})
    try:
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        found: list[Message] = []
        for partition in partitions:
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, TIMEOUT_S)
            consumer.assign([place])
            there: list[Message] = []
            while len(there) < end:
                read = consumer.consume(end - len(there), TIMEOUT_S)
                assert read, f"{topic}-{partition} ends after {len(there)} of {end} messages"
                there += read
            found += there
        return found
    finally:
        consumer.close()


def rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The values, as JSON with exact numbers."""
    return [
        json.loads(message.value() or b"", parse_float=Decimal)
        for message in messages(bootstrap, topic)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_an_examples_own_tests_pass(spark: SparkSession, tmp_path: Path, name: str) -> None:
    said: list[str] = []
    pipeline = Example(name, tmp_path, "127.0.0.1:1").pipeline()
    assert pipeline.tests, "an example shows how its file is tested"
    assert run_tests(spark.newSession(), pipeline, only=None, report=said.append), "\n".join(said)


def test_orders_per_minute(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    """In two runs, so that the second one knows which orders come too late."""
    example = Example("orders-per-minute", tmp_path, own_broker.bootstrap)
    own_broker.create_topic("orders", 3)
    own_broker.create_topic("orders-per-minute")
    own_broker.create_topic("orders.dead")
    generator = example.generator
    stream = generator.orders(7, per_minute=200, odds=generator.Odds(10, 2, 2))
    first = [order for order in itertools.islice(stream, 1200) if order.kind != "too late"]
    second = list(itertools.islice(stream, 800))
    assert {order.kind for order in second} == {"on time", "late", "too late", "broken"}

    sender = generator.Sender(own_broker.bootstrap, "orders")
    for sent in (first, second):
        sender.send(sent)
        example.run_once(spark)

    values = [order.value for order in (*first, *second)]
    good, broken = sorted_out(values)
    told = {
        (datetime.fromisoformat(row["minute"]), row["shop"]): (row["orders"], row["total"])
        for row in rows(own_broker.bootstrap, "orders-per-minute")
    }
    truth = totals_of_closed_minutes(good, generator.START)
    assert told == truth
    assert len(truth) > 6 * 4, "several minutes of six shops were closed"
    dead = messages(own_broker.bootstrap, "orders.dead")
    assert Counter(message.value() for message in dead) == Counter(broken)
    for message in dead:
        headers = dict(message.headers() or ())
        assert headers["ottla.topic"] == b"orders"
        assert headers["ottla.reason"]


def sorted_out(values: Iterable[bytes]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Orders that can be read, and the bytes of those that cannot."""
    good, broken = [], []
    for value in values:
        try:
            order = json.loads(value, parse_float=Decimal, parse_int=Decimal)
        except ValueError:
            broken.append(value)
            continue
        if isinstance(order["amount"], Decimal):
            good.append({**order, "at": datetime.fromisoformat(order["at"])})
        else:
            broken.append(value)
    return good, broken


def totals_of_closed_minutes(
    orders: list[dict[str, Any]], start: datetime
) -> dict[tuple[datetime, str], tuple[int, Decimal]]:
    """By hand: what is from long before the start came too late, open minutes are not told yet."""
    in_time = [order for order in orders if order["at"] >= start - timedelta(minutes=1)]
    watermark = max(order["at"] for order in in_time) - timedelta(minutes=2)
    amounts: dict[tuple[datetime, str], list[Decimal]] = defaultdict(list)
    for order in in_time:
        minute = order["at"].replace(second=0, microsecond=0)
        if minute + timedelta(minutes=1) <= watermark:
            amounts[minute, order["shop"]].append(order["amount"])
    return {key: (len(some), sum(some, Decimal())) for key, some in amounts.items()}


def test_file_drop(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    """A file that was read is not read again by the next run."""
    example = Example("file-drop", tmp_path, own_broker.bootstrap)
    own_broker.create_topic("readings", 3)
    own_broker.create_topic("readings.dead")
    generator = example.generator
    dropped = list(itertools.islice(generator.files(3), 3))
    for some in (dropped[:2], dropped[2:]):
        for name, content in some:
            generator.drop(example.directory / "inbox", name, content)
        example.run_once(spark)

    lines = [line for _, content in dropped for line in content.splitlines()[1:]]
    good = [line.split(",") for line in lines if "warm" not in line]
    broken = [line for line in lines if "warm" in line]
    truth = Counter(
        (sensor, datetime.fromisoformat(at), float(celsius), float(celsius) > 80)
        for sensor, at, celsius in good
    )
    told = Counter(
        (row["sensor"], datetime.fromisoformat(row["at"]), float(row["celsius"]), row["too_hot"])
        for row in rows(own_broker.bootstrap, "readings")
    )
    assert told == truth
    assert broken, "the generator breaks some lines"
    dead = messages(own_broker.bootstrap, "readings.dead")
    assert Counter((message.value() or b"").decode() for message in dead) == Counter(broken)
    assert all(b"readings-" in dict(message.headers() or ())["ottla.file"] for message in dead)


def test_current_customers(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    example = Example("current-customers", tmp_path, own_broker.bootstrap)
    own_broker.create_topic("customers", 2)
    stream = example.generator.changes(5)
    truth: dict[str, dict[str, str]] = {}
    gone = set()
    for _ in range(2):
        changes = list(itertools.islice(stream, 400))
        producer = Producer({"bootstrap.servers": own_broker.bootstrap})
        for change in changes:
            example.generator.send(producer, "customers", change)
            customer = change.key.decode()
            if change.value is None:
                gone.add(customer)
                truth.pop(customer, None)
            else:
                truth[customer] = json.loads(change.value)
        assert producer.flush(TIMEOUT_S) == 0
        example.run_once(spark)
        newest = example.directory / "table" / "current"
        table = spark.read.parquet(str(newest.resolve())).collect()
        told = {row.id: {name: row[name] for name in ("name", "city", "plan")} for row in table}
        assert len(table) == len(told), "a customer stands in the table twice"
        assert told == truth
    assert gone - truth.keys(), "some have left for good"


def test_the_pipelines_of_the_page_are_valid(spark: SparkSession, tmp_path: Path) -> None:
    """Names, SQL and streaming rules, by Spark itself; and where they have tests, those pass."""
    page = read_page(ROOT / "docs" / "pipelines.md")
    complaints = []
    for block in page.pipelines:
        file = page.write(block, tmp_path / f"line-{block.line}")
        pipeline = read_pipeline(file, environment={"PGPASSWORD": "secret"})
        found = validate(spark.newSession(), pipeline, topics=lambda: None)
        problems = [str(problem) for problem in found if not problem.is_note]
        if pipeline.tests and not problems:
            passed = run_tests(spark.newSession(), pipeline, only=None, report=problems.append)
            problems = [] if passed else problems
        complaints += [f"{page.path.name}, line {block.line}: {problem}" for problem in problems]
    assert not complaints, "\n".join(complaints)


@pytest.mark.seconds(420)
def test_the_readmes_pipeline_runs_as_it_stands(tmp_path: Path) -> None:
    """Its file, and the commands beneath it, in a shell."""
    page = read_page(ROOT / "README.md")
    (block,) = page.pipelines
    file = page.write(block, tmp_path)
    text = page.path.read_text()
    (commands,) = re.findall(r"<!-- run with Spark -->\n```bash\n(.*?)^```$", text, re.S | re.M)
    assert file.name in commands
    with Broker() as broker:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path,
            env={
                **os.environ,
                **session.environment(),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "OTTLA_BOOTSTRAP": broker.bootstrap,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if '"total"' in line]
    assert sorted((row["shop"], row["total"]) for row in told) == [("Brno", 12.25), ("Praha", 4.5)]
