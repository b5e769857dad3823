"""Brokers that live and die under one controller: time is a number, a heartbeat is a call."""

from __future__ import annotations

from typing import Any

from ottla.cluster.controller import Controller
from ottla.cluster.features import SUPPORTED
from ottla.cluster.sessions import Predecessor
from ottla.config import BrokerConfig
from ottla.types import Now
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from ottla.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from unit.cluster.conftest import Cluster

CLUSTER_ID = "this-cluster"
SESSION_MS = 9_000
PARKED = object()
# Nobody's: all brokers of a fleet speak over the wire.
CONTROLLER_ID = 99


class Fleet(Cluster):
    def __init__(self, *nodes: int, eligible: bool = False, **changes: Any) -> None:
        self.now_ms = 1_000
        self.replies: dict[object, Any] = {}
        super().__init__(BrokerConfig().replace(node_id=CONTROLLER_ID, **changes), brokers=0)
        self.lead()
        self.incarnations: dict[int, int] = {}
        for node_id in nodes:
            self.join(node_id)
        if eligible:
            self.raise_feature("metadata.version", 23)
            self.settle()

    @property
    def NOW(self) -> Now:  # type: ignore[override]  # noqa: N802
        return Now(wall_ms=1_700_000_000_000 + self.now_ms, steady_ms=self.now_ms)

    def lead(self, after: Predecessor | None = None) -> None:
        """A controller that has read the log and knows nothing else."""
        self.controller = Controller(
            self.config, self.random, CLUSTER_ID, SESSION_MS, lambda: after
        )
        for value in self.log:
            record = self.controller.decode(None, value)
            self.controller.apply(record, self.NOW.wall_ms)
        self.controller.loaded(self.NOW)

    def raise_feature(self, name: str, level: int, **fields: Any) -> int:
        wanted = FeatureUpdateKey(feature=name, max_version_level=level, **fields)
        request = UpdateFeaturesRequest(feature_updates=[wanted])
        voters = [voter.node_id for voter in self.config.voters()]
        code: int = self.ask("update_features", request, voters).error_code
        return code

    def ask(self, decider: str, *arguments: Any) -> Any:
        ticket = object()
        self._take(getattr(self.controller, decider)(*arguments, self.NOW, ticket))
        return self.replies.pop(ticket, PARKED)

    def _take(self, decision: Any) -> None:
        self.last_records = decision.records
        for record in decision.records:
            _, value = self.controller.encode(record)
            self.log.append(value)
            self.controller.apply(self.controller.decode(None, value), self.NOW.wall_ms)
        for ticket, reply in decision.replies:
            assert ticket not in self.replies, "answered twice"
            self.replies[ticket] = reply
        self.uncommitted += decision.records
        self.commit()

    def step(self) -> None:
        self._take(self.controller.on_deadline(self.NOW))

    def settle(self) -> int:
        """Everything that is due now happens; in how many steps."""
        steps = 0
        while (due := self.controller.next_deadline_ms()) is not None and due <= self.now_ms:
            self.step()
            steps += 1
            assert steps < 1_000, "it never comes to an end"
        return steps

    def pass_ms(self, ms: int) -> None:
        until = self.now_ms + ms
        while True:
            self.settle()
            due = self.controller.next_deadline_ms()
            if due is None or due > until:
                break
            self.now_ms = due
        self.now_ms = until

    # What brokers do.

    def registration(self, node_id: int, **fields: Any) -> BrokerRegistrationRequest:
        request = BrokerRegistrationRequest(
            broker_id=node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self.incarnation_of(node_id),
            listeners=[Listener("PLAINTEXT", f"host-{node_id}", 9092, 0)],
            features=[Feature(name, *levels) for name, levels in SUPPORTED.items()],
            rack=None,
            log_dirs=[self.directory_of(node_id)],
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    def incarnation_of(self, node_id: int) -> bytes:
        return bytes([1, node_id]) + self.incarnations.setdefault(node_id, 1).to_bytes(14, "big")

    def new_process(self, node_id: int) -> None:
        self.incarnations[node_id] = self.incarnations.get(node_id, 0) + 1

    def register(self, node_id: int, **fields: Any) -> int:
        """Registers the broker's process; the controller may have to move leaders first."""
        ticket = object()
        request = self.registration(node_id, **fields)
        self._take(self.controller.broker_registration(request, self.NOW, ticket))
        self.settle()
        return self.replies.pop(ticket).broker_epoch

    def beat(self, node_id: int, read_to: int | None = None, **fields: Any) -> Any:
        """A heartbeat of a broker that has read all metadata, unless `read_to` says how far."""
        if "broker_epoch" not in fields:
            broker = self.image.brokers.get(node_id)
            fields["broker_epoch"] = -1 if broker is None else broker.epoch
        request = BrokerHeartbeatRequest(
            broker_id=node_id,
            current_metadata_offset=len(self.log) - 1 if read_to is None else read_to,
            **fields,
        )
        return self.ask("broker_heartbeat", request, len(self.log))

    def join(self, node_id: int, **fields: Any) -> int:
        """Registered, and unfenced by its first heartbeat."""
        epoch = self.register(node_id, **fields)
        assert not self.beat(node_id).is_fenced
        self.settle()
        return epoch

    def come_back(self, node_id: int, clean: bool = True, **fields: Any) -> int:
        """A new process of a broker that was there before."""
        self.new_process(node_id)
        before = self.image.brokers[node_id].epoch if node_id in self.image.brokers else -1
        return self.join(node_id, previous_broker_epoch=before if clean else -1, **fields)

    def lose(self, *node_ids: int) -> None:
        """Silent until fenced; the others go on."""
        others = [
            broker.id
            for broker in self.image.brokers.values()
            if not broker.is_fenced and broker.id not in node_ids
        ]
        for _ in range(3):
            self.pass_ms(SESSION_MS // 2)
            for node_id in others:
                self.beat(node_id)
        self.settle()
        assert all(self.image.brokers[node_id].is_fenced for node_id in node_ids)

    def unregister(self, node_id: int) -> Any:
        reply = self.ask("unregister_broker", UnregisterBrokerRequest(broker_id=node_id))
        self.settle()
        return reply

    # Partitions.

    def partition(self, topic: str = "t", index: int = 0) -> Any:
        return self.image.topics_by_name[topic].partitions[index]

    def new_isr(self, *members: int, topic: str = "t", index: int = 0, **fields: Any) -> Any:
        """The leader asks for these in-sync replicas; `by`, epochs and others can be told."""
        partition = self.partition(topic, index)
        node_id = fields.pop("by", partition.leader)
        brokers = self.image.brokers
        epoch = fields.pop("broker_epoch", None)
        if epoch is None:
            epoch = brokers[node_id].epoch if node_id in brokers else -1
        epochs = fields.pop("epochs", {})
        data = PartitionData(
            partition_index=index,
            leader_epoch=fields.pop("leader_epoch", partition.leader_epoch),
            new_isr_with_epochs=[
                BrokerState(member, epochs.get(member, brokers[member].epoch))
                if member in brokers
                else BrokerState(member, -1)
                for member in members
            ],
            leader_recovery_state=fields.pop("recovery", 0),
            partition_epoch=fields.pop("partition_epoch", partition.partition_epoch),
        )
        topic_id = fields.pop("topic_id", self.image.topics_by_name[topic].id)
        assert not fields
        request = AlterPartitionRequest(node_id, epoch, [TopicData(topic_id, [data])])
        response = self.ask("alter_partition", request)
        self.settle()
        return response.topics[0].partitions[0]

    def elect(self, election_type: int, topic: str | None = "t", *indexes: int) -> Any:
        asked = None if topic is None else [TopicPartitions(topic, list(indexes or (0,)))]
        request = ElectLeadersRequest(election_type, asked)
        return self.ask("elect_leaders", request).replica_election_results
