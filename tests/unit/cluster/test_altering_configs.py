from __future__ import annotations

import pytest

from ottla.cluster.configs import BrokerLayers, describe_topic
from ottla.config import BrokerConfig
from ottla.errors import ErrorCode
from ottla.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def topic(cluster):
    cluster.create("t", configs={"retention.ms": "5"})
    return cluster


class TestIncrementally:
    def test_set_and_delete_change_only_what_they_name(self, topic):
        topic.alter(TOPIC, "t", ("segment.ms", SET, "9"))
        assert topic.image.topic_configs("t") == {"retention.ms": "5", "segment.ms": "9"}
        topic.alter(TOPIC, "t", ("retention.ms", DELETE, None))
        assert topic.image.topic_configs("t") == {"segment.ms": "9"}

    def test_append_starts_from_the_value_in_force(self, topic):
        topic.alter(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
        assert topic.image.topic_configs("t")["cleanup.policy"] == "delete,compact"
        topic.alter(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
        assert topic.image.topic_configs("t")["cleanup.policy"] == "delete,compact"

    def test_subtract_takes_a_part_away(self, topic):
        topic.alter(TOPIC, "t", ("cleanup.policy", SET, "delete,compact"))
        topic.alter(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
        assert topic.image.topic_configs("t")["cleanup.policy"] == "compact"

    @pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
    def test_only_lists_can_be_appended_to(self, topic, operation):
        result = topic.alter(TOPIC, "t", ("retention.ms", operation, "7"))
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert "retention.ms" in result.error_message

    def test_nothing_is_written_when_nothing_changes(self, topic):
        before = list(topic.log)
        assert topic.alter(TOPIC, "t", ("retention.ms", SET, "5")).error_code == ErrorCode.NONE
        assert topic.log == before

    def test_validate_only_changes_nothing(self, topic):
        topic.alter(TOPIC, "t", ("retention.ms", SET, "6"), validate_only=True)
        assert topic.image.topic_configs("t") == {"retention.ms": "5"}

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ([("retentoin.ms", SET, "1")], ErrorCode.INVALID_CONFIG),
            ([("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
            ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
            ([("cleanup.policy", SUBTRACT, "delete")], ErrorCode.INVALID_CONFIG),
        ],
        ids=["unknown", "wrong", "null", "operation", "twice", "nothing left"],
    )
    def test_a_resource_is_changed_as_a_whole_or_not_at_all(self, topic, changes, code):
        result = topic.alter(TOPIC, "t", ("segment.ms", SET, "9"), *changes)
        assert result.error_code == code
        assert topic.image.topic_configs("t") == {"retention.ms": "5"}

    def test_one_bad_resource_does_not_fail_its_siblings(self, topic):
        request = IncrementalAlterConfigsRequest(
            resources=[
                topic.resource(TOPIC, "nobody", ("segment.ms", SET, "9")),
                topic.resource(TOPIC, "t", ("segment.ms", SET, "9")),
            ]
        )
        bad, good = topic.ask("incremental_alter_configs", request).responses
        assert bad.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (good.error_code, good.resource_name) == (ErrorCode.NONE, "t")

    def test_a_resource_twice_is_refused(self, topic):
        twice = topic.resource(TOPIC, "t", ("segment.ms", SET, "9"))
        request = IncrementalAlterConfigsRequest(resources=[twice, twice])
        results = topic.ask("incremental_alter_configs", request).responses
        assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2
        assert topic.image.topic_configs("t") == {"retention.ms": "5"}

    @pytest.mark.parametrize(
        ("type", "name", "code"),
        [
            (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "one", ErrorCode.INVALID_REQUEST),
            (BROKER, "-1", ErrorCode.INVALID_REQUEST),
            (BROKER, "7", ErrorCode.BROKER_ID_NOT_REGISTERED),
            (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
            (GROUP, "g", ErrorCode.INVALID_REQUEST),
            (0, "x", ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_resources_that_have_no_settings_are_refused(self, topic, type, name, code):
        assert topic.alter(type, name, ("log.level", SET, "debug")).error_code == code


class TestReplacing:
    def test_all_settings_that_are_not_named_go(self, topic):
        topic.alter(TOPIC, "t", ("segment.ms", SET, "9"))
        topic.replace_configs(TOPIC, "t", {"segment.ms": "8", "max.message.bytes": "100"})
        assert topic.image.topic_configs("t") == {"segment.ms": "8", "max.message.bytes": "100"}

    def test_validate_only_changes_nothing(self, topic):
        assert topic.replace_configs(TOPIC, "t", {}, validate_only=True).error_code == 0
        assert topic.image.topic_configs("t") == {"retention.ms": "5"}

    def test_null_is_refused(self, topic):
        result = topic.replace_configs(TOPIC, "t", {"retention.ms": None})
        assert result.error_code == ErrorCode.INVALID_REQUEST

    def test_unknown_settings_are_refused_with_the_nearest_known_one(self, topic):
        result = topic.replace_configs(TOPIC, "t", {"segment.byte": "1"})
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert "segment.bytes" in result.error_message


class TestBrokers:
    @pytest.mark.parametrize("name", ["", "1"])
    def test_a_dynamic_setting_is_in_force_at_once(self, cluster, name):
        assert cluster.alter(BROKER, name, ("log.level", SET, "debug")).error_code == 0
        assert cluster.cache.broker_config.log_level == "debug"

    def test_one_broker_goes_before_all_brokers(self, cluster):
        cluster.alter(BROKER, "", ("log.level", SET, "debug"))
        cluster.alter(BROKER, "1", ("log.level", SET, "error"))
        assert cluster.cache.broker_config.log_level == "error"
        cluster.alter(BROKER, "1", ("log.level", DELETE, None))
        assert cluster.cache.broker_config.log_level == "debug"

    def test_the_default_of_a_topic_setting_reaches_topics_without_their_own(self, cluster):
        cluster.create("plain")
        cluster.create("own", configs={"max.message.bytes": "7"})
        assert cluster.cache.topic_config("plain").max_message_bytes == 10_485_880
        assert cluster.cache.topic_config("own").max_message_bytes == 7
        cluster.alter(BROKER, "", ("message.max.bytes", SET, "1000"))
        assert cluster.cache.topic_config("plain").max_message_bytes == 1000
        assert cluster.cache.topic_config("own").max_message_bytes == 7

    def test_a_new_topic_is_told_the_defaults_of_the_moment(self, cluster):
        def told(name):
            [value] = [
                entry.value
                for entry in cluster.create(name).configs
                if entry.name == "max.message.bytes"
            ]
            return value

        assert told("before") == "10485880"
        cluster.alter(BROKER, "", ("message.max.bytes", SET, "1000"))
        assert told("after") == "1000"

    def test_a_static_setting_cannot_be_changed(self, cluster):
        result = cluster.alter(BROKER, "1", ("listeners", SET, "PLAINTEXT://127.0.0.1:1"))
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert "listeners" in result.error_message

    def test_a_wrong_value_is_refused(self, cluster):
        result = cluster.alter(BROKER, "1", ("log.level", SET, "loud"))
        assert result.error_code == ErrorCode.INVALID_CONFIG

    def test_an_unknown_setting_is_refused(self, cluster):
        result = cluster.alter(BROKER, "1", ("log.levle", SET, "info"))
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert "log.level" in result.error_message

    def test_a_setting_that_this_version_does_not_know_does_not_stop_it(self, cluster):
        """A log written by a newer version is replayed by an older one."""
        cluster.create("t")
        cluster.image.configs[BROKER, "1"] = {"from.the.future": "1", "log.level": "debug"}
        cluster.cache.image.configs[BROKER, "1"] = cluster.image.configs[BROKER, "1"]
        cluster.cache.image.configs[TOPIC, "t"] = {"warp.ms": "1", "segment.ms": "9"}
        assert cluster.cache.broker_config.log_level == "debug"
        assert cluster.cache.topic_config("t").segment_ms == 9


class TestTheBrokersOwnTopics:
    """They are synced whatever the settings say, so none may say otherwise."""

    @pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
    def test_write_caching_is_refused(self, cluster, name):
        cluster.create(name)
        result = cluster.alter(TOPIC, name, ("write.caching", SET, "true"))
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert "always synced" in result.error_message
        assert cluster.image.topic_configs(name) == {}
        assert cluster.alter(TOPIC, name, ("write.caching", SET, "false")).error_code == 0
        assert cluster.alter(TOPIC, name, ("segment.ms", SET, "9")).error_code == 0

    def test_write_caching_is_refused_at_their_creation(self, cluster):
        result = cluster.create("__consumer_offsets", configs={"write.caching": "true"})
        assert result.error_code == ErrorCode.INVALID_CONFIG
        assert "__consumer_offsets" not in cluster.image.topics_by_name

    def test_other_topics_may_have_it(self, topic):
        assert topic.alter(TOPIC, "t", ("write.caching", SET, "true")).error_code == 0

    def test_a_description_does_not_claim_what_is_not_so(self, topic):
        image = topic.image
        layers = BrokerLayers.of(BrokerConfig.parse({"log.write.caching": "true"}), image)
        for name, value in (("__consumer_offsets", "false"), ("t", "true")):
            described = {d.setting.name: d for d in describe_topic(layers, {}, name)}
            assert described["write.caching"].value == value
            assert described["write.caching"].layers[0].value == value
