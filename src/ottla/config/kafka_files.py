"""What Kafka's own files say and Ottla has no setting for.

So that a KRaft server.properties loads: what makes no difference to a cluster of one is accepted
and told, what asks for something that is not there stops the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.errors import InvalidConfig

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

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
    return name in _IDLE or name in _NOT_THERE or name.startswith((*_IDLE_PREFIXES, "zookeeper."))


def without_foreign(texts: Mapping[str, str], own: Mapping[str, object]) -> dict[str, str]:
    """Ottla's own settings among `texts`.

    InvalidConfig, beginning with a name, when another setting asks for what cannot be had.
    """
    kept = {name: text for name, text in texts.items() if name in own}
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
    return kept
