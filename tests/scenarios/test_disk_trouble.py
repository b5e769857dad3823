"""A disk that takes no more writes: the node says so, goes on reading, and recovers."""

from __future__ import annotations

import json
import resource
import urllib.error
import urllib.request

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Broker
from raw_client import RawClient
from records_kit import batch, fetch, list_offset, produce, values_in

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def _limit_file_bytes(broker: Broker, byte_count: int) -> None:
    """From here on no file of the broker may grow beyond this: the disk is full."""
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (byte_count, resource.RLIM_INFINITY))


def _readiness(broker: Broker) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"{broker.http}/readyz", timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_full_disk_refuses_writes_and_recovers_when_there_is_room(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("full")
    broker.create_topic("other")
    value = b"x" * 40_000
    with RawClient(broker.bootstrap) as client:
        assert produce(client, "full", batch(value)).base_offset == 0
        _limit_file_bytes(broker, 60_000)
        for acks in (-1, 1):
            refused = produce(client, "full", batch(value), acks=acks)
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert _readiness(broker)[0] == 503
        assert values_in(fetch(client, "full", 0).records) == [value]
        assert produce(client, "other", batch(b"small")).error_code == 0
        _limit_file_bytes(broker, resource.RLIM_INFINITY)
        while _readiness(broker)[0] != 200:
            assert broker.is_running
        assert produce(client, "full", batch(b"again")).base_offset == 1
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert values_in(fetch(client, "full", 0).records) == [value, b"again"]


def test_a_refused_batch_leaves_no_trace_in_the_producers_sequence(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("exact")

    def sequenced(first: int, value: bytes) -> bytearray:
        return batch(value, producer_id=7, producer_epoch=0, base_sequence=first)

    with RawClient(broker.bootstrap) as client:
        assert produce(client, "exact", sequenced(0, b"a" * 30_000)).error_code == 0
        _limit_file_bytes(broker, 40_000)
        refused = produce(client, "exact", sequenced(1, b"b" * 30_000))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        _limit_file_bytes(broker, resource.RLIM_INFINITY)
        answer = produce(client, "exact", sequenced(1, b"b" * 30_000))
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert list_offset(client, "exact", -1).offset == 2


def test_metadata_that_cannot_be_written_is_refused_and_not_believed(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = ottla_broker_factory()
    broker.create_topic("before")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    _limit_file_bytes(broker, 10)
    refused = admin.create_topics([NewTopic("never", 1, 1)], request_timeout=10)["never"]
    with pytest.raises(KafkaException):
        refused.result(20)
    assert set(admin.list_topics(timeout=10).topics) == {"before"}
    _limit_file_bytes(broker, resource.RLIM_INFINITY)
    created = False
    while not created:
        try:
            admin.create_topics([NewTopic("after", 1, 1)], request_timeout=10)["after"].result(20)
            created = True
        except KafkaException:
            # The controller reads its log again first.
            continue
    broker.restart()
    assert set(admin.list_topics(timeout=10).topics) == {"before", "after"}
