"""A controller on a log that is a list: every record goes through its bytes before it is folded."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.broker.control.metadata import MetadataCache
from ottla.cluster.brokers import FIRST, Registration
from ottla.cluster.controller import Controller
from ottla.cluster.image import MetadataImage
from ottla.config import BrokerConfig
from ottla.types import Now
from ottla.wire.messages import alter_configs, incremental_alter_configs
from ottla.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.metadata_records import BrokerEndpoint

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


class SeededRandom:
    def __init__(self, seed: int = 0) -> None:
        self._source = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)


class Cluster:
    """Asks the controller as the runtime would, and commits at once."""

    NOW = Now(wall_ms=1_700_000_000_000, steady_ms=5)

    def __init__(self, config: BrokerConfig | None = None, brokers: int = 1) -> None:
        self.config = config or BrokerConfig()
        self.random = SeededRandom()
        self.controller = Controller(self.config, self.random)
        self.cache = MetadataCache(self.config)
        self.log: list[bytes] = []
        self.last_records: list[Any] = []
        self.uncommitted: list[Any] = []
        self.commits_at_once = True
        for node_id in range(1, brokers + 1):
            self.start_broker(node_id)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def ask(self, decider: str, *arguments: Any) -> Any:
        ticket = object()
        decision = getattr(self.controller, decider)(*arguments, self.NOW, ticket)
        self.last_records = decision.records
        for record in decision.records:
            key, value = self.controller.encode(record)
            assert key is None
            self.log.append(value)
            self.controller.apply(self.controller.decode(None, value), self.NOW.wall_ms)
        self.uncommitted += decision.records
        if self.commits_at_once:
            self.commit()
        [(answered, reply)] = decision.replies
        assert answered is ticket
        return reply

    def commit(self) -> None:
        records, self.uncommitted = self.uncommitted, []
        self.cache.committed(records)

    @staticmethod
    def directory_of(node_id: int) -> bytes:
        return bytes([0xD0, node_id]) * 8

    def start_broker(self, node_id: int = 1, rack: str | None = None, port: int = 9092) -> int:
        registration = Registration(
            node_id=node_id,
            incarnation_id=self.random.bytes(16),
            endpoints=[BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=port)],
            rack=rack,
            directory_ids=[self.directory_of(node_id)],
        )
        epoch = self.ask("register_broker", registration)
        cursor = FIRST
        while cursor is not None:
            cursor = self.ask("raise_leader_epochs", node_id, cursor)
        return epoch

    def restart(self) -> None:
        """Everything but the log is gone."""
        self.controller = Controller(self.config, self.random)
        self.cache = MetadataCache(self.config)
        for value in self.log:
            record = self.controller.decode(None, value)
            self.controller.apply(record, self.NOW.wall_ms)
            self.cache.apply(record)
        self.controller.loaded(self.NOW)

    def create(
        self,
        *names: str,
        partitions: int = 1,
        factor: int = 1,
        assignments: dict[int, list[int]] | None = None,
        configs: dict[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Any:
        """The result of the first name."""
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=factor,
                assignments=[
                    CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                    for index, brokers in (assignments or {}).items()
                ],
                configs=[
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ],
            )
            for name in names
        ]
        return self.create_all(topics, validate_only)[0]

    def create_all(self, topics: list[CreatableTopic], validate_only: bool = False) -> Any:
        request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
        return self.ask("create_topics", request).topics

    def delete(self, *targets: str | bytes | tuple[str, bytes]) -> Any:
        states = []
        for target in targets:
            name, topic_id = target if isinstance(target, tuple) else (target, bytes(16))
            if isinstance(target, bytes):
                name, topic_id = None, target
            states.append(DeleteTopicState(name=name, topic_id=topic_id))
        return self.ask("delete_topics", DeleteTopicsRequest(topics=states)).responses

    def grow(
        self,
        name: str,
        count: int,
        assignments: list[list[int]] | None = None,
        validate_only: bool = False,
    ) -> Any:
        given = assignments and [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
        topic = CreatePartitionsTopic(name=name, count=count, assignments=given)
        request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
        return self.ask("create_partitions", request).results[0]

    def alter(
        self,
        type: int,
        name: str,
        *changes: tuple[str, int, str | None],
        validate_only: bool = False,
    ) -> Any:
        messages = incremental_alter_configs
        request = messages.IncrementalAlterConfigsRequest(
            resources=[self.resource(type, name, *changes)], validate_only=validate_only
        )
        return self.ask("incremental_alter_configs", request).responses[0]

    @staticmethod
    def resource(type: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
        messages = incremental_alter_configs
        return messages.AlterConfigsResource(
            resource_type=type,
            resource_name=name,
            configs=[
                messages.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )

    def replace_configs(
        self, type: int, name: str, configs: dict[str, str | None], validate_only: bool = False
    ) -> Any:
        request = alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=type,
                    resource_name=name,
                    configs=[
                        alter_configs.AlterableConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            validate_only=validate_only,
        )
        return self.ask("alter_configs", request).responses[0]

    def new_producer_id(self) -> int:
        return self.ask("new_producer_id")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def three_brokers() -> Cluster:
    return Cluster(brokers=3)


@pytest.fixture
def cluster_with():
    """Builds a cluster whose configuration has some settings changed."""
    return lambda brokers=1, **changes: Cluster(BrokerConfig().replace(**changes), brokers)


@pytest.fixture
def seeded_random():
    return SeededRandom
