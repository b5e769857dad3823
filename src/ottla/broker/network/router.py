"""From a frame to a handler: version, decoding, and the only error boundary.

`APIS` is the one list of what this broker speaks. A handler's module is imported when its API is
first used, so that starting costs nothing for what nobody asks.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ottla.broker.counters import ApiMetrics, Metrics
from ottla.broker.deferred import Deferred
from ottla.broker.network.forwarding import ForwardingServices, forward
from ottla.broker.request import RequestContext
from ottla.errors import InvalidRequest, OttlaError
from ottla.wire.codec import MalformedMessage, decode_prefix
from ottla.wire.framing import RequestHead, frame_reply, read_head
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.network.one_batch import OneBatchProduces
    from ottla.broker.network.waiting import Deadlines
    from ottla.broker.storage.partitions import Partitions
    from ottla.config import BrokerConfig
    from ottla.ports import Clock

logger = logging.getLogger(__name__)

Reply: TypeAlias = Message | None
Later: TypeAlias = "Awaitable[Reply | Deferred[Any]]"
Outcome: TypeAlias = "Reply | Deferred[Any] | Later"


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONTROLLER_REGISTRATION = 70
    ASSIGN_REPLICAS_TO_DIRS = 73
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


class Api(NamedTuple):
    """The versions of one API; `flexible` is the first with compact types and tagged fields."""

    key: ApiKey
    first: int
    last: int
    flexible: int
    for_nodes: bool = False
    """Whether only the nodes of a cluster speak it; clients are not told of it."""
    by_controller: bool = False
    """Whether only the controller can answer; other nodes forward the request to it."""
    by_all: bool = False
    """Whether brokers and controllers answer, each for itself."""

    @property
    def is_for_controllers(self) -> bool:
        """Whether it is spoken where controllers have a listener of their own."""
        return self.for_nodes or self.by_controller or self.by_all

    @property
    def module(self) -> str:
        """The name that its handler and its messages share."""
        return self.key.name.lower()

    @property
    def name(self) -> str:
        return "".join(word.capitalize() for word in self.key.name.split("_"))


# A list of small things takes twenty times its bytes once it is read. Only records may be larger.
PLAIN_REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
NEVER_FLEXIBLE: Final = 0x7FFF
FRAME_SIZE_BYTES: Final = 4

APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        # 0 to 2 are only refused, but librdkafka stops compressing where they are not advertised.
        Api(ApiKey.PRODUCE, 0, 12, 9),
        Api(ApiKey.FETCH, 4, 17, 12, by_all=True),
        Api(ApiKey.LIST_OFFSETS, 1, 10, 6),
        Api(ApiKey.METADATA, 0, 13, 9),
        Api(ApiKey.OFFSET_COMMIT, 2, 9, 8),
        Api(ApiKey.OFFSET_FETCH, 1, 9, 6),
        Api(ApiKey.FIND_COORDINATOR, 0, 6, 3),
        Api(ApiKey.JOIN_GROUP, 0, 9, 6),
        Api(ApiKey.HEARTBEAT, 0, 4, 4),
        Api(ApiKey.LEAVE_GROUP, 0, 5, 4),
        Api(ApiKey.SYNC_GROUP, 0, 5, 4),
        Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5),
        Api(ApiKey.LIST_GROUPS, 0, 5, 3),
        Api(ApiKey.API_VERSIONS, 0, 4, 3, by_all=True),
        Api(ApiKey.CREATE_TOPICS, 2, 7, 5, by_controller=True),
        Api(ApiKey.DELETE_TOPICS, 1, 6, 4, by_controller=True),
        Api(ApiKey.DELETE_RECORDS, 0, 2, 2),
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3),
        Api(ApiKey.END_TXN, 0, 5, 3),
        Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1),
        Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3),
        Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4, by_all=True),
        Api(ApiKey.ALTER_CONFIGS, 0, 2, 2, by_controller=True),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2),
        Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 4, 2),
        Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2, by_controller=True),
        Api(ApiKey.DELETE_GROUPS, 0, 2, 2),
        Api(ApiKey.ELECT_LEADERS, 0, 2, 2, by_controller=True),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, by_controller=True),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, by_controller=True),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, by_controller=True),
        Api(ApiKey.OFFSET_DELETE, 0, 0, NEVER_FLEXIBLE),
        Api(ApiKey.VOTE, 0, 2, 0, for_nodes=True),
        Api(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, 1, for_nodes=True),
        Api(ApiKey.END_QUORUM_EPOCH, 0, 1, 1, for_nodes=True),
        Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0, by_controller=True),
        Api(ApiKey.ALTER_PARTITION, 2, 3, 0, for_nodes=True),
        Api(ApiKey.UPDATE_FEATURES, 0, 2, 0, by_controller=True),
        Api(ApiKey.ENVELOPE, 0, 0, 0, for_nodes=True),
        Api(ApiKey.FETCH_SNAPSHOT, 0, 1, 0, for_nodes=True),
        Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, by_all=True),
        Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0),
        Api(ApiKey.BROKER_REGISTRATION, 0, 4, 0, for_nodes=True),
        Api(ApiKey.BROKER_HEARTBEAT, 0, 1, 0, for_nodes=True),
        Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0, by_controller=True),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0),
        Api(ApiKey.LIST_TRANSACTIONS, 0, 1, 0),
        Api(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, 0, for_nodes=True),
        Api(ApiKey.CONTROLLER_REGISTRATION, 0, 0, 0, for_nodes=True),
        Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, 0, for_nodes=True),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
        Api(ApiKey.ADD_RAFT_VOTER, 0, 1, 0, by_controller=True),
        Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0, by_controller=True),
        Api(ApiKey.UPDATE_RAFT_VOTER, 0, 0, 0, for_nodes=True),
    )
}


def apis_on(config: BrokerConfig, listener: str) -> Mapping[int, Api]:
    """What is spoken on a listener: all, unless it is of brokers or of controllers alone."""
    if config.is_controller and not config.controller_listeners():
        return APIS
    is_for_controllers = listener in config.controller_names
    return {
        key: api
        for key, api in APIS.items()
        if (api.is_for_controllers if is_for_controllers else not api.for_nodes)
    }


class CloseConnection(Exception):
    """The peer sent what cannot be answered; the reason goes to the log, with who it says it is."""

    def __init__(self, reason: str, client_id: str | None = None) -> None:
        super().__init__(reason)
        self.client_id = client_id


class HandedServices(ForwardingServices, Protocol):
    """What the router itself needs of that which handlers are given."""

    clock: Clock
    metadata: MetadataCache
    partitions: Partitions
    deadlines: Deadlines
    metrics: Metrics
    is_serving: bool


class Route(NamedTuple):
    """An API with everything that serving it needs."""

    api: Api
    request: type[Message]
    handle: Callable[[Any, RequestContext, Any], Outcome]
    error_response: Callable[[Any, Exception], Message] | None
    metrics: ApiMetrics


def is_flexible(api_key: int, version: int) -> bool:
    api = APIS.get(api_key)
    return api is not None and version >= api.flexible


def _is_of_node(api: Api, request: Any) -> bool:
    """Whether it is for another node, or for what a node knows before it is a broker."""
    if api.key == ApiKey.FETCH:
        return bool(request.replica_id >= 0 or request.replica_state.replica_id >= 0)
    return api.is_for_controllers


class Router:
    def __init__(self, services: HandedServices, apis: Mapping[int, Api] = APIS) -> None:
        self._services = services
        self.apis = apis
        self._routes: dict[int, Route] = {}
        self.one_batch_produces: OneBatchProduces | None = None

    def find(self, frame: memoryview) -> tuple[RequestHead, Route]:
        """Who is to answer this frame."""
        try:
            head = read_head(frame, is_flexible)
        except MalformedMessage as error:
            raise CloseConnection(str(error)) from None
        route = self._routes.get(head.api_key)
        if route is None:
            if head.api_key not in self.apis:
                raise CloseConnection(f"API {head.api_key} is not served here", head.client_id)
            route = self._load(head.api_key)
        api = route.api
        if not api.first <= head.version <= api.last and api.key != ApiKey.API_VERSIONS:
            raise CloseConnection(
                f"{api.name} has versions {api.first} to {api.last} here, not {head.version}",
                head.client_id,
            )
        if len(frame) > PLAIN_REQUEST_BYTES_MAX and api.key != ApiKey.PRODUCE:
            raise CloseConnection(f"a {api.name} request of {len(frame)} bytes", head.client_id)
        return head, route

    def call(
        self,
        route: Route,
        head: RequestHead,
        frame: memoryview,
        host: str,
        listener: str,
        memory: dict[Any, Any],
    ) -> Outcome:
        """Runs the handler. What it raises about the whole request becomes its reply."""
        context = RequestContext(
            head.api_key, head.version, head.correlation_id, head.client_id, host, listener, memory
        )
        route.metrics.count += 1
        if head.version > route.api.last:
            request: Message = route.request()
        else:
            try:
                # Bytes after the body are ignored, as in Kafka: librdkafka 2.16 sends three
                # too many when it asks for all topics.
                request, _ = decode_prefix(route.request, frame, head.version, head.body_at)
            except MalformedMessage as error:
                raise CloseConnection(str(error)) from None
        if not (self._services.is_serving or _is_of_node(route.api, request)):
            # Another node knows the topics; this one would say that there are none.
            raise CloseConnection("this node is starting", head.client_id)
        if route.api.by_controller and not self._services.leadership.is_leader:
            forwarded = forward(self._services, route.api, head, request, frame, host)
            return self._guarded(route, request, forwarded)
        try:
            outcome = route.handle(self._services, context, request)
        except Exception as error:
            return self.error_reply(route, request, error)
        if isinstance(outcome, (Message, Deferred)) or outcome is None:
            return outcome
        return self._guarded(route, request, outcome)

    async def answer(self, request: Message) -> Message:
        """The reply to a request of this node itself; what goes wrong is raised."""
        route = self._routes.get(request.API_KEY) or self._load(request.API_KEY)
        context = RequestContext(request.API_KEY, route.api.last, 0, None, "", "", {})
        return await self._handled(route, request, context)

    async def answer_frame(self, frame: memoryview, host: str, listener: str) -> bytes:
        """The reply, head included, to a request that another node has sent us for a client."""
        head, route = self.find(frame)
        if not route.api.by_controller:
            raise InvalidRequest(f"{route.api.name} is not for the controller.")
        context = RequestContext(
            head.api_key, head.version, head.correlation_id, head.client_id, host, listener, {}
        )
        route.metrics.count += 1
        request, _ = decode_prefix(route.request, frame, head.version, head.body_at)
        reply = await self._answered(route, request, context)
        is_flexible = head.version >= route.api.flexible
        chunks = frame_reply(head.correlation_id, is_flexible, reply, head.version)
        return b"".join(chunks)[FRAME_SIZE_BYTES:]

    async def _answered(self, route: Route, request: Message, context: RequestContext) -> Message:
        try:
            return await self._handled(route, request, context)
        except Exception as error:
            return self.error_reply(route, request, error)

    async def _handled(self, route: Route, request: Message, context: RequestContext) -> Message:
        outcome = route.handle(self._services, context, request)
        reply = await outcome if isinstance(outcome, Awaitable) else outcome
        assert isinstance(reply, Message), f"{route.api.name} is answered by what it waits for"
        return reply

    async def _guarded(
        self, route: Route, request: Message, outcome: Later
    ) -> Reply | Deferred[Any]:
        try:
            return await outcome
        except Exception as error:
            return self.error_reply(route, request, error)

    def error_reply(self, route: Route, request: Message, error: Exception) -> Message:
        route.metrics.errors += 1
        if not isinstance(error, (OttlaError, OSError)):
            logger.error("%s failed", route.api.name, exc_info=error)
        if route.error_response is None:
            raise CloseConnection(f"{route.api.name}: {error}") from error
        return route.error_response(request, error)

    def _load(self, api_key: int) -> Route:
        api = APIS[api_key]
        handler = importlib.import_module(f"ottla.broker.handlers.{api.module}")
        messages = importlib.import_module(f"ottla.wire.messages.{api.module}")
        route = Route(
            api,
            getattr(messages, f"{api.name}Request"),
            handler.handle,
            getattr(handler, "error_response", None),
            self._services.metrics.api(api_key, api.name),
        )
        self._routes[api_key] = route
        if api_key == ApiKey.PRODUCE:
            self._load_one_batch(route)
        return route

    def _load_one_batch(self, route: Route) -> None:
        from ottla.broker.network.one_batch import OneBatchProduces

        def count_unforeseen(error: Exception) -> None:
            self.error_reply(route, route.request(), error)

        self.one_batch_produces = OneBatchProduces(self._services, route.metrics, count_unforeseen)

    def preload(self, api_key: int) -> None:
        """Imports an API's handler before anybody asks."""
        if api_key in self.apis and api_key not in self._routes:
            self._load(api_key)
