"""Random histories of a cluster: what must hold after any of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ottla.cluster.framing import decode_record
from ottla.cluster.image import MetadataImage
from ottla.errors import ErrorCode

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "bad name", "__consumer_offsets"])
SETTINGS = st.sampled_from(["retention.ms", "segment.ms", "cleanup.policy", "nonsense"])
VALUES = st.sampled_from(["1", "7", "compact", "delete", "compact,delete", "x", None])


def machine_of(new_cluster):
    class History(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.cluster = new_cluster()
            self.ids = set()
            self.producer_ids = set()
            self.epochs = {}

        @rule(
            name=NAMES,
            partitions=st.sampled_from([-1, 0, 1, 2, 5]),
            factor=st.sampled_from([-1, 1, 2, 4]),
            setting=SETTINGS,
            value=VALUES,
            validate_only=st.booleans(),
        )
        def create(self, name, partitions, factor, setting, value, validate_only):
            existed = name in self.cluster.image.topics_by_name
            before = len(self.cluster.log)
            configs = {setting: value} if value else {}
            result = self.cluster.create(
                name,
                partitions=partitions,
                factor=factor,
                configs=configs,
                validate_only=validate_only,
            )
            succeeded = result.error_code == ErrorCode.NONE
            assert (name in self.cluster.image.topics_by_name) == (
                existed or (succeeded and not validate_only)
            )
            assert (len(self.cluster.log) > before) == (succeeded and not validate_only)
            if succeeded and not validate_only:
                assert result.topic_id not in self.ids
                self.ids.add(result.topic_id)

        @rule(name=NAMES, by_id=st.booleans())
        def delete(self, name, by_id):
            topic = self.cluster.image.topics_by_name.get(name)
            target = topic.id if topic is not None and by_id else name
            [result] = self.cluster.delete(target)
            assert (result.error_code == ErrorCode.NONE) == (topic is not None)
            assert name not in self.cluster.image.topics_by_name

        @rule(name=NAMES, count=st.integers(0, 6))
        def grow(self, name, count):
            topic = self.cluster.image.topics_by_name.get(name)
            before = len(topic.partitions) if topic else 0
            result = self.cluster.grow(name, count)
            if result.error_code == ErrorCode.NONE:
                assert len(topic.partitions) == count > before
            elif topic:
                assert len(topic.partitions) == before

        @rule(name=NAMES, setting=SETTINGS, operation=st.integers(0, 3), value=VALUES)
        def alter(self, name, setting, operation, value):
            before = dict(self.cluster.image.topic_configs(name))
            result = self.cluster.alter(TOPIC, name, (setting, operation, value))
            if result.error_code != ErrorCode.NONE:
                assert self.cluster.image.topic_configs(name) == before

        @rule(name=NAMES, setting=SETTINGS, value=VALUES)
        def replace(self, name, setting, value):
            result = self.cluster.replace_configs(TOPIC, name, {setting: value})
            if result.error_code == ErrorCode.NONE:
                assert self.cluster.image.topic_configs(name) == {setting: value}

        @rule(value=st.sampled_from(["1000", "2000", "many"]), to_all=st.booleans())
        def alter_broker(self, value, to_all):
            change = ("log.segment.bytes", SET, value)
            self.cluster.alter(BROKER, "" if to_all else "1", change)

        @rule()
        def take_producer_id(self):
            producer_id = self.cluster.new_producer_id()
            assert producer_id not in self.producer_ids
            self.producer_ids.add(producer_id)

        @rule(node_id=st.sampled_from([1, 2]))
        def start_broker(self, node_id):
            self.cluster.start_broker(node_id)

        @rule()
        def restart(self):
            before = self.cluster.image
            self.cluster.restart()
            assert self.cluster.image == before

        @invariant()
        def the_image_is_the_fold_of_the_log(self):
            image = MetadataImage()
            for value in self.cluster.log:
                image.apply(decode_record(value))
            assert image == self.cluster.image == self.cluster.cache.image

        @invariant()
        def the_image_is_whole(self):
            image = self.cluster.image
            topics = list(image.topics_by_name.values())
            assert {id(topic) for topic in topics} == {id(t) for t in image.topics_by_id.values()}
            assert image.partition_count == sum(len(topic.partitions) for topic in topics)
            for name, topic in image.topics_by_name.items():
                assert topic.name == name
                assert sorted(topic.partitions) == list(range(len(topic.partitions)))
                assert len({len(p.replicas) for p in topic.partitions.values()}) == 1
            owners = {name for type, name in image.configs if type == TOPIC}
            assert owners <= set(image.topics_by_name)
            keys = [name.replace(".", "_") for name in image.topics_by_name]
            assert len(keys) == len(set(keys))

        @invariant()
        def leader_epochs_only_grow(self):
            for topic in self.cluster.image.topics_by_name.values():
                for index, partition in topic.partitions.items():
                    before = self.epochs.get((topic.id, index), 0)
                    assert partition.leader_epoch >= before
                    self.epochs[topic.id, index] = partition.leader_epoch

        @invariant()
        def every_topics_settings_can_be_resolved(self):
            for name, topic in self.cluster.image.topics_by_name.items():
                assert self.cluster.cache.topic_config(name).segment_bytes > 0
                assert self.cluster.cache.topic_by_id(topic.id).name == name

    return History


@pytest.mark.seconds(60)
def test_any_history_leaves_the_metadata_whole(cluster_with):
    run_state_machine_as_test(
        machine_of(lambda: cluster_with(max_partitions=12)),
        settings=settings(
            max_examples=120,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_many_topics_replay_to_the_same_image(cluster):
    source = random.Random(1)
    for number in range(300):
        cluster.create(f"t{number}", partitions=source.randint(1, 4))
        if number % 3 == 0:
            cluster.delete(f"t{source.randint(0, number)}")
    before = cluster.image
    cluster.restart()
    assert cluster.image == before == cluster.cache.image
