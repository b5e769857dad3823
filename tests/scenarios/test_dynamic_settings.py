"""What Kafka changes at run time changes here at run time, at once and not with the next round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.config import BROKER_SETTINGS
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.records import Record, encode_batch
from raw_client import RawClient
from records_kit import NOW_MS, batch, produce
from scenarios.in_process import BrokerInside
from scenarios.polling import until

BROKER, SET = 4, 0
HOUR_MS = 3_600_000
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "2000", "file.delete.delay.ms": "0"}


def alter(client: RawClient, broker: str, **settings: object) -> Any:
    configs = [
        AlterableConfig(name.replace("_", "."), SET, str(value)) for name, value in settings.items()
    ]
    resource = AlterConfigsResource(BROKER, broker, configs)
    reply = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return reply.responses[0]


def write(client: RawClient, topic: str, values: int, size: int = 500) -> None:
    for number in range(values):
        data = batch(b"%d" % number * size, key=b"k%d" % (number % 3))
        assert produce(client, topic, data).error_code == 0


@pytest.mark.parametrize("scope", ["", "1"], ids=["all-brokers", "one-broker"])
def test_the_rest_of_the_cleaner_ends_when_its_backoff_is_shortened(
    tmp_path: Path, scope: str
) -> None:
    settings = {"log_cleaner_backoff_ms": HOUR_MS, "log_cleaner_min_cleanable_ratio": 0.01}
    with BrokerInside(tmp_path, **settings) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("kept", configs=COMPACTED)
        write(client, "kept", 20)
        assert alter(client, scope, log_cleaner_backoff_ms=20).error_code == 0
        compaction = inside.node.housekeeping.compaction
        until(lambda: compaction.logs_cleaned > 0, "the cleaner rests for its hour")


def test_a_larger_buffer_lets_the_cleaner_take_up_what_it_had_given_up(tmp_path: Path) -> None:
    settings = {
        "log_cleaner_backoff_ms": 20,
        "log_cleaner_min_cleanable_ratio": 0.01,
        "log_cleaner_dedupe_buffer_size": 1024,
    }
    with BrokerInside(tmp_path, **settings) as inside, RawClient(inside.bootstrap) as client:
        inside.create_topic("wide", configs={**COMPACTED, "segment.bytes": "20000"})
        records = [Record(at, NOW_MS, b"k%d" % at, bytes(50)) for at in range(400)]
        for _ in range(3):
            assert produce(client, "wide", encode_batch(records)).error_code == 0
        chore = inside.node.housekeeping.compaction
        until(lambda: chore.given_up, "a log with too many keys is given up")
        assert alter(client, "1", log_cleaner_dedupe_buffer_size=1_000_000).error_code == 0
        until(lambda: chore.logs_cleaned > 0 and not chore.given_up, "the old buffer is still used")


def test_silent_producers_are_forgotten_by_the_time_that_is_set_now(tmp_path: Path) -> None:
    with BrokerInside(tmp_path, log_flush_offset_checkpoint_interval_ms=20) as inside:
        inside.create_topic("t")
        with RawClient(inside.bootstrap) as client:
            data = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
            assert produce(client, "t", data).error_code == 0
            (partition,) = inside.node._partitions.in_topic("t").values()
            assert 7 in partition.last_data_of_producers()
            assert alter(client, "", producer_id_expiration_ms=1).error_code == 0
            until(lambda: not partition.last_data_of_producers(), "kept for a day")


def test_what_may_be_altered_is_not_described_as_read_only(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        request = DescribeConfigsRequest(resources=[DescribeConfigsResource(BROKER, "1", None)])
        (result,) = client.ask(request, 4).results
        for entry in result.configs:
            setting = BROKER_SETTINGS[entry.name]
            answer = alter(client, "1", **{setting.field_name: entry.value or ""})
            assert (answer.error_code == 0) == (not entry.read_only), entry.name


STATIC, DEFAULT = 4, 5


def described(client: RawClient) -> dict[str, Any]:
    resource = DescribeConfigsResource(BROKER, "1", None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.ask(request, 4).results
    return {entry.name: entry for entry in result.configs}


def test_who_and_where_a_broker_is_was_given_to_it_and_not_to_all(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside, RawClient(inside.bootstrap) as client:
        entries = described(client)
        advertised = f"PLAINTEXT://{inside.bootstrap}"
        for name, value in {
            "advertised.listeners": advertised,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "node.id": "1",
        }.items():
            entry = entries[name]
            assert (entry.value, entry.config_source) == (value, STATIC), name
            assert (entry.synonyms[0].value, entry.synonyms[0].source) == (value, STATIC), name
            assert entry.read_only, name
            assert not entry.is_sensitive, name


def test_what_was_given_is_static_even_where_it_is_the_default(tmp_path: Path) -> None:
    with BrokerInside(tmp_path, num_partitions=1) as inside, RawClient(inside.bootstrap) as client:
        entries = described(client)
        given, left = entries["num.partitions"], entries["max.connections"]
        assert [(one.value, one.source) for one in given.synonyms] == [
            ("1", STATIC),
            ("1", DEFAULT),
        ]
        assert (given.config_source, left.config_source) == (STATIC, DEFAULT)
