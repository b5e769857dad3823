"""Dead letters go back to where they came from: once, as they were, and none is forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql import SparkSession

from ottla.pipelines.language.model import BadRecords, Pipeline, TopicSource
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed
from ottla.pipelines.repair import Fate, Letter, Repaired, repair
from ottla.pipelines.sources.contract import Letters
from ottla.pipelines.sources.dead_letters import OF_FILE, OF_TOPIC
from ottla.pipelines.sources.kinds import open_source
from ottla.testing import Broker
from ottla.wire.compression import Compression
from spark.conftest import MakeTopic
from spark.kit.filling import end_offset, put, record
from spark.kit.messages import Found, messages_in
from spark.kit.pipeline_sources import PLACE, Headers, Message, drain, pipeline_of, send
from spark.kit.streams import TIMEOUT_S

AT_MS = 1_769_860_800_250
TIME = b"2026-01-31T12:00:00.250Z"


class Shop:
    """A topic with a schema, its dead letters, and a pipeline with both."""

    def __init__(
        self,
        broker: Broker,
        topic: MakeTopic,
        directory: Path,
        configs: Mapping[str, int] | None = None,
    ) -> None:
        self.bootstrap = broker.bootstrap
        self.topic, self.dead = topic(2, configs), topic(1)
        self.source = TopicSource(
            name="orders", place=PLACE, topics=(self.topic,), schema="id INT",
            bad_records=BadRecords("dead_letter", self.dead),
        )  # fmt: skip
        self._directory = directory
        self.told: list[Letter] = []

    @property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self._directory, self.bootstrap, self.source)

    def mend(self, schema: str) -> None:
        self.source = replace(self.source, schema=schema)

    def headers(self, offset: int, **changed: bytes) -> Headers:
        values = [
            self.topic.encode(),
            b"1",
            b"%d" % offset,
            TIME,
            b"value: why",
            b"shop",
            b"orders",
        ]
        told = dict(zip(OF_TOPIC, values, strict=True))
        return list((told | {f"ottla.{name}": text for name, text in changed.items()}).items())

    def bury(self, *values: bytes | None, own: Headers = (), **changed: bytes) -> None:
        """Letters from offset 0 on of partition 1."""
        send(
            self.bootstrap,
            self.dead,
            *(
                Message(value, b"key", [*own, *self.headers(at, **changed)])
                for at, value in enumerate(values)
            ),
        )

    def repair(self, *, dry_run: bool = False, all: bool = False) -> Repaired:
        self.told = []
        return repair(self.pipeline, source=None, dry_run=dry_run, all=all, report=self.told.append)

    def messages(self) -> list[Found]:
        return messages_in(self.bootstrap, self.topic)

    def values(self, topic: str | None = None) -> list[bytes | None]:
        return [one.value for one in messages_in(self.bootstrap, topic or self.topic)]

    def fates(self) -> list[Fate]:
        return [letter.fate for letter in self.told]


@pytest.fixture
def shop(broker: Broker, topic: MakeTopic, tmp_path: Path) -> Shop:
    return Shop(broker, topic, tmp_path)


def test_from_a_wrong_schema_to_all_rows_once(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    names = [f'{{"id": {at if at % 3 else chr(34) + f"n{at}" + chr(34)}}}' for at in range(9)]
    send(
        shop.bootstrap,
        shop.topic,
        *(
            Message(text.encode(), b"k%d" % at, [("trace", b"%d" % at)], AT_MS + at, at % 2)
            for at, text in enumerate(names)
        ),
    )
    found = open_source(spark, shop.pipeline, shop.source, Letters())
    first = drain(found.frame.selectExpr("cast(id AS STRING) AS id"), tmp_path / "orders")
    assert sorted(row.id for row in first.rows) == ["1", "2", "4", "5", "7", "8"]
    assert shop.repair() == Repaired(still_bad=3)

    shop.mend("id STRING")
    assert shop.repair() == Repaired(put_back=3)
    mended = open_source(spark, shop.pipeline, replace(shop.source, headers=True)).frame
    second = drain(mended, tmp_path / "orders")
    rows = sorted(second.rows, key=lambda row: str(row.id))
    assert [row.id for row in rows] == ["n0", "n3", "n6"]
    for row, at in zip(rows, (0, 3, 6), strict=True):
        assert (row["_key"], row["_partition"]) == (f"k{at}", at % 2)
        assert [(one.key, one.value) for one in row["_headers"]] == [("trace", b"%d" % at)]
        assert row["_timestamp"].timestamp() * 1000 == AT_MS + at
    assert shop.repair() == Repaired()
    assert len(shop.values()) == 12


def test_only_what_can_be_read_now_goes_back_and_only_once(shop: Shop) -> None:
    own: Headers = [("trace", b"\x00\xff"), ("none", None)]
    shop.bury(b'{"id": 1}', b"{", None, own=own)
    assert shop.repair() == Repaired(put_back=2, still_bad=1)
    back = [Found(1, 0, b"key", b'{"id": 1}', list(own)), Found(1, 1, b"key", None, list(own))]
    assert shop.messages() == back
    assert [(one.offset, one.reason, one.fate) for one in shop.told] == [
        (0, "value: why", Fate.PUT_BACK),
        (1, "value: why", Fate.STILL_BAD),
        (2, "value: why", Fate.PUT_BACK),
    ]
    assert shop.told[0].reason_now is None
    assert (shop.told[1].reason_now or "").startswith("value: it is not JSON")

    assert shop.repair() == Repaired(still_bad=1)
    assert shop.messages() == back


def test_a_letter_that_is_bad_for_longer_is_not_forgotten(shop: Shop) -> None:
    shop.bury(b'{"id": "x"}', b'{"id": 2}', b'{"id": {}}', b'{"id": 4}', b'{"id": "y"}')
    assert shop.repair() == Repaired(put_back=2, still_bad=3)
    # They have been written again behind the others, as they were and in their order.
    again = messages_in(shop.bootstrap, shop.dead)[5:]
    assert [one.value for one in again] == [b'{"id": "x"}', b'{"id": {}}', b'{"id": "y"}']
    assert [one.headers for one in again] == [list(shop.headers(at)) for at in (0, 2, 4)]
    # Without a change they stay where they are.
    for _ in range(2):
        assert shop.repair() == Repaired(still_bad=3)
    assert end_offset(shop.bootstrap, shop.dead) == 8

    shop.mend("id STRING")
    assert shop.repair() == Repaired(put_back=3)
    assert shop.values()[2:] == [b'{"id": "x"}', b'{"id": {}}', b'{"id": "y"}']
    assert shop.repair() == Repaired()


def test_foreign_letters_do_not_carry_a_bad_one_away(shop: Shop) -> None:
    shop.bury(b'{"id": "x"}')
    send(shop.bootstrap, shop.dead, Message(b"foreign"))
    assert shop.repair() == Repaired(still_bad=1, foreign=1)
    shop.mend("id STRING")
    assert shop.repair() == Repaired(put_back=1, foreign=1)
    assert shop.repair() == Repaired()


def test_many_letters_take_many_fetches(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.pipelines.repair.FETCH_BYTES", 1024)
    monkeypatch.setattr("ottla.pipelines.repair.BATCH_BYTES", 2_000)
    bad = [b'{"id": "%d"}' % at for at in range(200)]
    good = [b'{"id": %d}' % at for at in range(100)]
    for some in (good[:50], *(bad[at : at + 20] for at in range(0, 200, 20)), good[50:]):
        shop.bury(*some)
    assert shop.repair() == Repaired(put_back=100, still_bad=200)
    assert shop.values() == good
    assert shop.repair() == Repaired(still_bad=200)
    shop.mend("id STRING")
    assert shop.repair() == Repaired(put_back=200)
    assert shop.values() == good + bad


def test_all_puts_back_what_cannot_be_read_too(shop: Shop) -> None:
    shop.bury(b"{", b'{"id": 1}')
    assert shop.repair(all=True) == Repaired(put_back=2)
    assert shop.values() == [b"{", b'{"id": 1}']
    assert shop.repair(all=True) == Repaired()


def test_a_dry_run_tells_and_does_nothing(shop: Shop) -> None:
    shop.bury(b'{"id": 1}', b"{")
    for _ in range(2):
        assert shop.repair(dry_run=True) == Repaired(put_back=1, still_bad=1)
        assert shop.fates() == [Fate.PUT_BACK, Fate.STILL_BAD]
        assert [(one.topic, one.partition) for one in shop.told] == [(shop.topic, 1)] * 2
    assert shop.values() == []
    assert shop.repair() == Repaired(put_back=1, still_bad=1)


def test_what_has_no_way_back_is_left_and_counted(shop: Shop) -> None:
    send(shop.bootstrap, shop.dead, Message(b'{"id": 1}'), Message(None, b"k", [("a", b"1")]))
    from_file = list(zip(OF_FILE, [b"file:/a", b"why", b"shop", b"orders"], strict=True))
    send(shop.bootstrap, shop.dead, Message(b"1,a", None, from_file))
    shop.bury(b'{"id": 2}', topic=b"a-topic-that-the-source-does-not-read")
    shop.bury(b'{"id": 3}', partition=b"7")
    # Others may send their letters to the same topic: they are not ours to count.
    shop.bury(b'{"id": 4}', pipeline=b"another")
    shop.bury(b'{"id": 5}', source=b"payments")
    shop.bury(b'{"id": 6}')
    assert shop.repair() == Repaired(put_back=1, foreign=4, from_files=1)
    assert shop.values() == [b'{"id": 6}']
    assert len(shop.values(shop.dead)) == 8
    assert shop.repair() == Repaired()


def test_a_run_that_died_before_its_commit_puts_back_twice(shop: Shop) -> None:
    shop.bury(b'{"id": 1}', b'{"id": 2}')
    assert shop.repair() == Repaired(put_back=2)
    # As if the commit had never come.
    group = {"bootstrap.servers": shop.bootstrap, "group.id": "ottla-repair-shop-orders"}
    consumer = Consumer(group)
    consumer.commit(offsets=[TopicPartition(shop.dead, 0, 0)], asynchronous=False)
    consumer.close()
    assert shop.repair() == Repaired(put_back=2)
    assert shop.values() == [b'{"id": 1}', b'{"id": 2}'] * 2


def test_what_the_broker_refuses_stays_a_letter(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    shop = Shop(broker, topic, tmp_path, {"max.message.bytes": 1000})
    large = b'{"id": 1, "more": "%s"}' % (b"x" * 2000)
    shop.bury(large)
    with pytest.raises(PipelineFailed, match=r"raise the topic's max\.message\.bytes"):
        shop.repair()
    resource = ConfigResource(ConfigResource.Type.TOPIC, shop.topic)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": shop.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
    assert shop.repair() == Repaired(put_back=1)
    assert shop.values() == [large]


def questions(sources: Sequence[Any], name: str | None, bootstrap: str = "127.0.0.1:1") -> Repaired:
    pipeline = pipeline_of(Path("/nowhere"), bootstrap, *sources)
    return repair(pipeline, source=name, dry_run=True, all=False, report=lambda _: None)


def test_what_cannot_be_repaired_is_one_line(broker: Broker) -> None:
    orders = TopicSource(name="orders", place=PLACE, topics=("orders",), schema="id INT")
    with pytest.raises(BadPipeline, match=r"there is no source order; did you mean orders\?"):
        questions([orders], "order")
    with pytest.raises(BadPipeline, match=r"shop\.yaml:7:3: source orders has no dead letters"):
        questions([orders], "orders")
    with pytest.raises(BadPipeline, match="no source has dead letters"):
        questions([orders], None)
    dead = replace(orders, bad_records=BadRecords("dead_letter", "nobody-wrote-here"))
    with pytest.raises(PipelineFailed, match="topic nobody-wrote-here, which does not exist on"):
        questions([dead], "orders", broker.bootstrap)
    hasty = replace(dead, options={"kafka.default.api.timeout.ms": "500"})
    with pytest.raises(PipelineFailed, match="cannot put back the letters of nobody-wrote-here: "):
        questions([hasty], None)
    wrong = replace(dead, options={"kafka.security.protocol": "NONE"})
    with pytest.raises(BadPipeline, match=r"option kafka\.security\.protocol"):
        questions([wrong], None)


def test_a_letter_that_is_there_twice_goes_back_once(shop: Shop) -> None:
    """A batch that ran again has written its letters again."""
    shop.bury(b'{"id": 0}', b'{"id": 1}')
    shop.bury(b'{"id": 0}')
    assert shop.repair(dry_run=True) == Repaired(put_back=2)
    assert shop.repair() == Repaired(put_back=2)
    assert shop.fates() == [Fate.PUT_BACK, Fate.PUT_BACK, Fate.TWICE]
    assert sorted(value or b"" for value in shop.values()) == [b'{"id": 0}', b'{"id": 1}']
    assert shop.repair() == Repaired()


def test_a_cut_letter_goes_back_whole_or_not_at_all(shop: Shop) -> None:
    whole = b'{"id": "%s"}' % (b"x" * 200)
    record = Message(whole, b"k", [("own", b"1")], AT_MS, partition=1)
    send(shop.bootstrap, shop.topic, record)
    cut = ("ottla.cut", b"%d" % len(whole))
    told = shop.headers(0)
    # One whose record is there, one of a record that there never was, one of another record.
    other = shop.headers(0, timestamp=b"2026-01-31T12:00:00.001Z")
    for headers in (told, shop.headers(17), other):
        send(shop.bootstrap, shop.dead, Message(whole[:20], b"k", [cut, *headers]))
    assert shop.repair() == Repaired(still_bad=3)
    assert shop.values() == [whole]

    shop.mend("id STRING")
    assert shop.repair() == Repaired(put_back=1, still_bad=2)
    gone = "the letter is cut, and its record is gone from where it was"
    assert [one.reason_now for one in shop.told] == [None, gone, gone]
    back = shop.messages()[-1]
    assert (back.value, back.key, back.headers, back.partition) == (whole, b"k", [("own", b"1")], 1)
    # All that there are, but not what is only a part.
    assert shop.repair(all=True) == Repaired(still_bad=2)


def test_what_its_producer_had_compressed_fits_when_it_goes_back(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """A record may be more than its topic takes, in a batch that is less."""
    shop = Shop(broker, topic, tmp_path, {"max.message.bytes": 1_048_588})
    whole = b'{"id": 1, "text": "%s"}' % (b"x" * 3_000_000)
    large = record(whole, b"k", AT_MS)
    put(shop.bootstrap, shop.topic, [large], partition=1, compression=Compression.LZ4)
    cut = ("ottla.cut", b"%d" % len(whole))
    send(shop.bootstrap, shop.dead, Message(whole[:20], b"k", [cut, *shop.headers(0)]))
    assert shop.repair() == Repaired(put_back=1)
    assert shop.values() == [whole, whole]
