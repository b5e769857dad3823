"""The options kafka.*: every name of the Java clients (4.0), and what becomes of each here.

A name that has an effect is handed on; one without is accepted, since a job carries it; a few are
refused, because a job that sets them would get something else than it believes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.spark.options.values import BadOption
from ottla.spark.spelling import nearest

PREFIX: Final = "kafka."

# Read by ottla.client.settings, for both sides.
CLIENT: Final = frozenset(
    [
        "bootstrap.servers",
        "client.id",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        # librdkafka's names for what the line above holds.
        "sasl.username",
        "sasl.password",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.keystore.location",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "request.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "default.api.timeout.ms",
        "retry.backoff.ms",
    ]
)

READ: Final = frozenset({"isolation.level", "max.partition.fetch.bytes", "fetch.max.bytes"})

WRITE: Final = frozenset(
    [
        "acks",
        "compression.type",
        "batch.size",
        "buffer.memory",
        "delivery.timeout.ms",
        "enable.idempotence",
        "max.request.size",
    ]
)

WITHOUT_EFFECT: Final = frozenset(
    [
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "bootstrap.controllers",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.leave.group.on.close",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "security.providers",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "transaction.timeout.ms",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.header.urlencode",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ]
)

_BYTES: Final = "keys and values are bytes; use keyFormat and valueFormat, or cast the columns"
_JAVA: Final = "it names a Java class, and this is Python"

# Spark's connector refuses the first six; the others would change what is written or who logs in.
REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": "keys are written as bytes; cast the column",
    "value.serializer": "values are written as bytes; cast the column",
    "enable.auto.commit": "use groupId, which commits what Spark has finished",
    "interceptor.classes": _JAVA,
    "partitioner.class": _JAVA + "; rows may carry a column partition instead",
    "partitioner.ignore.keys": "keys are always partitioned as by Kafka's default partitioner",
    "transactional.id": "the sink writes at least once, without transactions",
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.login.callback.handler.class": _JAVA,
    "sasl.login.class": _JAVA,
    "ssl.engine.factory.class": _JAVA,
    "ssl.provider": _JAVA,
    "ssl.cipher.suites": "the suites are those of OpenSSL; ssl.enabled.protocols narrows them",
}

NAMES: Final = CLIENT | READ | WRITE | WITHOUT_EFFECT | REFUSED.keys()


def take_kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """The kafka.* among the options, without the prefix; raises BadOption."""
    taken: dict[str, str] = {}
    for name, value in options.items():
        if not name.startswith(PREFIX):
            continue
        bare = name.removeprefix(PREFIX)
        if bare in REFUSED:
            raise BadOption(f"option {name} is not supported: {REFUSED[bare]}")
        if bare not in NAMES and not bare.startswith("metrics.context."):
            near = nearest(name, (PREFIX + known for known in NAMES - REFUSED.keys()))
            raise BadOption(f"option {name} is unknown{near}")
        taken[bare] = value
    return taken
