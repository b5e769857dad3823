"""What moves between nodes ask a cluster: librdkafka's admin client knows nothing of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from ottla.cli.clients import Cluster
from ottla.cli.failures import CommandFailed
from ottla.cli.move_plan import Move, Place
from ottla.client.blocking import Blocking
from ottla.client.cluster import Cluster as Client
from ottla.client.failures import Unreachable
from ottla.client.settings import ClientSettings
from ottla.errors import ErrorCode, LeaderNotAvailable, OttlaError, error_of
from ottla.types import NodeId
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)
T = TypeVar("T")

TOPIC: Final = 2
BROKER: Final = 4
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
# The broker whose settings hold for all.
ALL_NODES: Final = ""
DRAINED: Final = "drained.nodes"
# The layers in which somebody has set a value; all others are the broker's own.
SET_BY_SOMEBODY: Final = (1, 2)
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
SETTINGS: Final = {
    TOPIC: (LEADER_REPLICAS, FOLLOWER_REPLICAS),
    BROKER: (LEADER_RATE, FOLLOWER_RATE),
}
# Asked again in a moment, these are answered.
NO_CONTROLLER: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)

# (kind, name) of a topic or a broker.
Resource = tuple[int, str]


class Seen(NamedTuple):
    """One partition, as the metadata has it."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Node(NamedTuple):
    """A broker as the cluster knows it, also one that does not serve."""

    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class Ongoing(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Mover:
    """One client for as long as the command runs."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.check_reachable()
        self._timeout_s = cluster.timeout_s
        self._client = Blocking(ClientSettings.from_kafka(cluster.settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    # ------------------------------------------------------------------------------- what is

    def look(self) -> tuple[dict[Place, Seen], list[int]]:
        """All partitions, and the nodes of the cluster."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        reply = self._ask(request, MetadataResponse)
        found = {
            (topic.name or "", partition.partition_index): Seen(
                partition.leader_id, tuple(partition.replica_nodes), tuple(partition.isr_nodes)
            )
            for topic in reply.topics
            for partition in topic.partitions
        }
        return found, sorted(broker.node_id for broker in reply.brokers)

    def nodes(self) -> dict[int, Node]:
        """All that are registered; a Kafka before 4.0 does not tell of those that are fenced."""
        request = DescribeClusterRequest(include_fenced_brokers=True)
        reply = self._ask(request, DescribeClusterResponse)
        return {
            each.broker_id: Node(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
            for each in sorted(reply.brokers, key=lambda each: each.broker_id)
        }

    def drained(self) -> set[int]:
        """The nodes that get no new partitions."""
        reply = self._ask(_described(BROKER, [ALL_NODES], [DRAINED]), DescribeConfigsResponse)
        texts = [
            each.value or ""
            for result in reply.results
            for each in result.configs
            if each.name == DRAINED
        ]
        return {int(text) for value in texts for text in value.split(",") if text.isdecimal()}

    def moving(self) -> dict[Place, Ongoing]:
        reply = self._ask(
            ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse
        )
        return {
            (topic.name, each.partition_index): Ongoing(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in reply.topics
            for each in topic.partitions
        }

    def sizes(self, nodes: Iterable[int]) -> dict[Place, int]:
        """The bytes of each partition: those of its largest replica."""
        found: dict[Place, int] = {}
        for node_id in nodes:
            reply = self._on_node(
                node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
            )
            for directory in () if reply is None else reply.results:
                for topic in directory.topics:
                    for one in topic.partitions:
                        place = (topic.name, one.partition_index)
                        found[place] = max(found.get(place, 0), one.partition_size)
        return found

    # ---------------------------------------------------------------------------- what is done

    def alter(self, wanted: Mapping[Place, Sequence[int] | None]) -> dict[Place, str]:
        """Moves partitions, or stops moving them (None); what was refused, and why."""
        topics: dict[str, ReassignableTopic] = {}
        for (topic, index), replicas in wanted.items():
            asked = topics.setdefault(topic, ReassignableTopic(name=topic))
            nodes = None if replicas is None else list(replicas)
            asked.partitions.append(ReassignablePartition(index, nodes))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=int(self._timeout_s * 1000), topics=list(topics.values())
        )
        reply = self._ask(request, AlterPartitionReassignmentsResponse)
        return {
            (topic.name, each.partition_index): str(error_of(each.error_code, each.error_message))
            for topic in reply.responses
            for each in topic.partitions
            if each.error_code
        }

    def elect(self, places: Iterable[Place] | None, kind: int) -> dict[Place, tuple[int, str]]:
        """By partition the code and the words of the answer."""
        topics: dict[str, TopicPartitions] = {}
        for topic, index in places or ():
            topics.setdefault(topic, TopicPartitions(topic=topic)).partitions.append(index)
        asked = None if places is None else list(topics.values())
        request = ElectLeadersRequest(kind, asked, int(self._timeout_s * 1000))
        reply = self._ask(request, ElectLeadersResponse)
        return {
            (topic.topic, each.partition_id): (each.error_code, each.error_message or "")
            for topic in reply.replica_election_results
            for each in topic.partition_result
        }

    def set_drained(self, node_id: int, *, drained: bool) -> None:
        """Whether the node gets new partitions; CommandFailed by a cluster that cannot keep it."""
        operation = APPEND if drained else SUBTRACT
        change = AlterableConfig(DRAINED, operation, str(node_id))
        self._alter_configs([AlterConfigsResource(BROKER, ALL_NODES, [change])])

    def unregister(self, node_id: int) -> None:
        self._ask(UnregisterBrokerRequest(node_id), UnregisterBrokerResponse)

    # ------------------------------------------------------------------------------- throttles

    def throttle(self, moves: Iterable[Move], bytes_per_second: int) -> None:
        """Both ends of each move; who is in sync is never throttled."""
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        nodes: set[int] = set()
        for move in moves:
            topic, index = move.place
            leaders.setdefault(topic, []).extend(f"{index}:{node}" for node in move.before)
            followers.setdefault(topic, []).extend(f"{index}:{node}" for node in move.adding)
            nodes.update(move.before, move.after)
        changes: dict[Resource, dict[str, str | None]] = {}
        for topic in leaders:
            changes[TOPIC, topic] = {
                LEADER_REPLICAS: ",".join(leaders[topic]),
                FOLLOWER_REPLICAS: ",".join(followers[topic]),
            }
        self._configure(changes)
        self.set_rate(nodes, bytes_per_second)

    def set_rate(self, nodes: Iterable[int], bytes_per_second: int) -> None:
        rates = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(bytes_per_second))
        self._configure({(BROKER, str(node)): dict(rates) for node in sorted(nodes)})

    def throttled(self) -> list[Resource]:
        """The topics and brokers that have a throttle."""
        partitions, nodes = self.look()
        topics = sorted({topic for topic, _ in partitions})
        found = self._set_in(
            self._ask(_described(TOPIC, topics), DescribeConfigsResponse) if topics else None
        )
        for node in nodes:
            asked = _described(BROKER, [str(node)])
            found += self._set_in(self._on_node(node, asked, DescribeConfigsResponse))
        return found

    def unthrottle(self, resources: Iterable[Resource]) -> None:
        self._configure({each: dict.fromkeys(SETTINGS[each[0]]) for each in resources})

    def _set_in(self, reply: DescribeConfigsResponse | None) -> list[Resource]:
        return [
            (result.resource_type, result.resource_name)
            for result in (() if reply is None else reply.results)
            if any(each.config_source in SET_BY_SOMEBODY and each.value for each in result.configs)
        ]

    def _configure(self, changes: Mapping[Resource, Mapping[str, str | None]]) -> None:
        resources = [
            AlterConfigsResource(
                kind,
                name,
                [
                    AlterableConfig(setting, DELETE if value is None else SET, value)
                    for setting, value in settings.items()
                ],
            )
            for (kind, name), settings in changes.items()
        ]
        if resources:
            self._alter_configs(resources)

    def _alter_configs(self, resources: list[AlterConfigsResource]) -> None:
        request = IncrementalAlterConfigsRequest(resources=resources)
        reply = self._ask(request, IncrementalAlterConfigsResponse)
        for each in reply.responses:
            if each.error_code:
                raise CommandFailed(str(error_of(each.error_code, each.error_message)))

    # -------------------------------------------------------------------------------- asking

    def _ask(self, request: Message, kind: type[R]) -> R:
        """The controller may be another by the next moment, or still be reading its log."""

        async def attempt(client: Client) -> R:
            async def once() -> R:
                reply = await client.ask_any(request, kind)
                code: int = getattr(reply, "error_code", ErrorCode.NONE)
                if code in NO_CONTROLLER:
                    raise Unreachable(str(error_of(code, getattr(reply, "error_message", None))))
                if code:
                    raise error_of(code, getattr(reply, "error_message", None))
                for each in getattr(reply, "responses", ()):
                    if getattr(each, "error_code", ErrorCode.NONE) in NO_CONTROLLER:
                        raise Unreachable("there is no controller at the moment")
                return reply

            return await client.retry("asking the controller", once)

        return self._run(attempt)

    def _on_node(self, node_id: int, request: Message, kind: type[R]) -> R | None:
        """Its answer; None where it cannot be reached: it may have just died."""

        async def attempt(client: Client) -> R | None:
            try:
                await client.refresh(())
                connection = await client.to_node(NodeId(node_id))
                return await connection.ask(request, kind)
            except (Unreachable, LeaderNotAvailable):
                return None

        return self._run(attempt)

    def _run(self, make: Callable[[Client], Awaitable[T]]) -> T:
        try:
            return self._client.run(make, self._timeout_s)
        except OttlaError as error:
            raise CommandFailed(str(error)) from error


def _described(
    kind: int, names: Iterable[str], settings: Sequence[str] | None = None
) -> DescribeConfigsRequest:
    wanted = SETTINGS[kind] if settings is None else settings
    return DescribeConfigsRequest(
        resources=[DescribeConfigsResource(kind, name, list(wanted)) for name in names]
    )
