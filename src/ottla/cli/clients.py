"""Which cluster a command speaks to, and the clients that do it: confluent-kafka's."""

from __future__ import annotations

import functools
import inspect
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from ottla.cli import interrupts
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.kafka import (
    AdminClient,
    ClusterMetadata,
    Consumer,
    KafkaError,
    KafkaException,
    OffsetSpec,
    Producer,
    TopicMetadata,
    TopicPartition,
)
from ottla.cli.options import pairs
from ottla.config.properties import parse_properties

CLUSTER_PANEL: Final = "Cluster"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
KAFKA_PORT: Final = 9092
CONNECT_TIMEOUT_S: Final = 5.0

T = TypeVar("T")
K = TypeVar("K")

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help=f"Brokers to ask first; {DEFAULT_BOOTSTRAP} if nothing else says so.",
        show_default=False,
        rich_help_panel=CLUSTER_PANEL,
    ),
]
ClientConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        envvar="OTTLA_CLIENT_CONFIG",
        metavar="FILE",
        help="Client settings in a .properties file, by librdkafka's names.",
        show_default=False,
        rich_help_panel=CLUSTER_PANEL,
    ),
]
ExtraOption = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="One client setting by librdkafka's name; may be repeated.",
        show_default=False,
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="How long to wait for the cluster.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]


class Cluster(NamedTuple):
    """The settings that every client of a command shares."""

    settings: dict[str, str]
    timeout_s: float

    @property
    def bootstrap(self) -> str:
        return self.settings["bootstrap.servers"]

    def admin(self) -> AdminClient:
        self.check_reachable()
        return AdminClient(self._complete({}))

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        self.check_reachable()
        return Producer(self._complete(settings))

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        self.check_reachable()
        return Consumer(self._complete(settings))

    def _complete(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the person gave wins over the command's own choice; librdkafka's log stays off."""
        quiet: dict[str, Any] = {} if "debug" in self.settings else {"log_level": "0"}
        return {"client.id": "ottla-cli", **quiet, **settings, **self.settings}

    def check_reachable(self) -> None:
        """librdkafka retries for ever and in silence; a closed port can be told at once."""
        if "test.mock.num.brokers" in self.settings:
            return
        reasons = []
        for server in self.bootstrap.split(","):
            host, port = _host_and_port(server.strip())
            try:
                socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            except OSError as error:
                reasons.append(error.strerror or str(error))
            else:
                return
        raise CommandFailed(
            f"Cannot connect to {self.bootstrap}: {reasons[0]}. Start a broker with `ottla start`, "
            "or name another with --bootstrap HOST:PORT."
        )


def _host_and_port(server: str) -> tuple[str, int]:
    server = server.rpartition("://")[2]
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        host, port = server, str(KAFKA_PORT)
    if not port.isdecimal() or int(port) > 65_535:
        raise WrongUsage(f"--bootstrap {server} is no address; write HOST:PORT.")
    return host.strip("[]"), int(port)


def client_settings(
    bootstrap: str | None, file: str | None, extra: Iterable[str]
) -> dict[str, str]:
    """-X over --bootstrap over the file over the default."""
    settings = {"bootstrap.servers": DEFAULT_BOOTSTRAP}
    if file:
        try:
            with open(file, encoding="utf-8") as stream:
                settings |= parse_properties(stream.read())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise WrongUsage(f"Cannot read {file}: {reason}.") from None
    if bootstrap:
        settings["bootstrap.servers"] = bootstrap
    return settings | pairs("-X", extra)


_OPTIONS: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("bootstrap", BootstrapOption, None),
    ("client_config", ClientConfigOption, None),
    ("extra", ExtraOption, None),
    ("timeout_s", TimeoutOption, 30.0),
)


def on_cluster(function: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's first parameter, the Cluster, by the options that describe one."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())[1:]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in _OPTIONS
    ]

    @functools.wraps(function)
    def command(
        *,
        bootstrap: str | None,
        client_config: str | None,
        extra: list[str] | None,
        timeout_s: float,
        **rest: Any,
    ) -> None:
        cluster = Cluster(client_settings(bootstrap, client_config, extra or ()), timeout_s)
        try:
            function(cluster, **rest)
        except KafkaException as error:
            raise CommandFailed(words(error.args[0])) from error

    keyword_only = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in own]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*keyword_only, *options]
    )
    return command


_ADVICE: Final = {
    "UNKNOWN_TOPIC_OR_PART": "There is no such topic or partition; `ottla topics list` shows them.",
    "_UNKNOWN_TOPIC": "There is no such topic; `ottla topics list` shows them.",
    "_UNKNOWN_PARTITION": "There is no such partition; `ottla topics describe` shows them.",
    "GROUP_ID_NOT_FOUND": "There is no such group; `ottla groups list` shows them.",
    "NON_EMPTY_GROUP": "The group has members; stop them first.",
    "_TIMED_OUT": "The cluster did not answer in time; try again or give --timeout.",
    "_ALL_BROKERS_DOWN": "No broker of the cluster can be reached.",
    "_TRANSPORT": "The connection to the cluster failed; is it a Kafka port, without TLS?",
}


def words(error: KafkaError) -> str:
    """An error of the client or the broker, with what to do where that is known."""
    advice = _ADVICE.get(error.name())
    return advice or error.str().removeprefix("Broker: ")


def wait_each(futures: Mapping[K, Future[T]]) -> tuple[dict[K, T], dict[K, str]]:
    """Results and failures by item: one bad item never hides the others."""
    results: dict[K, T] = {}
    failures: dict[K, str] = {}
    for key, future in futures.items():
        try:
            results[key] = interrupts.result(future)
        except KafkaException as error:
            failures[key] = words(error.args[0])
    return results, failures


def report(failures: Mapping[str, str], done: int = 0) -> None:
    """Complains about each failure and ends the command if there is any."""
    if not failures:
        return
    lines = [f"{item}: {reason}" for item, reason in failures.items()]
    suffix = f" ({done} others succeeded)" if done else ""
    raise CommandFailed("\nottla: ".join(lines) + suffix)


def interruptible(call: Callable[[], T], timeout_s: float | None = None) -> T:
    """Waits for a call into librdkafka, in which Python would not hear Ctrl-C."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="librdkafka", daemon=True).start()
    return interrupts.result(future, timeout_s)


def topics_of(cluster: Cluster, client: AdminClient | Consumer | Producer) -> ClusterMetadata:
    return interruptible(lambda: client.list_topics(timeout=cluster.timeout_s))


def topic_of(cluster: Cluster, client: AdminClient | Consumer, name: str) -> TopicMetadata:
    """One topic that must exist. All are asked for, because asking for one may create it."""
    topic = topics_of(cluster, client).topics.get(name)
    if topic is None:
        raise CommandFailed(f"There is no topic {name}; `ottla topics list` shows them.")
    if topic.error is not None:
        raise CommandFailed(f"{name}: {words(topic.error)}")
    return topic


def check_partitions(topic: str, known: Collection[int], wanted: Iterable[int]) -> None:
    """CommandFailed for the first that the topic does not have."""
    for index in wanted:
        if index not in known:
            raise CommandFailed(f"{topic} has no partition {index}; it has 0 to {len(known) - 1}.")


def check_broker(cluster: Cluster, client: AdminClient, broker: str) -> None:
    """A broker that is asked for by number must be there: librdkafka would wait for it to come."""
    if not broker.isdecimal():
        raise WrongUsage(f"--broker {broker} is no number of a broker.")
    known = sorted(topics_of(cluster, client).brokers)
    if int(broker) not in known:
        raise CommandFailed(
            f"There is no broker {broker}; the cluster has {', '.join(map(str, known))}."
        )


def offsets_at(
    cluster: Cluster, admin: AdminClient, partitions: Iterable[TopicPartition], spec: OffsetSpec
) -> dict[tuple[str, int], int]:
    """The offset that `spec` means in each partition that still exists; -1 is none."""
    wanted = dict.fromkeys(partitions, spec)
    if not wanted:
        return {}
    results, _ = wait_each(admin.list_offsets(wanted, request_timeout=cluster.timeout_s))
    return {(place.topic, place.partition): found.offset for place, found in results.items()}
