"""The metadata log stays small, and every start finds all that was ever acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.testing import Broker
from ottla.testing.broker import BrokerFailed
from ottla.wire.messages.metadata import MetadataRequest
from raw_client import RawClient
from scenarios.polling import until

EAGER = {
    "metadata.log.max.record.bytes.between.snapshots": 500,
    "log.segment.delete.delay.ms": 0,
}


def metadata_directory(broker: Broker) -> Path:
    return broker.data_dir / "__cluster_metadata-0"


def snapshots_of(broker: Broker) -> list[Path]:
    return sorted(metadata_directory(broker).glob("*.checkpoint"))


def bytes_of(broker: Broker) -> int:
    return sum(path.stat().st_size for path in metadata_directory(broker).iterdir())


def log_begins_at(broker: Broker) -> int:
    return int(min(metadata_directory(broker).glob("*.log")).stem)


def wait_for_a_snapshot_after(broker: Broker, before: list[Path]) -> None:
    until(lambda: snapshots_of(broker)[-1:] not in ([], before[-1:]), "no new snapshot")


def all_done(futures: dict[object, object]) -> None:
    for future in futures.values():
        future.result()


def change_much(admin: AdminClient, round_number: int) -> None:
    """Of each round's thirty topics ten stay, with settings, one of them with more partitions."""
    names = [f"r{round_number}-t{number}" for number in range(30)]
    all_done(
        admin.create_topics(
            [NewTopic(name, 3, 1, config={"retention.ms": "1000000"}) for name in names]
        )
    )
    resource = ConfigResource(
        ResourceType.TOPIC,
        names[0],
        incremental_configs=[
            ConfigEntry("segment.ms", str(70_000 + round_number), None, False, False, False, False)
        ],
    )
    resource.incremental_configs[0].incremental_operation = AlterConfigOpType.SET
    all_done(admin.incremental_alter_configs([resource]))
    all_done(admin.create_partitions([NewPartitions(names[1], 5)]))
    all_done(admin.delete_topics(names[10:]))


def all_that_is_known(bootstrap: str) -> dict[str, object]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.list_topics(timeout=10).topics
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(topics)]
    configs = {
        resource.name: {key: (entry.value, entry.source) for key, entry in found.result().items()}
        for resource, found in admin.describe_configs(resources).items()
    }
    with RawClient(bootstrap) as client:
        answer = client.ask(MetadataRequest(topics=None), 12)
    ids = {topic.name: topic.topic_id for topic in answer.topics}
    return {
        name: (len(topic.partitions), ids[name], configs[name]) for name, topic in topics.items()
    }


@pytest.mark.seconds(120)
def test_everything_is_there_after_kills_and_the_log_is_small():
    rounds = 4
    with Broker(EAGER) as broker:
        for number in range(rounds):
            before = snapshots_of(broker)
            change_much(AdminClient({"bootstrap.servers": broker.bootstrap}), number)
            wait_for_a_snapshot_after(broker, before)
            expected = all_that_is_known(broker.bootstrap)
            assert len(expected) == 10 * (number + 1)
            if number % 2:
                broker.stop()
            else:
                broker.kill()
            broker.start()
            assert all_that_is_known(broker.bootstrap) == expected
        until(lambda: log_begins_at(broker) > 0 and len(snapshots_of(broker)) == 2, "not cut")
        # 40 topics of 3 partitions: what is left of some 800 records and more.
        assert bytes_of(broker) < 150_000


def test_a_broker_that_stops_at_once_has_cut_its_log_all_the_same():
    """With Kafka's own settings: each start writes a record for every partition."""
    with Broker() as broker:
        broker.create_topic("many", 2_000)
        for _ in range(3):
            broker.restart()
        assert log_begins_at(broker) > 0
        assert len(snapshots_of(broker)) == 2
        topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics().topics
        assert len(topics["many"].partitions) == 2_000


def test_a_broker_whose_snapshots_are_damaged_says_so_and_does_not_start():
    with Broker(EAGER) as broker:
        for number in range(3):
            before = snapshots_of(broker)
            broker.create_topic(f"t{number}", 10)
            wait_for_a_snapshot_after(broker, before)
        until(lambda: log_begins_at(broker) > 0, "not cut")
        broker.stop()
        *_, newest = snapshots_of(broker)
        whole = newest.read_bytes()
        newest.write_bytes(whole[: len(whole) // 2])
        broker.start()
        assert f"{newest} is passed over" in broker.log_text()
        assert len(all_that_is_known(broker.bootstrap)) == 3
        broker.kill()
        for path in snapshots_of(broker):
            path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(BrokerFailed, match="no whole snapshot tells what was before"):
            broker.start()
        assert broker.exit_code == 1
        last_line = broker.log_text().strip().splitlines()[-1]
        assert str(metadata_directory(broker)) in last_line
