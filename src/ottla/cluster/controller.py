"""The controller: decides every change of the cluster's metadata.

It is a state machine for the coordinators' runtime: its image is folded at append, so that each
decision sees the ones before it, while brokers and clients see only what is committed. Deciders
take Kafka's requests and answer with Kafka's responses; the rules are in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from ottla.cluster import (
    alterations,
    assignments,
    brokers,
    directories,
    features,
    in_sync,
    reassignments,
    registrations,
    requested_elections,
    topics,
)
from ottla.cluster.configs import MIN_INSYNC_REPLICAS, BrokerLayers, describe_topic
from ottla.cluster.elections import UNCLEAN, Rules, unclean_elections
from ottla.cluster.framing import decode_record, encode_record
from ottla.cluster.homecoming import Homecoming
from ottla.cluster.image import NO_BROKER_EPOCH, MetadataImage
from ottla.cluster.membership import Membership
from ottla.cluster.self_balancing import Measured, SelfBalancing
from ottla.cluster.sessions import Predecessor
from ottla.config import BrokerConfig
from ottla.errors import ErrorCode, OttlaError, TopicExists, code_of
from ottla.machine import Decision, Ticket
from ottla.ports import Random
from ottla.types import NO_TOPIC_ID, Now, ProducerId
from ottla.wire.messages import alter_configs as legacy
from ottla.wire.messages import incremental_alter_configs as incremental
from ottla.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.wire.messages.alter_partition import AlterPartitionRequest
from ottla.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from ottla.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.wire.messages.broker_registration import BrokerRegistrationRequest
from ottla.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from ottla.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.wire.messages.elect_leaders import ElectLeadersRequest
from ottla.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.wire.messages.metadata_records import ConfigRecord, ProducerIdsRecord
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.wire.schema import Message

PRODUCER_IDS_PER_BLOCK: Final = 1_000
SESSION_TIMEOUT_MS: Final = 9_000
# A change of these may give a partition another leader, or other eligible ones.
_OF_ELECTIONS: Final = frozenset({MIN_INSYNC_REPLICAS, UNCLEAN})


class Controller:
    """Implements `StateMachine[Message]`."""

    def __init__(
        self,
        config: BrokerConfig,
        random: Random,
        cluster_id: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        take_predecessor: Callable[[], Predecessor | None] = lambda: None,
    ) -> None:
        """Without a cluster id no other broker can register."""
        self._config = config
        self._take_predecessor = take_predecessor
        self._random = random
        self.image = MetadataImage()
        # Soft state: the rest of a block is forgotten with the process, never handed out again.
        self._producer_ids = range(0)
        # What is told of a new topic without settings of its own: the same for all of them.
        self._plain_configs: list[CreatableTopicConfigs] | None = None
        self._membership = Membership(config.node_id, cluster_id, session_timeout_ms)
        self._homecoming = Homecoming(config.node_id)
        self._balancing = SelfBalancing()
        # Those that this controller has decided on.
        self.unclean_elections = 0

    # What the runtime asks of a machine.

    def encode(self, record: Message) -> tuple[bytes | None, bytes | None]:
        return None, encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> Message | None:
        return None if value is None else decode_record(value)

    def apply(self, record: Message, wall_ms: int) -> None:
        self.image.apply(record)
        if isinstance(record, ConfigRecord):
            self._plain_configs = None

    def loaded(self, now: Now) -> None:
        self._membership.loaded(self.image, now, self._take_predecessor())
        self._homecoming.begin(self._rules(), now.steady_ms)

    def next_deadline_ms(self) -> int | None:
        deadlines = (
            self._membership.next_deadline_ms(self.image),
            self._homecoming.next_deadline_ms(self.image),
        )
        return min((each for each in deadlines if each is not None), default=None)

    def on_deadline(self, now: Now) -> Decision[Message]:
        """Fences who is silent, and moves some of the leaders that have to be moved."""
        rules = self._rules()
        decision = self._membership.on_deadline(rules, now)
        if not decision.records:
            # Else they would both decide of the same partitions.
            decision.records += self._homecoming.step(rules, now.steady_ms)
        return self._counted(decision)

    def abandon(self) -> list[Ticket]:
        self.image = MetadataImage()
        self._producer_ids = range(0)
        self._plain_configs = None
        self._homecoming.abandon()
        self._balancing = SelfBalancing()
        return self._membership.abandon()

    def _rules(self) -> Rules:
        return Rules(self.image, BrokerLayers.of(self._config, self.image).effective())

    def _counted(self, decision: Decision[Message]) -> Decision[Message]:
        self.unclean_elections += unclean_elections(decision.records)
        return decision

    # Topics.

    def create_topics(
        self, request: CreateTopicsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        layers = BrokerLayers.of(self._config, self.image)
        outcomes = topics.create(self.image, layers.effective(), self._random, request.topics)
        records: list[Message] = []
        results = []
        for name, outcome in outcomes.items():
            if isinstance(outcome, OttlaError):
                results.append(CreatableTopicResult(name=name, **_failure(outcome), configs=[]))
                continue
            results.append(
                CreatableTopicResult(
                    name=name,
                    topic_id=NO_TOPIC_ID if request.validate_only else outcome.id,
                    error_message=None,
                    num_partitions=outcome.partitions,
                    replication_factor=outcome.replication_factor,
                    configs=self._created_configs(layers, outcome),
                )
            )
            records += outcome.records
        response = CreateTopicsResponse(topics=results)
        return _decision(records, ticket, response, request.validate_only)

    def _created_configs(
        self, layers: BrokerLayers, topic: topics.NewTopic
    ) -> list[CreatableTopicConfigs]:
        if topic.overrides:
            return _described(layers, topic.overrides)
        if self._plain_configs is None:
            self._plain_configs = _described(layers, {})
        return self._plain_configs

    def ensure_topics(
        self, wanted: Sequence[CreatableTopic], now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """Answers with the names that do not exist now, and why; existing before is no failure."""
        config = BrokerLayers.of(self._config, self.image).effective()
        outcomes = topics.create(self.image, config, self._random, wanted)
        records: list[Message] = []
        failures: dict[str, OttlaError] = {}
        for name, outcome in outcomes.items():
            if not isinstance(outcome, OttlaError):
                records += outcome.records
            elif not isinstance(outcome, TopicExists):
                failures[name] = outcome
        return _decision(records, ticket, failures)

    def delete_topics(
        self, request: DeleteTopicsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        by_name = [DeleteTopicState(name=name) for name in request.topic_names]
        deletions = topics.delete(self.image, [*request.topics, *by_name])
        results = [
            DeletableTopicResult(
                name=deletion.name, topic_id=deletion.id, **_failure(deletion.error)
            )
            for deletion in deletions
        ]
        response = DeleteTopicsResponse(responses=results)
        return _decision(topics.removal_records(deletions), ticket, response)

    def create_partitions(
        self, request: CreatePartitionsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        config = BrokerLayers.of(self._config, self.image).effective()
        outcomes = topics.add_partitions(self.image, config, self._random, request.topics)
        records: list[Message] = []
        results = []
        for name, outcome in outcomes.items():
            error = outcome if isinstance(outcome, OttlaError) else None
            results.append(CreatePartitionsTopicResult(name=name, **_failure(error)))
            records += [] if isinstance(outcome, OttlaError) else outcome
        response = CreatePartitionsResponse(results=results)
        return _decision(records, ticket, response, request.validate_only)

    # Settings.

    def alter_configs(
        self, request: legacy.AlterConfigsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        changes = [
            alterations.ResourceChange(
                resource.resource_type,
                resource.resource_name,
                [
                    alterations.Change(setting.name, alterations.Operation.SET, setting.value)
                    for setting in resource.configs
                ],
                replaces=True,
            )
            for resource in request.resources
        ]
        records, outcomes = self._altered(changes)
        results = [
            legacy.AlterConfigsResourceResponse(
                **_failure(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in zip(request.resources, outcomes, strict=True)
        ]
        response = legacy.AlterConfigsResponse(responses=results)
        return _decision(records, ticket, response, request.validate_only)

    def incremental_alter_configs(
        self, request: incremental.IncrementalAlterConfigsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        changes = [
            alterations.ResourceChange(
                resource.resource_type,
                resource.resource_name,
                [
                    alterations.Change(setting.name, setting.config_operation, setting.value)
                    for setting in resource.configs
                ],
                replaces=False,
            )
            for resource in request.resources
        ]
        records, outcomes = self._altered(changes)
        results = [
            incremental.AlterConfigsResourceResponse(
                **_failure(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in zip(request.resources, outcomes, strict=True)
        ]
        response = incremental.IncrementalAlterConfigsResponse(responses=results)
        return _decision(records, ticket, response, request.validate_only)

    def _altered(
        self, changes: list[alterations.ResourceChange]
    ) -> tuple[list[Message], list[OttlaError | None]]:
        records: list[Message] = []
        errors: list[OttlaError | None] = []
        for outcome in alterations.alter(self.image, self._config, changes):
            if isinstance(outcome, OttlaError):
                errors.append(outcome)
            else:
                errors.append(None)
                records += outcome
                if any(record.name in _OF_ELECTIONS for record in outcome):
                    self._membership.look_again(self.image)
        return records, errors

    # Brokers, as they speak over the wire. What concerns a whole request is raised.

    def broker_registration(
        self, request: BrokerRegistrationRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """Answered, perhaps later, when nothing rests on a former life of the broker any more."""
        return self._counted(self._membership.register(self._rules(), request, now, ticket))

    def broker_heartbeat(
        self, request: BrokerHeartbeatRequest, end_offset: int, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """`end_offset` is where the metadata log ends now, appended but perhaps not committed."""
        rules = self._rules()
        decision = self._membership.heartbeat(rules, request, end_offset, now, ticket)
        return self._counted(decision)

    def fence_broker(self, node_id: int, epoch: int, now: Now, ticket: Ticket) -> Decision[Message]:
        return self._counted(self._membership.fence(self._rules(), node_id, epoch, ticket))

    def unregister_broker(
        self, request: UnregisterBrokerRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        return self._counted(self._membership.unregister(self._rules(), request, ticket))

    def register_controller(
        self, request: ControllerRegistrationRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        record = registrations.controller_registration(self.image, request)
        return _decision([record], ticket, ControllerRegistrationResponse(error_message=None))

    def alter_partition(
        self, request: AlterPartitionRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        records, response = in_sync.alter(self._rules(), request)
        return self._counted(_decision(records, ticket, response))

    def elect_leaders(
        self, request: ElectLeadersRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        records, response = requested_elections.elect(self._rules(), request)
        return self._counted(_decision(records, ticket, response))

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        records, response = reassignments.alter(self._rules(), request)
        return self._counted(_decision(records, ticket, response))

    def balance_step(
        self, measured: Mapping[tuple[str, int], Measured], now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """Answers with how many records it took."""
        records = self._balancing.step(self._rules(), measured, now)
        return self._counted(_decision(records, ticket, len(records)))

    def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        return _decision([], ticket, reassignments.listed(self.image, request))

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        records, response = assignments.assigned(self.image, request)
        if records:
            # A replica may turn out to lie where its broker has no directory any more.
            self._membership.look_again(self.image)
        return _decision(records, ticket, response)

    def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        registrations.check_epoch(self.image, request.broker_id, request.broker_epoch)
        block, record = self._next_block(request.broker_id, request.broker_epoch)
        response = AllocateProducerIdsResponse(
            producer_id_start=block.start, producer_id_len=len(block)
        )
        return _decision([record], ticket, response)

    def update_features(
        self, request: UpdateFeaturesRequest, voters: Collection[int], now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """All of the request or nothing."""
        records: list[Message] = []
        for wanted in request.feature_updates:
            records += features.changed(self.image, voters, wanted)
        self._membership.look_again(self.image)
        results = [
            UpdatableFeatureResult(wanted.feature, ErrorCode.NONE, None)
            for wanted in request.feature_updates
        ]
        response = UpdateFeaturesResponse(error_message=None, results=results)
        return _decision(records, ticket, response, request.validate_only)

    # The broker in this process.

    def register_broker(
        self, registration: brokers.Registration, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """Answers with the broker's epoch. Feature levels go first: they say what may follow."""
        record = brokers.register(self.image, registration)
        return _decision([*features.finalize(self.image), record], ticket, record.broker_epoch)

    def raise_leader_epochs(
        self, node_id: int, after: brokers.Cursor, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """Answers with the cursor to go on from, or None when all is done."""
        records, cursor = brokers.raise_leader_epochs(self.image, node_id, after)
        return _decision([*records], ticket, cursor)

    def assign_directories(
        self,
        node_id: int,
        assignments: Sequence[directories.Assignment],
        now: Now,
        ticket: Ticket,
    ) -> Decision[Message]:
        """A broker reports where its replicas lie; answers with how many of that was new."""
        records = directories.assign(self.image, node_id, assignments)
        return _decision([*records], ticket, len(records))

    def take_directory_offline(
        self, node_id: int, directory_id: bytes, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        """A broker reports that a directory has failed; answers with how many records that made."""
        records = directories.take_offline(self.image, node_id, directory_id)
        self._membership.look_again(self.image)
        return _decision(records, ticket, len(records))

    def new_producer_id(self, now: Now, ticket: Ticket) -> Decision[Message]:
        """Answers with an id that no producer had or will have."""
        records: list[Message] = []
        if not self._producer_ids:
            broker = self.image.brokers.get(self._config.node_id)
            epoch = NO_BROKER_EPOCH if broker is None else broker.epoch
            self._producer_ids, record = self._next_block(self._config.node_id, epoch)
            records = [record]
        producer_id = ProducerId(self._producer_ids[0])
        self._producer_ids = self._producer_ids[1:]
        return _decision(records, ticket, producer_id)

    def _next_block(self, node_id: int, broker_epoch: int) -> tuple[range, ProducerIdsRecord]:
        first = self.image.next_producer_id
        block = range(first, first + PRODUCER_IDS_PER_BLOCK)
        record = ProducerIdsRecord(
            broker_id=node_id, broker_epoch=broker_epoch, next_producer_id=block.stop
        )
        return block, record


def _decision(
    records: list[Message], ticket: Ticket, reply: object, validate_only: bool = False
) -> Decision[Message]:
    return Decision([] if validate_only else records, [(ticket, reply)])


def _failure(error: OttlaError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": code_of(error), "error_message": str(error)}


def _described(layers: BrokerLayers, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=described.setting.name,
            value=described.value,
            read_only=described.is_read_only,
            config_source=described.source,
            is_sensitive=False,
        )
        for described in describe_topic(layers, overrides)
    ]
