from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest

NO_ID = bytes(16)


class TestDeleting:
    def test_a_topic_goes_with_its_settings(self, cluster):
        topic_id = cluster.create("t", configs={"retention.ms": "1"}).topic_id
        [result] = cluster.delete("t")
        assert (result.error_code, result.name, result.topic_id) == (0, "t", topic_id)
        assert not cluster.image.topics_by_name
        assert not cluster.image.topics_by_id
        assert not cluster.image.configs
        assert cluster.image.partition_count == 0

    def test_old_versions_name_topics_in_a_list_of_strings(self, cluster):
        cluster.create("a", "b")
        request = DeleteTopicsRequest(topic_names=["a", "b"])
        results = cluster.ask("delete_topics", request).responses
        assert [(result.name, result.error_code) for result in results] == [("a", 0), ("b", 0)]

    def test_a_topic_can_be_deleted_by_id(self, cluster):
        topic_id = cluster.create("t").topic_id
        [result] = cluster.delete(topic_id)
        assert (result.error_code, result.name, result.topic_id) == (0, "t", topic_id)
        assert not cluster.image.topics_by_name

    def test_a_recreated_topic_is_another_topic(self, cluster):
        first = cluster.create("t").topic_id
        cluster.delete("t")
        second = cluster.create("t").topic_id
        assert first != second
        [result] = cluster.delete(first)
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert result.name is None
        assert "t" in cluster.image.topics_by_name

    def test_unknown_names_and_ids_have_their_own_errors(self, cluster):
        by_name, by_id = cluster.delete("nobody", b"\x07" * 16)
        assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_name_and_id_together_are_refused(self, cluster):
        topic_id = cluster.create("t").topic_id
        [result] = cluster.delete(("t", topic_id))
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert "t" in cluster.image.topics_by_name

    def test_neither_name_nor_id_is_refused(self, cluster):
        [result] = cluster.delete(NO_ID)
        assert result.error_code == ErrorCode.INVALID_REQUEST

    def test_the_same_topic_by_name_and_by_id_is_refused(self, cluster):
        topic_id = cluster.create("t").topic_id
        codes = [result.error_code for result in cluster.delete("t", topic_id)]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2
        assert "t" in cluster.image.topics_by_name

    def test_a_name_twice_is_refused_and_its_sibling_goes(self, cluster):
        cluster.create("a", "b")
        results = {result.name: result.error_code for result in cluster.delete("a", "b", "a")}
        assert results == {"a": ErrorCode.INVALID_REQUEST, "b": ErrorCode.NONE}
        assert list(cluster.image.topics_by_name) == ["a"]


class TestAddingPartitions:
    def test_new_partitions_come_after_the_old_ones(self, cluster):
        cluster.create("t", partitions=2)
        assert cluster.grow("t", 5).error_code == ErrorCode.NONE
        partitions = cluster.image.topics_by_name["t"].partitions
        assert list(partitions) == [0, 1, 2, 3, 4]
        assert cluster.image.partition_count == 5

    def test_they_have_as_many_replicas_as_the_old_ones(self, three_brokers):
        three_brokers.create("t", factor=2)
        three_brokers.grow("t", 4)
        partitions = three_brokers.image.topics_by_name["t"].partitions.values()
        assert {len(partition.replicas) for partition in partitions} == {2}

    @pytest.mark.parametrize("count", [3, 2, 0, -1])
    def test_the_number_must_grow(self, cluster, count):
        cluster.create("t", partitions=3)
        result = cluster.grow("t", count)
        assert result.error_code == ErrorCode.INVALID_PARTITIONS
        assert "3" in result.error_message

    def test_an_unknown_topic_cannot_grow(self, cluster):
        assert cluster.grow("t", 2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_validate_only_adds_nothing(self, cluster):
        cluster.create("t")
        assert cluster.grow("t", 9, validate_only=True).error_code == ErrorCode.NONE
        assert len(cluster.image.topics_by_name["t"].partitions) == 1

    def test_a_topic_cannot_outgrow_its_limit(self, cluster_with):
        cluster = cluster_with(max_partitions_per_topic=4, max_partitions=6)
        cluster.create("a", partitions=3)
        cluster.create("b", partitions=2)
        assert cluster.grow("a", 5).error_code == ErrorCode.INVALID_PARTITIONS
        assert cluster.grow("b", 4).error_code == ErrorCode.POLICY_VIOLATION
        assert cluster.grow("a", 4).error_code == ErrorCode.NONE

    def test_replicas_are_placed_as_asked(self, three_brokers):
        three_brokers.create("t", factor=2)
        assert three_brokers.grow("t", 3, [[3, 2], [2, 1]]).error_code == ErrorCode.NONE
        partitions = three_brokers.image.topics_by_name["t"].partitions
        assert [partitions[1].replicas, partitions[2].replicas] == [(3, 2), (2, 1)]

    @pytest.mark.parametrize(
        "assignments",
        [[[1, 2]], [[1, 2], [1]], [[1, 2], [9, 1]], [[1, 2], [3, 3]]],
        ids=["too few", "other factor", "unknown broker", "broker twice"],
    )
    def test_an_assignment_must_make_sense(self, three_brokers, assignments):
        three_brokers.create("t", factor=2)
        result = three_brokers.grow("t", 3, assignments)
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_a_topic_twice_is_refused_and_its_sibling_grows(self, cluster):
        cluster.create("a", "b")
        asked = [
            CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("a", "b", "a")
        ]
        results = cluster.ask("create_partitions", CreatePartitionsRequest(topics=asked)).results
        codes = {result.name: result.error_code for result in results}
        assert codes == {"a": ErrorCode.INVALID_REQUEST, "b": ErrorCode.NONE}
