"""Three nodes in three racks: who answers what, seen in raw frames, and where consumers read."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.config.cluster import RACK_AWARE_SELECTOR
from ottla.errors import ErrorCode
from ottla.testing import Cluster
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raw_client import RawClient
from records_kit import batch, values_in
from scenarios.polling import until

TOPIC = "orders"
MESSAGES = 20
PATIENCE_S = 60.0
NODES = (1, 2, 3)
NONE, UNKNOWN, NOT_LEADER = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR}
    with Cluster(settings, racks=("east", "west", "north")) as cluster:
        cluster.create_topic(TOPIC, 1, replication_factor=3)
        send(cluster, MESSAGES)
        yield cluster


def send(cluster: Cluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in range(count):
        producer.produce(TOPIC, f"message {number}".encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0


class Place:
    """The partition: who leads it, under which epoch."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        with RawClient(cluster[1].bootstrap) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            topic = client.ask(request, 12).topics[0]
        self.topic_id: bytes = topic.topic_id
        self.leader: int = topic.partitions[0].leader_id
        self.epoch: int = topic.partitions[0].leader_epoch
        self.followers = [node for node in NODES if node != self.leader]

    def ask(self, node: int, request: Any, version: int) -> Any:
        with RawClient(self.cluster[node].bootstrap) as client:
            return client.ask(request, version)

    def fetch(
        self, node: int, offset: int = 0, epoch: int = -1, version: int = 16, **options: Any
    ) -> Any:
        asked = FetchPartition(
            0,
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=1_000_000,
        )
        topic = FetchTopic(topic=TOPIC, topic_id=self.topic_id, partitions=[asked])
        reply = self.ask(node, FetchRequest(min_bytes=1, topics=[topic], **options), version)
        return reply.responses[0].partitions[0]

    def list_latest(self, node: int, epoch: int) -> int:
        asked = ListOffsetsPartition(0, current_leader_epoch=epoch, timestamp=-1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(TOPIC, [asked])])
        code: int = self.ask(node, request, 7).topics[0].partitions[0].error_code
        return code

    def epoch_end(self, node: int, epoch: int) -> int:
        asked = OffsetForLeaderPartition(0, current_leader_epoch=epoch, leader_epoch=self.epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(TOPIC, [asked])]
        )
        code: int = self.ask(node, request, 4).topics[0].partitions[0].error_code
        return code

    def produce(self, node: int, version: int, partitions: int = 1) -> Any:
        """One batch goes a way of its own; two do not."""
        data = [PartitionProduceData(index, batch(b"v")) for index in range(partitions)]
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(TOPIC, data)]
        )
        return self.ask(node, request, version)

    def delete_records(self, node: int) -> int:
        asked = DeleteRecordsPartition(0, offset=0)
        request = DeleteRecordsRequest([DeleteRecordsTopic(TOPIC, [asked])], timeout_ms=30_000)
        code: int = self.ask(node, request, 2).topics[0].partitions[0].error_code
        return code


@pytest.fixture
def place(cluster: Cluster) -> Place:
    return Place(cluster)


# ------------------------------------------------------------------------- leadership and epochs


def test_only_the_leader_answers_and_only_under_its_epoch(place: Place) -> None:
    follower = place.followers[0]
    for ask in (place.list_latest, place.epoch_end):
        for known, at_leader, at_follower in (
            (-1, NONE, NOT_LEADER),
            (place.epoch, NONE, NOT_LEADER),
            (place.epoch + 1, UNKNOWN, UNKNOWN),
        ):
            assert ask(place.leader, known) == at_leader, (ask, known)
            assert ask(follower, known) == at_follower, (ask, known)
    assert place.delete_records(place.leader) == NONE
    assert place.delete_records(follower) == NOT_LEADER


def test_a_fetch_is_held_to_the_epoch_it_names_wherever_it_goes(place: Place) -> None:
    for node in NODES:
        assert place.fetch(node, epoch=place.epoch, rack_id="here").error_code == NONE
        assert place.fetch(node, epoch=place.epoch + 1, rack_id="here").error_code == UNKNOWN


def test_a_replica_is_served_by_the_leader_alone(place: Place) -> None:
    follower, other = place.followers
    refused = place.fetch(follower, epoch=place.epoch, version=14, replica_id=other)
    assert refused.error_code == NOT_LEADER
    stranger = place.fetch(place.leader, epoch=place.epoch, version=14, replica_id=99)
    assert stranger.error_code == NOT_LEADER


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_produce_to_a_follower_is_told_who_leads(place: Place, partitions: int) -> None:
    for version in (9, 10):
        reply = place.produce(place.followers[0], version, partitions)
        answer = reply.responses[0].partition_responses[0]
        assert answer.error_code == NOT_LEADER
        if version >= 10:
            assert answer.current_leader.leader_id == place.leader
            assert answer.current_leader.leader_epoch == place.epoch
            (where,) = reply.node_endpoints
            address = place.cluster[place.leader].bootstrap
            assert f"{where.host}:{where.port}" == address
            assert where.rack == ("east", "west", "north")[place.leader - 1]


# ------------------------------------------------------------------------------ reading followers


def test_all_followers_hear_of_the_last_commit_without_another_write(place: Place) -> None:
    end = place.fetch(place.leader).high_watermark
    assert end >= MESSAGES
    for node in place.followers:
        until(
            lambda node=node: place.fetch(node, rack_id="here").high_watermark == end,
            f"node {node} never hears that all of it is committed",
            PATIENCE_S,
        )
        answer = place.fetch(node, version=11, rack_id="here")
        assert values_in(answer.records)[0] == b"message 0"


def test_a_follower_serves_who_knows_of_it_and_nothing_beyond_its_end(place: Place) -> None:
    follower = place.followers[0]
    assert place.fetch(follower, version=10).error_code == NOT_LEADER
    # Whoever was sent to a follower has a rack; the others take this node for the leader.
    assert place.fetch(follower).error_code == NOT_LEADER
    beyond = place.fetch(follower, offset=10_000_000, rack_id="here")
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_consumer_is_sent_to_the_replica_in_its_rack(place: Place) -> None:
    racks = dict(zip(NODES, ("east", "west", "north"), strict=True))
    for node in place.followers:
        until(
            lambda node=node: (
                place.fetch(place.leader, rack_id=racks[node]).preferred_read_replica == node
            ),
            f"nobody is sent to node {node}",
            PATIENCE_S,
        )
        sent = place.fetch(place.leader, rack_id=racks[node], max_wait_ms=60_000)
        assert (sent.error_code, sent.records) == (NONE, b"")
    for rack in ("", racks[place.leader], "south"):
        answer = place.fetch(place.leader, rack_id=rack)
        assert answer.preferred_read_replica == -1
        assert answer.records


class Reader:
    """A consumer in a rack, with what its statistics say of where it reads."""

    def __init__(self, cluster: Cluster, rack: str) -> None:
        self.reads_from = -1
        self.count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"reader-{rack}",
                "client.rack": rack,
                "statistics.interval.ms": 50,
                "stats_cb": self._note,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def _note(self, text: str) -> None:
        partitions = json.loads(text)["topics"].get(TOPIC, {}).get("partitions", {})
        self.reads_from = partitions.get("0", {}).get("broker", -1)

    def poll(self) -> None:
        message = self._consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.count += 1

    def has_read(self, count: int) -> bool:
        self.poll()
        return self.count >= count

    def is_at(self, node: int) -> bool:
        self.poll()
        return self.reads_from == node

    def close(self) -> None:
        self._consumer.close()


def metric(cluster: Cluster, node: int, name: str) -> float:
    """The sum of its series on this node's page."""
    with urllib.request.urlopen(f"{cluster[node].http}/metrics", timeout=PATIENCE_S) as page:
        text = page.read().decode()
    series = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert series, f"{name} is not on the page"
    return sum(map(float, series))


def test_the_loss_of_a_node_is_on_the_page_of_the_others(cluster: Cluster, place: Place) -> None:
    strict = {"min.insync.replicas": "3"}
    cluster.create_topic("strict", 3, strict, replication_factor=3)
    cluster.create_topic("lonely", 3, replication_factor=1)
    everything = ("under_replicated", "under_min_isr", "offline")
    for node in NODES:
        assert metric(cluster, node, "ottla_partitions_led") > 0
        assert [metric(cluster, node, f"ottla_partitions_{each}") for each in everything] == [0] * 3
    leader, victim = place.leader, place.followers[1]
    cluster[victim].kill()
    try:
        for each in everything:
            until(
                lambda each=each: sum(
                    metric(cluster, node, f"ottla_partitions_{each}")
                    for node in NODES
                    if node != victim
                ),
                f"nobody notices that partitions are {each}",
                PATIENCE_S,
            )
        assert metric(cluster, leader, "ottla_topic_isr_shrinks_total") > 0
    finally:
        cluster[victim].start()
    for node in NODES:
        until(
            lambda node=node: (
                not any(metric(cluster, node, f"ottla_partitions_{each}") for each in everything)
            ),
            "the node is back, and something is still missing",
            PATIENCE_S,
        )
    assert metric(cluster, leader, "ottla_topic_isr_expansions_total") > 0
    assert metric(cluster, leader, "ottla_topic_replication_bytes_out_total") > 0
    assert metric(cluster, place.followers[0], "ottla_topic_replication_bytes_in_total") > 0
    until(lambda: metric(cluster, leader, "ottla_follower_lag_max") == 0, "lag", PATIENCE_S)


def test_librdkafka_reads_from_its_own_rack_and_from_the_leader_when_that_is_gone(
    cluster: Cluster, place: Place
) -> None:
    follower = place.followers[0]
    end = place.fetch(place.leader).high_watermark
    reader = Reader(cluster, ("east", "west", "north")[follower - 1])
    try:
        until(lambda: reader.is_at(follower), "it never reads from its rack", PATIENCE_S)
        until(lambda: reader.has_read(end), "it does not get what is there", PATIENCE_S)
        send(cluster, MESSAGES)
        until(lambda: reader.has_read(end + MESSAGES), "it gets nothing new", PATIENCE_S)
        assert reader.is_at(follower)
        cluster[follower].kill()
        send(cluster, MESSAGES)
        until(lambda: reader.has_read(end + 2 * MESSAGES), "it never goes on", PATIENCE_S)
    finally:
        reader.close()
        if not cluster[follower].is_running:
            cluster[follower].start()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    until(
        lambda: len(admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].isrs) == 3,
        "the node that is back is not in sync",
        PATIENCE_S,
    )
