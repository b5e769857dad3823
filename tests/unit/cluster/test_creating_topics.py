"""Who may create which topic, and what comes of it."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.wire.messages.broker_registration import Listener
from ottla.wire.messages.create_topics import CreatableTopic
from unit.cluster.fleet import Fleet


def test_a_new_topic_has_its_partitions_and_a_leader_for_each(cluster):
    result = cluster.create("orders", partitions=3)
    assert result.error_code == ErrorCode.NONE
    assert result.error_message is None
    topic = cluster.image.topics_by_name["orders"]
    assert topic.id == result.topic_id
    assert list(topic.partitions) == [0, 1, 2]
    for partition in topic.partitions.values():
        assert partition.leader == 1
        assert partition.leader_epoch == 0
        assert partition.replicas == partition.isr == (1,)


def test_the_answer_tells_partitions_replication_and_every_setting(cluster):
    result = cluster.create("orders", partitions=2, configs={"retention.ms": "5"})
    assert (result.num_partitions, result.replication_factor) == (2, 1)
    settings = {entry.name: entry for entry in result.configs}
    assert settings["retention.ms"].value == "5"
    assert settings["retention.ms"].config_source == 1
    assert settings["segment.bytes"].config_source == 5
    assert list(settings) == sorted(settings)


def test_minus_one_takes_the_defaults_of_the_broker(cluster_with):
    cluster = cluster_with(brokers=2, num_partitions=6, default_replication_factor=2)
    result = cluster.create("orders", partitions=-1, factor=-1)
    assert (result.num_partitions, result.replication_factor) == (6, 2)
    assert len(cluster.image.topics_by_name["orders"].partitions) == 6


def test_validate_only_answers_like_a_creation_but_creates_nothing(cluster):
    before = list(cluster.log)
    result = cluster.create("orders", partitions=4, validate_only=True)
    assert result.error_code == ErrorCode.NONE
    assert result.num_partitions == 4
    assert cluster.log == before
    assert cluster.create("bad name", validate_only=True).error_code != ErrorCode.NONE


def test_a_topic_is_created_once(cluster):
    cluster.create("orders")
    result = cluster.create("orders")
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "orders" in result.error_message
    assert (result.num_partitions, result.configs) == (-1, [])


def test_a_name_twice_in_one_request_is_refused_for_that_name_only(cluster):
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("twice", "once", "twice")
    ]
    results = {result.name: result for result in cluster.create_all(topics)}
    assert results["twice"].error_code == ErrorCode.INVALID_REQUEST
    assert results["once"].error_code == ErrorCode.NONE
    assert len(results) == 2
    assert list(cluster.image.topics_by_name) == ["once"]


def test_one_bad_topic_does_not_fail_its_siblings(cluster):
    topics = [
        CreatableTopic(name="good", num_partitions=1, replication_factor=1),
        CreatableTopic(name="bad", num_partitions=0, replication_factor=1),
        CreatableTopic(name="fine", num_partitions=1, replication_factor=1),
    ]
    codes = [result.error_code for result in cluster.create_all(topics)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE]
    assert list(cluster.image.topics_by_name) == ["good", "fine"]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "a\n", "x" * 250, "a:b"])
def test_names_that_kafka_refuses_are_refused(cluster, name):
    result = cluster.create(name)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249, "-", "_"])
def test_names_that_kafka_takes_are_taken(cluster, name):
    assert cluster.create(name).error_code == ErrorCode.NONE


def test_dot_and_underscore_collide_with_an_existing_topic(cluster):
    cluster.create("metrics.cpu_total")
    result = cluster.create("metrics_cpu.total")
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "metrics.cpu_total" in result.error_message


def test_dot_and_underscore_collide_within_one_request(cluster):
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a.b", "a_b")
    ]
    codes = [result.error_code for result in cluster.create_all(topics)]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_name_is_free_again_when_the_colliding_topic_is_gone(cluster):
    cluster.create("a.b")
    cluster.delete("a.b")
    assert cluster.create("a_b").error_code == ErrorCode.NONE


def test_the_metadata_topic_cannot_be_created(cluster):
    assert cluster.create("__cluster_metadata").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("partitions", [0, -2, -(2**31)])
def test_a_topic_without_partitions_is_refused(cluster, partitions):
    assert cluster.create("t", partitions=partitions).error_code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2])
def test_a_topic_without_replicas_is_refused(cluster, factor):
    assert cluster.create("t", factor=factor).error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_more_replicas_than_brokers_are_refused_with_both_numbers(cluster):
    result = cluster.create("t", factor=3)
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "3 time(s)" in result.error_message
    assert "1 broker(s)" in result.error_message


def test_a_topic_may_not_have_more_partitions_than_allowed(cluster_with):
    cluster = cluster_with(max_partitions_per_topic=10)
    assert cluster.create("t", partitions=11).error_code == ErrorCode.INVALID_PARTITIONS
    assert cluster.create("t", partitions=10).error_code == ErrorCode.NONE


def test_the_cluster_may_not_have_more_partitions_than_allowed(cluster_with):
    cluster = cluster_with(max_partitions=10)
    assert cluster.create("a", partitions=8).error_code == ErrorCode.NONE
    assert cluster.create("b", partitions=3).error_code == ErrorCode.POLICY_VIOLATION
    assert cluster.create("b", partitions=2).error_code == ErrorCode.NONE
    cluster.delete("a")
    assert cluster.create("c", partitions=8).error_code == ErrorCode.NONE


def test_the_topics_of_one_request_share_the_room_of_the_cluster(cluster_with):
    cluster = cluster_with(max_partitions=10)
    topics = [
        CreatableTopic(name=name, num_partitions=6, replication_factor=1) for name in ("a", "b")
    ]
    codes = [result.error_code for result in cluster.create_all(topics)]
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_one_request_cannot_fill_the_metadata_log(cluster):
    topics = [
        CreatableTopic(name=name, num_partitions=6_000, replication_factor=1) for name in ("a", "b")
    ]
    codes = [result.error_code for result in cluster.create_all(topics, validate_only=True)]
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_an_unknown_setting_is_refused_with_the_nearest_known_one(cluster):
    result = cluster.create("t", configs={"retention.mss": "1"})
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "retention.mss" in result.error_message
    assert "retention.ms?" in result.error_message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("cleanup.policy", "burn"),
        ("segment.bytes", "1"),
        ("segment.ms", None),
    ],
)
def test_a_wrong_value_is_refused_with_its_setting(cluster, name, value):
    result = cluster.create("t", configs={name: value})
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert name in result.error_message
    assert "t" not in cluster.image.topics_by_name


def test_settings_of_a_new_topic_are_stored(cluster):
    cluster.create("t", configs={"cleanup.policy": "compact", "retention.ms": "7"})
    assert cluster.image.topic_configs("t") == {"cleanup.policy": "compact", "retention.ms": "7"}


class TestManualAssignment:
    def test_replicas_are_placed_as_asked(self, three_brokers):
        result = three_brokers.create(
            "t", partitions=-1, factor=-1, assignments={1: [2, 3], 0: [3, 1]}
        )
        assert result.error_code == ErrorCode.NONE
        assert (result.num_partitions, result.replication_factor) == (2, 2)
        partitions = three_brokers.image.topics_by_name["t"].partitions
        assert [partitions[0].replicas, partitions[1].replicas] == [(3, 1), (2, 3)]
        assert [partitions[0].leader, partitions[1].leader] == [3, 2]

    @pytest.mark.parametrize("numbers", [(2, -1), (-1, 1)])
    def test_it_excludes_numbers(self, three_brokers, numbers):
        partitions, factor = numbers
        result = three_brokers.create(
            "t", partitions=partitions, factor=factor, assignments={0: [1]}
        )
        assert result.error_code == ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize(
        "assignments",
        [
            {0: [1], 2: [1]},
            {1: [1]},
            {0: []},
            {0: [1, 1]},
            {0: [9]},
            {0: [1, 2], 1: [1]},
        ],
        ids=["gap", "not from 0", "no broker", "broker twice", "unknown broker", "uneven"],
    )
    def test_it_must_make_sense(self, three_brokers, assignments):
        result = three_brokers.create("t", partitions=-1, factor=-1, assignments=assignments)
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert result.error_message


def test_topic_ids_are_never_reserved_nor_look_like_an_option(cluster):
    for number in range(200):
        cluster.create(f"t{number}")
    ids = set(cluster.image.topics_by_id)
    assert len(ids) == 200
    assert not any(topic_id[:15] == bytes(15) for topic_id in ids)
    # 62 is '-' in the alphabet of base64 for URLs, and the first six bits are its first letter.
    assert not any(topic_id[0] >> 2 == 62 for topic_id in ids)


def test_ensured_topics_are_created_once_and_existing_ones_are_no_failure(cluster):
    wanted = [
        CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        for name in ("new", "bad name")
    ]
    failures = cluster.ask("ensure_topics", wanted)
    assert list(failures) == ["bad name"]
    topic_id = cluster.image.topics_by_name["new"].id
    assert list(cluster.ask("ensure_topics", wanted)) == ["bad name"]
    assert cluster.image.topics_by_name["new"].id == topic_id


@pytest.mark.parametrize("factor", [1, 2])
def test_more_in_sync_replicas_than_replicas_are_refused_in_one_line(three_brokers, factor):
    result = three_brokers.create("t", factor=factor, configs={"min.insync.replicas": "3"})
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert f"min.insync.replicas is 3 and the replication factor {factor}" in result.error_message
    assert "t" not in three_brokers.image.topics_by_name
    three_brokers.create("t", factor=factor)
    result = three_brokers.alter(2, "t", ("min.insync.replicas", 0, "3"))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert three_brokers.alter(2, "t", ("min.insync.replicas", 0, "1")).error_code == 0


def test_new_partitions_go_to_brokers_that_live_and_more_than_those_are_refused():
    fleet = Fleet(1, 2, 3)
    fleet.lose(2)
    result = fleet.create("t", factor=3)
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    fleet.create("t", partitions=6, factor=2)
    partitions = fleet.image.topics_by_name["t"].partitions.values()
    assert {frozenset(partition.replicas) for partition in partitions} == {frozenset({1, 3})}
    result = fleet.create("u", assignments={0: [2, 1]}, partitions=-1, factor=-1)
    assert result.error_code == ErrorCode.NONE
    assert (fleet.partition("u").leader, fleet.partition("u").isr) == (1, (1,))


def test_a_drained_node_gets_no_new_partitions_until_it_is_taken_back():
    fleet = Fleet(1, 2, 3)
    assert fleet.alter(4, "", ("drained.nodes", 2, "2")).error_code == ErrorCode.NONE
    assert fleet.image.drained_nodes == {2}
    assert fleet.create("t", factor=3).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    fleet.create("t", partitions=6, factor=2)
    partitions = fleet.image.topics_by_name["t"].partitions.values()
    assert {frozenset(partition.replicas) for partition in partitions} == {frozenset({1, 3})}
    fleet.create("__consumer_offsets", factor=2)
    fleet.lose(3)
    fleet.come_back(3)
    assert 2 not in fleet.partition("__consumer_offsets").replicas, "nor when such topics grow"
    assert fleet.alter(4, "", ("drained.nodes", 3, "2")).error_code == ErrorCode.NONE
    assert fleet.create("u", factor=3).error_code == ErrorCode.NONE
    wrong = fleet.alter(4, "", ("drained.nodes", 2, "two"))
    assert wrong.error_code == ErrorCode.INVALID_CONFIG


def test_an_assignment_puts_no_two_replicas_on_one_host():
    fleet = Fleet()
    for node_id, host in ((1, "a"), (11, "a"), (2, "b")):
        fleet.join(node_id, rack=host, listeners=[Listener("PLAINTEXT", host, node_id, 0)])
    result = fleet.create("t", assignments={0: [2, 1], 1: [1, 11]}, partitions=-1, factor=-1)
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "brokers 1 and 11 are on one host" in result.error_message
    result = fleet.create("t", assignments={0: [2, 1], 1: [2, 11]}, partitions=-1, factor=-1)
    assert result.error_code == ErrorCode.NONE
    assert fleet.create("u", factor=3).error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_brokers_of_one_rack_that_are_reached_by_other_names_are_on_other_hosts():
    fleet = Fleet()
    for node_id, host in ((1, "a"), (2, "b"), (3, "c")):
        inside = Listener("INSIDE", host, 9092, 0)
        outside = Listener("PLAINTEXT", "gateway", node_id, 0)
        fleet.join(node_id, rack="zone", listeners=[inside, outside])
    assert fleet.create("t", factor=3).error_code == ErrorCode.NONE
