"""What Kafka's own files say and Ottla has no setting for.

So that a KRaft server.properties loads: what makes no difference to a cluster of one is accepted
and told, what asks for something that is not there stops the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ottla.config.setting import Names
from ottla.errors import InvalidConfig

ROLES: Final = frozenset({"broker", "controller"})
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTENERS: Final = ("listeners", "advertised.listeners")
_NODE_ID_UNLESS_GIVEN: Final = "1"

# Other brokers, other coordinators, threads, and security that no PLAINTEXT listener asks for.
_IDLE_PREFIXES: Final = (
    "alter.log.dirs.",
    "connections.max.reauth.",
    "controlled.shutdown.max.",
    "controlled.shutdown.retry.",
    "controller.",
    "delegation.token.",
    "follower.replication.",
    "group.consumer.",
    "group.coordinator.",
    "group.share.",
    "group.streams.",
    "initial.broker.registration.",
    "kafka.metrics.",
    "leader.imbalance.",
    "leader.replication.",
    "listener.name.",
    "log.cleaner.io.",
    "log.local.retention.",
    "max.connections.per.ip",
    "metadata.log.segment.",
    "metric.",
    "metrics.",
    "password.encoder.",
    "quota.",
    "remote.",
    "replica.fetch.backoff.",
    "replica.high.",
    "replica.selector.",
    "replica.socket.",
    "replication.quota.",
    "sasl.",
    "share.",
    "ssl.",
    "telemetry.",
    "transaction.",
    "transactional.",
    "unstable.",
)
_IDLE: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "auto.include.jmx.reporter",
        "auto.leader.rebalance.enable",
        "background.threads",
        "broker.id.generation.enable",
        "connection.failed.authentication.delay.ms",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "inter.broker.listener.name",
        "inter.broker.protocol.version",
        "log.cleaner.threads",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "max.connection.creation.rate",
        "metadata.max.idle.interval.ms",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "principal.builder.class",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "reserved.broker.max.id",
        "security.inter.broker.protocol",
        "security.providers",
        "server.max.startup.time.ms",
        "super.users",
        "unclean.leader.election.interval.ms",
    }
)
_NOT_THERE: Final = {
    "alter.config.policy.class.name": "rules of its own for changes of settings",
    "authorizer.class.name": "rules of access",
    "client.quota.callback.class": "quotas of its own",
    "create.topic.policy.class.name": "rules of its own for new topics",
    "remote.log.storage.system.enable": "tiered storage",
}


def is_of_kafka(name: str) -> bool:
    """Whether Kafka has a setting of this name, or of this kind, that Ottla knows to do without."""
    return (
        name in _CHECKS
        or name in _IDLE
        or name in _NOT_THERE
        or name.startswith((*_IDLE_PREFIXES, "zookeeper."))
    )


def without_foreign(texts: Mapping[str, str], own: Mapping[str, object]) -> dict[str, str]:
    """Ottla's own settings among `texts`, with the listeners that clients are to use.

    InvalidConfig, beginning with a name, when another setting asks for what cannot be had.
    """
    kept = {name: text for name, text in texts.items() if name in own}
    _leave_out(set(_names(texts.get("controller.listener.names", ""))), kept)
    for name, text in texts.items():
        if name in own:
            continue
        if name.startswith("zookeeper."):
            raise InvalidConfig(
                f"{name} names ZooKeeper, which Ottla does without, as Kafka 4 does; remove the "
                "lines that begin with zookeeper."
            )
        if name in _NOT_THERE and text.strip().lower() not in ("", "false"):
            raise InvalidConfig(
                f"{name} is {text!r}, but Ottla does not have {_NOT_THERE[name]}; remove it to do "
                "without."
            )
        if name in _CHECKS:
            _CHECKS[name](name, text.strip(), kept)
    return kept


def _names(text: str) -> Names:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _leave_out(controllers: set[str], kept: dict[str, str]) -> None:
    """The listeners on which controllers speak to each other: here there is one."""
    if not controllers:
        return
    for setting in _LISTENERS:
        if setting not in kept:
            continue
        texts = _names(kept[setting])
        served = [text for text in texts if text.partition("://")[0] not in controllers]
        if texts and not served and setting == "listeners":
            raise InvalidConfig(
                f"listeners has only {', '.join(sorted(controllers))}, which "
                "controller.listener.names keeps for controllers; add one for clients."
            )
        kept[setting] = ",".join(served)


def _check_roles(name: str, text: str, _: Mapping[str, str]) -> None:
    if set(_names(text)) != ROLES:
        raise InvalidConfig(
            f"{name} is {text!r}, but a node of Ottla is both, and cannot join a cluster of "
            "Kafka's; write broker,controller."
        )


def _check_voters(name: str, text: str, own: Mapping[str, str]) -> None:
    _check_alone(name, text, own)
    for voter in _names(text):
        node_id, at, address = voter.partition("@")
        if not (at and address and node_id.isdecimal()):
            raise InvalidConfig(f"{name} is {text!r}, but must be id@host:port.")
        own_id = own.get("node.id", _NODE_ID_UNLESS_GIVEN).strip()
        if int(node_id) != int(own_id if own_id.isdecimal() else -1):
            raise InvalidConfig(
                f"{name} names node {node_id}, but node.id is {own_id}; the voter is this node."
            )


def _check_alone(name: str, text: str, _: Mapping[str, str]) -> None:
    count = len(_names(text))
    if count > 1:
        raise InvalidConfig(
            f"{name} names {count} nodes, but a cluster of Ottla has one so far; name this node "
            "alone."
        )


_CHECKS: Final[Mapping[str, Callable[[str, str, Mapping[str, str]], None]]] = {
    "process.roles": _check_roles,
    "controller.quorum.voters": _check_voters,
    "controller.quorum.bootstrap.servers": _check_alone,
}
