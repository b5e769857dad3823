"""The records of a snapshot say what the whole history said."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ottla.cluster.brokers import next_epoch
from ottla.cluster.framing import decode_record, encode_record
from ottla.cluster.image import (
    BrokerImage,
    InconsistentMetadata,
    MetadataImage,
    PartitionImage,
)
from ottla.cluster.snapshot import COPIED_PER_STEP, ImageCopy, copy_of
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)

BOUNDED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "__consumer_offsets"])


def fold(records):
    """Each record goes through its bytes first."""
    image = MetadataImage()
    for record in records:
        image.apply(decode_record(encode_record(record)))
    return image


# ---------------------------------------------------------------- histories of the controller


def history_of(new_cluster):
    class History(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.cluster = new_cluster()
            self.nodes = 1

        @rule(name=NAMES, partitions=st.integers(1, 4), is_set=st.booleans())
        def create(self, name, partitions, is_set):
            configs = {"retention.ms": "7"} if is_set else {}
            self.cluster.create(name, partitions=partitions, configs=configs)

        @rule(name=NAMES)
        def delete(self, name):
            self.cluster.delete(name)

        @rule(name=NAMES, count=st.integers(1, 6))
        def grow(self, name, count):
            self.cluster.grow(name, count)

        @rule(name=NAMES, operation=st.sampled_from([SET, DELETE]), value=st.sampled_from("123"))
        def alter_topic(self, name, operation, value):
            self.cluster.alter(TOPIC, name, ("segment.ms", operation, value))

        @rule(name=st.sampled_from(["", "1"]), operation=st.sampled_from([SET, DELETE]))
        def alter_broker(self, name, operation):
            self.cluster.alter(BROKER, name, ("log.retention.ms", operation, "9"))

        @rule()
        def ask_for_a_producer_id(self):
            self.cluster.new_producer_id()

        @rule()
        def start_again(self):
            self.cluster.start_broker(1, rack="r")

        @rule()
        def start_another(self):
            self.nodes += 1
            self.cluster.start_broker(self.nodes)

        @rule()
        def forget_all_but_a_snapshot(self):
            """What comes later rests on the snapshot alone."""
            values = [encode_record(record) for record in copy_of(self.cluster.image).records()]
            self.cluster.log[:] = values
            before = self.cluster.image
            self.cluster.restart()
            assert self.cluster.image == before == self.cluster.cache.image

        @invariant()
        def the_snapshot_is_the_image(self):
            assert fold(copy_of(self.cluster.image).records()) == self.cluster.image

        @invariant()
        def the_snapshot_has_no_more_than_the_image(self):
            image = self.cluster.image
            settings = sum(len(owner) for owner in image.configs.values())
            topics = len(image.topics_by_id) + image.partition_count
            assert len(list(copy_of(image).records())) <= (
                len(image.features) + len(image.brokers) + topics + settings + 1
            )

    return History


def test_a_snapshot_of_any_history_is_that_history(cluster_with):
    run_state_machine_as_test(
        history_of(lambda: cluster_with(max_partitions=12)),
        settings=settings(BOUNDED, max_examples=60, stateful_step_count=20),
    )


# ------------------------------------------------------------ histories that nobody decided on

IDS = st.integers(0, 3).map(lambda number: bytes(15) + bytes([number + 1]))
NODES = st.lists(st.integers(0, 5), max_size=3)
EPOCHS = st.integers(0, 2**31 - 2)
UUIDS = st.binary(min_size=16, max_size=16)
TEXTS = st.text(max_size=5)
LEVELS = st.lists(st.tuples(TEXTS, st.integers(0, 9), st.integers(0, 9)), max_size=2)

RECORDS = st.one_of(
    st.builds(lambda topic_id: TopicRecord(name=f"topic-{topic_id[-1]}", topic_id=topic_id), IDS),
    st.builds(
        PartitionRecord,
        partition_id=st.integers(0, 3),
        topic_id=IDS,
        replicas=NODES,
        isr=NODES,
        leader=st.integers(-1, 5),
        leader_epoch=EPOCHS,
        partition_epoch=EPOCHS,
        directories=st.lists(UUIDS, max_size=3),
        leader_recovery_state=st.integers(0, 1),
        eligible_leader_replicas=st.none() | NODES,
        last_known_elr=st.none() | NODES,
    ),
    st.builds(
        PartitionChangeRecord,
        partition_id=st.integers(0, 3),
        topic_id=IDS,
        isr=st.none() | NODES,
        leader=st.integers(-2, 5),
        replicas=st.none() | NODES,
        directories=st.none() | st.lists(UUIDS, max_size=3),
        leader_recovery_state=st.integers(-1, 1),
        eligible_leader_replicas=st.none() | NODES,
        last_known_elr=st.none() | NODES,
    ),
    st.builds(RemoveTopicRecord, topic_id=IDS),
    st.builds(
        ConfigRecord,
        resource_type=st.sampled_from([TOPIC, BROKER]),
        resource_name=st.sampled_from(["", "1", "topic-1", "topic-2"]),
        name=st.sampled_from(["x", "y"]),
        value=st.none() | TEXTS,
    ),
    st.builds(
        RegisterBrokerRecord,
        broker_id=st.integers(0, 3),
        incarnation_id=UUIDS,
        broker_epoch=st.integers(0, 5),
        end_points=st.lists(
            st.builds(
                BrokerEndpoint,
                name=st.sampled_from(["P", "Q"]),
                host=TEXTS,
                port=st.integers(0, 65_535),
                security_protocol=st.integers(0, 3),
            ),
            max_size=2,
        ),
        rack=st.none() | TEXTS,
        fenced=st.booleans(),
        in_controlled_shutdown=st.booleans(),
        log_dirs=st.lists(UUIDS, max_size=2),
        features=LEVELS.map(lambda levels: [BrokerFeature(*each) for each in levels]),
    ),
    st.builds(
        RegisterControllerRecord,
        controller_id=st.integers(0, 2),
        incarnation_id=UUIDS,
        end_points=st.lists(
            st.builds(ControllerEndpoint, name=st.just("C"), host=TEXTS, port=st.just(9093)),
            max_size=1,
        ),
        features=LEVELS.map(lambda levels: [ControllerFeature(*each) for each in levels]),
    ),
    *(
        st.builds(kind, st.integers(0, 3), st.integers(0, 5))
        for kind in (UnregisterBrokerRecord, FenceBrokerRecord, UnfenceBrokerRecord)
    ),
    st.builds(
        BrokerRegistrationChangeRecord,
        broker_id=st.integers(0, 3),
        broker_epoch=st.integers(0, 5),
        fenced=st.sampled_from([-1, 0, 1]),
        in_controlled_shutdown=st.sampled_from([0, 1]),
        log_dirs=st.lists(UUIDS, max_size=2),
    ),
    st.builds(ProducerIdsRecord, next_producer_id=st.integers(1, 10_000)),
    st.builds(
        FeatureLevelRecord,
        name=st.sampled_from(["metadata.version", "group.version"]),
        feature_level=st.integers(0, 30),
    ),
)


def folded_as_far_as_it_fits(records):
    image = MetadataImage()
    for record in records:
        try:
            image.apply(record)
        except InconsistentMetadata:
            continue
    return image


@settings(BOUNDED, max_examples=300)
@given(st.lists(RECORDS, max_size=40))
def test_a_snapshot_of_any_image_folds_to_that_image(records):
    image = folded_as_far_as_it_fits(records)
    assert fold(copy_of(image).records()) == image


@settings(BOUNDED, max_examples=100)
@given(st.lists(RECORDS, max_size=30), st.lists(RECORDS, max_size=10))
def test_a_copy_stays_as_it_is_when_the_image_changes(records, later):
    image = folded_as_far_as_it_fits(records)
    copy = copy_of(image)
    for record in later:
        try:
            image.apply(record)
        except InconsistentMetadata:
            continue
    assert fold(copy.records()) == folded_as_far_as_it_fits(records)


def test_a_large_copy_takes_several_steps():
    image = MetadataImage()
    for number in range(2 * COPIED_PER_STEP + 1):
        image.apply(TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big")))
    for number in range(3 * COPIED_PER_STEP + 1):
        owner = f"t{number}"
        image.apply(ConfigRecord(resource_type=TOPIC, resource_name=owner, name="n", value="v"))
    copy = ImageCopy(image)
    steps = 0
    while copy.step():
        steps += 1
    assert steps == 4
    assert fold(copy.records()) == image


def test_nothing_that_an_image_can_hold_is_left_out():
    """A new field of the image fails here until it is in this image, and then in the snapshot."""
    id, directory = bytes(range(16)), bytes(range(1, 17))
    image = fold(
        [
            FeatureLevelRecord(name="metadata.version", feature_level=25),
            RegisterBrokerRecord(
                broker_id=1,
                incarnation_id=id,
                broker_epoch=3,
                end_points=[BrokerEndpoint("PLAINTEXT", "h", 9092, 1)],
                rack="r",
                fenced=True,
                in_controlled_shutdown=True,
                log_dirs=[directory],
                features=[BrokerFeature("metadata.version", 21, 23)],
            ),
            RegisterControllerRecord(
                controller_id=3,
                incarnation_id=id,
                end_points=[ControllerEndpoint("C", "h", 9093, 1)],
                features=[ControllerFeature("metadata.version", 21, 23)],
            ),
            TopicRecord(name="a.b", topic_id=id),
            PartitionRecord(
                partition_id=0,
                topic_id=id,
                replicas=[1, 2],
                isr=[1],
                leader=1,
                leader_epoch=4,
                partition_epoch=5,
                directories=[directory, id],
                leader_recovery_state=1,
                eligible_leader_replicas=[2],
                last_known_elr=[1],
            ),
            ConfigRecord(resource_type=TOPIC, resource_name="a.b", name="n", value="v"),
            ProducerIdsRecord(next_producer_id=1000),
        ]
    )
    empty = MetadataImage()
    for slot in MetadataImage.__slots__:
        assert getattr(image, slot) != getattr(empty, slot), f"say what {slot} is here"
    partition, broker = image.topics_by_name["a.b"].partitions[0], image.brokers[1]
    assert all(partition), dict(zip(PartitionImage._fields, partition, strict=True))
    assert all(broker), dict(zip(BrokerImage._fields, broker, strict=True))
    assert all(partition.recovery), partition.recovery
    assert all(image.controllers[3]), image.controllers[3]
    assert fold(copy_of(image).records()) == image


def test_the_highest_epoch_outlives_the_broker_that_had_it():
    image = fold(
        [
            RegisterBrokerRecord(broker_id=1, broker_epoch=3),
            RegisterBrokerRecord(broker_id=2, broker_epoch=7),
            UnregisterBrokerRecord(broker_id=2, broker_epoch=7),
        ]
    )
    again = fold(copy_of(image).records())
    assert again == image
    assert (list(again.brokers), next_epoch(again)) == ([1], 8)


def test_the_version_comes_before_what_depends_on_it():
    names = ["group.version", "metadata.version", "transaction.version"]
    image = fold(FeatureLevelRecord(name=name, feature_level=1) for name in names)
    assert [record.name for record in copy_of(image).records()] == [
        "metadata.version",
        "group.version",
        "transaction.version",
    ]


def test_an_empty_image_needs_no_records():
    assert list(copy_of(MetadataImage()).records()) == []
