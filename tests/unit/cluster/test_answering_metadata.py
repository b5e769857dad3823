"""The read-only handlers, on metadata that a real controller made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ottla.broker.handlers import describe_cluster, describe_configs, describe_topic_partitions
from ottla.broker.handlers import metadata as metadata_handler
from ottla.broker.request import RequestContext
from ottla.errors import ErrorCode, InvalidRequest
from ottla.wire.codec import EncodedMessage, decode, encode
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

TOPIC, BROKER = 2, 4
SET = 0
NOT_ASKED = -(2**31)


def context(version, listener="PLAINTEXT"):
    return RequestContext(0, version, 1, "test", "127.0.0.1", listener, {})


def services(cluster, **changes):
    """Only what these handlers may touch; anything else is an AttributeError."""
    config = cluster.config.replace(**changes)
    return SimpleNamespace(
        metadata=cluster.cache, config=config, node_id=1, cluster_id="the-cluster"
    )


def ask(cluster, version, *names, listener="PLAINTEXT", all_topics=False, **fields):
    """The response as a client of that version reads it."""
    topics = None if all_topics else [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False, **fields)
    reply = metadata_handler.handle(services(cluster), context(version, listener), request)
    body = reply.body if isinstance(reply, EncodedMessage) else encode(reply, version)
    return decode(MetadataResponse, body, version)


class TestMetadata:
    @pytest.mark.parametrize("version", range(14))
    def test_every_version_tells_brokers_topics_and_leaders(self, cluster, version):
        cluster.create("t", partitions=2)
        response = ask(cluster, version, "t")
        [broker] = response.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
        [topic] = response.topics
        assert (topic.name, topic.error_code, topic.is_internal) == ("t", 0, False)
        assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [(0, 1), (1, 1)]
        assert topic.partitions[0].replica_nodes == topic.partitions[0].isr_nodes == [1]
        assert response.controller_id == (1 if version >= 1 else -1)
        assert response.cluster_id == ("the-cluster" if version >= 2 else None)
        assert topic.partitions[0].leader_epoch == (0 if version >= 7 else -1)
        assert topic.topic_id == (
            cluster.image.topics_by_name["t"].id if version >= 10 else bytes(16)
        )

    @pytest.mark.parametrize("version", range(1, 14))
    def test_null_means_all_topics_and_empty_means_none(self, cluster, version):
        cluster.create("a", "b")
        assert [t.name for t in ask(cluster, version, all_topics=True).topics] == ["a", "b"]
        assert ask(cluster, version).topics == []

    def test_in_version_0_an_empty_list_means_all_topics(self, cluster):
        cluster.create("a", "b")
        assert [topic.name for topic in ask(cluster, 0).topics] == ["a", "b"]

    def test_the_answer_for_all_topics_follows_every_change(self, cluster):
        assert ask(cluster, 12, all_topics=True).topics == []
        cluster.create("t", partitions=1)
        cluster.grow("t", 2)
        [topic] = ask(cluster, 12, all_topics=True).topics
        assert len(topic.partitions) == 2
        cluster.start_broker(1, port=1234)
        response = ask(cluster, 12, all_topics=True)
        assert response.brokers[0].port == 1234
        assert response.topics[0].partitions[0].leader_epoch == 1
        cluster.delete("t")
        assert ask(cluster, 12, all_topics=True).topics == []

    def test_who_asks_for_operations_gets_another_answer_for_all_topics(self, cluster):
        cluster.create("t")
        asked = {"include_topic_authorized_operations": True}
        both = asked | {"include_cluster_authorized_operations": True}
        for fields in ({}, asked, both, {}):
            response = ask(cluster, 8, all_topics=True, **fields)
            told = response.topics[0].topic_authorized_operations != NOT_ASKED
            assert told == ("include_topic_authorized_operations" in fields)
            told = response.cluster_authorized_operations != NOT_ASKED
            assert told == ("include_cluster_authorized_operations" in fields)

    def test_an_unknown_topic_does_not_hide_the_known_ones(self, cluster):
        cluster.create("t")
        codes = {t.name: t.error_code for t in ask(cluster, 12, "nobody", "t", "bad name").topics}
        assert codes == {
            "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "t": ErrorCode.NONE,
            "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }

    def test_a_topic_named_twice_is_answered_once(self, cluster):
        cluster.create("t")
        assert len(ask(cluster, 12, "t", "t").topics) == 1

    def test_topics_are_found_by_id(self, cluster):
        topic_id = cluster.create("t").topic_id
        wanted = [
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(topic_id=b"\x07" * 16, name=None),
        ]
        request = MetadataRequest(topics=wanted)
        known, unknown = metadata_handler.handle(services(cluster), context(12), request).topics
        assert (known.name, known.error_code) == ("t", ErrorCode.NONE)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
        assert unknown.topic_id == b"\x07" * 16

    @pytest.mark.parametrize("version", [10, 11])
    @pytest.mark.parametrize(("name", "topic_id"), [(None, bytes(16)), ("t", b"\x01" * 16)])
    def test_before_version_12_ids_are_refused(self, cluster, version, name, topic_id):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=topic_id)])
        with pytest.raises(InvalidRequest) as refused:
            metadata_handler.handle(services(cluster), context(version), request)
        reply = metadata_handler.error_response(request, refused.value)
        again = decode(MetadataResponse, encode(reply, version), version)
        assert again.topics[0].error_code == ErrorCode.INVALID_REQUEST

    def test_the_whole_answer_has_an_error_from_version_13_on(self):
        reply = metadata_handler.error_response(MetadataRequest(topics=None), InvalidRequest("no"))
        again = decode(MetadataResponse, encode(reply, 13), 13)
        assert again.error_code == ErrorCode.INVALID_REQUEST

    def test_operations_are_told_only_when_asked_for(self, cluster):
        cluster.create("t")
        quiet = ask(cluster, 8, "t")
        assert quiet.topics[0].topic_authorized_operations == NOT_ASKED
        assert quiet.cluster_authorized_operations == NOT_ASKED
        asked = ask(
            cluster,
            8,
            "t",
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        # Kafka without an authorizer: all operations of a topic, and of a cluster.
        assert asked.topics[0].topic_authorized_operations == 0b1101_1111_1000
        assert asked.cluster_authorized_operations == 0b1_1111_1010_0000

    def test_the_offsets_topic_is_internal(self, cluster):
        cluster.create("__consumer_offsets")
        assert ask(cluster, 12, "__consumer_offsets").topics[0].is_internal

    @pytest.mark.parametrize(
        ("version", "code"),
        [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)],
    )
    def test_a_leader_without_the_listener_is_no_leader(self, cluster, version, code):
        cluster.create("t")
        response = ask(cluster, version, "t", listener="INSIDE")
        assert response.brokers == []
        [partition] = response.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (code, -1)

    @pytest.mark.parametrize(("allowed", "enabled"), [(False, True), (True, False)])
    def test_nothing_is_created_unless_both_sides_allow_it(self, cluster, allowed, enabled):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=allowed
        )
        settled = services(cluster, auto_create_topics_enable=enabled)
        [topic] = metadata_handler.handle(settled, context(12), request).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_only_missing_topics_make_an_answer_wait(self, cluster):
        cluster.create("t")
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        reply = metadata_handler.handle(services(cluster), context(12), request)
        assert isinstance(reply, MetadataResponse)

    def test_bad_names_are_answered_without_asking_the_controller(self, cluster):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in ("bad name", "")]
        )
        reply = metadata_handler.handle(services(cluster), context(12), request)
        codes = [topic.error_code for topic in asyncio.run(_wait(reply)).topics]
        assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 2


async def _wait(reply):
    return await reply


class TestDescribeTopicPartitions:
    def pages(self, cluster, limit, *names, **changes):
        """All pages, as (topic, partition) pairs."""
        cursor, pages = None, []
        for _ in range(100):
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in names],
                response_partition_limit=limit,
                cursor=cursor,
            )
            response = describe_topic_partitions.handle(
                services(cluster, **changes), context(0), request
            )
            pages.append(
                [(t.name, p.partition_index) for t in response.topics for p in t.partitions]
            )
            if response.next_cursor is None:
                return pages
            cursor = Cursor(
                topic_name=response.next_cursor.topic_name,
                partition_index=response.next_cursor.partition_index,
            )
        return pytest.fail("the pages do not end")

    def test_pages_cover_every_partition_once_in_order(self, cluster):
        cluster.create("b", partitions=3)
        cluster.create("a", partitions=2)
        assert self.pages(cluster, 2) == [
            [("a", 0), ("a", 1)],
            [("b", 0), ("b", 1)],
            [("b", 2)],
        ]
        assert self.pages(cluster, 4, "b", "a") == [
            [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
            [("b", 2)],
        ]

    def test_the_brokers_own_limit_counts_too(self, cluster):
        cluster.create("t", partitions=5)
        pages = self.pages(cluster, 2_000, max_request_partition_size_limit=2)
        assert [len(page) for page in pages] == [2, 2, 1]

    def test_a_limit_of_zero_still_makes_progress(self, cluster):
        cluster.create("t", partitions=3)
        assert [len(page) for page in self.pages(cluster, 0)] == [1, 1, 1]

    def test_unknown_and_bad_names_are_told(self, cluster):
        cluster.create("t")
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in ("t", "nobody", "a b")]
        )
        response = describe_topic_partitions.handle(services(cluster), context(0), request)
        assert {topic.name: topic.error_code for topic in response.topics} == {
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "t": ErrorCode.NONE,
        }

    @pytest.mark.parametrize("cursor", [("other", 0), ("t", -1)])
    def test_a_cursor_must_fit_the_request(self, cluster, cursor):
        name, index = cursor
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name="t")],
            cursor=Cursor(topic_name=name, partition_index=index),
        )
        with pytest.raises(InvalidRequest):
            describe_topic_partitions.handle(services(cluster), context(0), request)


class TestDescribeCluster:
    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_brokers_and_controller_are_told(self, cluster, version):
        request = DescribeClusterRequest()
        response = describe_cluster.handle(services(cluster), context(version), request)
        assert (response.cluster_id, response.controller_id) == ("the-cluster", 1)
        assert [(broker.broker_id, broker.port) for broker in response.brokers] == [(1, 9092)]
        assert response.cluster_authorized_operations == NOT_ASKED

    @pytest.mark.parametrize(
        ("endpoint_type", "code"),
        [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
    )
    def test_a_broker_describes_only_brokers(self, cluster_with, endpoint_type, code):
        cluster = cluster_with(process_roles=("broker",))
        request = DescribeClusterRequest(endpoint_type=endpoint_type)
        response = describe_cluster.handle(services(cluster), context(1), request)
        assert response.error_code == code
        assert response.brokers == []


class TestDescribeConfigs:
    def describe(self, cluster, type, name, keys=None, **fields):
        resource = DescribeConfigsResource(
            resource_type=type, resource_name=name, configuration_keys=keys
        )
        request = DescribeConfigsRequest(resources=[resource], **fields)
        [result] = describe_configs.handle(services(cluster), context(4), request).results
        assert (result.resource_type, result.resource_name) == (type, name)
        return result

    def entries(self, *arguments, **fields):
        return {entry.name: entry for entry in self.describe(*arguments, **fields).configs}

    def test_a_topics_setting_names_its_source(self, cluster_with):
        cluster = cluster_with(log_segment_bytes=5_000)
        cluster.create("t", configs={"retention.ms": "7"})
        cluster.alter(BROKER, "", ("message.max.bytes", SET, "3000"))
        entries = self.entries(cluster, TOPIC, "t")
        found = {
            name: (entries[name].value, entries[name].config_source)
            for name in ("retention.ms", "max.message.bytes", "segment.bytes", "cleanup.policy")
        }
        assert found == {
            "retention.ms": ("7", 1),
            "max.message.bytes": ("3000", 3),
            "segment.bytes": ("5000", 4),
            "cleanup.policy": ("delete", 5),
        }
        assert not any(entry.read_only or entry.is_sensitive for entry in entries.values())

    def test_synonyms_are_listed_from_the_one_in_force_downwards(self, cluster):
        cluster.create("t", configs={"max.message.bytes": "1"})
        cluster.alter(BROKER, "", ("message.max.bytes", SET, "2"))
        cluster.alter(BROKER, "1", ("message.max.bytes", SET, "3"))
        entry = self.entries(cluster, TOPIC, "t", include_synonyms=True)["max.message.bytes"]
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
            ("max.message.bytes", "1", 1),
            ("message.max.bytes", "3", 2),
            ("message.max.bytes", "2", 3),
            ("message.max.bytes", "10485880", 5),
        ]

    def test_a_default_given_in_hours_is_told_in_milliseconds(self, cluster):
        cluster.create("t")
        entry = self.entries(cluster, TOPIC, "t", include_synonyms=True)["retention.ms"]
        assert (entry.value, entry.config_source) == ("604800000", 5)
        assert [(s.name, s.value) for s in entry.synonyms] == [("log.retention.hours", "168")]

    def test_synonyms_and_documentation_come_only_when_asked_for(self, cluster):
        cluster.create("t")
        plain = self.entries(cluster, TOPIC, "t")["segment.ms"]
        assert (plain.synonyms, plain.documentation, plain.config_type) == ([], None, 5)
        told = self.entries(cluster, TOPIC, "t", include_documentation=True)["segment.ms"]
        assert told.documentation

    @pytest.mark.parametrize(("keys", "names"), [(["segment.ms", "no"], {"segment.ms"})])
    def test_only_the_asked_settings_are_told(self, cluster, keys, names):
        cluster.create("t")
        assert set(self.entries(cluster, TOPIC, "t", keys)) == names

    def test_no_keys_and_null_keys_mean_all(self, cluster):
        cluster.create("t")
        assert self.entries(cluster, TOPIC, "t", []) == self.entries(cluster, TOPIC, "t", None)

    def test_a_broker_tells_which_settings_can_be_changed(self, cluster):
        entries = self.entries(cluster, BROKER, "1")
        assert not entries["log.level"].read_only
        assert entries["listeners"].read_only
        assert entries["num.partitions"].config_type == 3

    def test_the_broker_without_a_name_tells_what_is_set_for_all(self, cluster):
        assert self.entries(cluster, BROKER, "") == {}
        cluster.alter(BROKER, "", ("log.level", SET, "debug"))
        [(name, entry)] = self.entries(cluster, BROKER, "").items()
        assert (name, entry.value, entry.config_source) == ("log.level", "debug", 3)

    @pytest.mark.parametrize(
        ("type", "name", "code"),
        [
            (TOPIC, "nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "2", ErrorCode.INVALID_REQUEST),
            (BROKER, "x", ErrorCode.INVALID_REQUEST),
            (32, "group", ErrorCode.INVALID_REQUEST),
            (0, "", ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_what_cannot_be_described_has_an_error_of_its_own(self, cluster, type, name, code):
        result = self.describe(cluster, type, name)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message
