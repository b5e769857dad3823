"""What a client is told: where the cluster is, how to prove oneself, how long to wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.failures import BadSetting
from ottla.client.security import Security

PORT_MAX: Final = 65535
SOFTWARE: Final = "ottla"
# The settings that this client heeds, besides those of security.
TIMES: Final = {
    "socket.connection.setup.timeout.ms": "connect_timeout_s",
    "request.timeout.ms": "request_timeout_s",
    "default.api.timeout.ms": "retry_timeout_s",
    "retry.backoff.ms": "retry_backoff_s",
}


@dataclass(frozen=True)
class ClientSettings:
    """Can be pickled, compared and hashed: one cluster per process is kept for each."""

    bootstrap: tuple[str, ...]
    client_id: str = SOFTWARE
    software: str = SOFTWARE
    security: Security = field(default_factory=Security)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    # For how long errors that pass are tried again: a lost connection, a leader that has moved.
    retry_timeout_s: float = 60.0
    retry_backoff_s: float = 0.1

    @classmethod
    def from_kafka(cls, options: Mapping[str, str]) -> ClientSettings:
        """From the Java client's names; those that only tune a Java client are passed over."""
        if "bootstrap.servers" not in options:
            raise BadSetting("bootstrap.servers is missing: host:port, several with commas")
        times = {
            ours: _milliseconds(theirs, options[theirs]) / 1000
            for theirs, ours in TIMES.items()
            if theirs in options
        }
        return cls(
            bootstrap=parse_bootstrap(options["bootstrap.servers"]),
            client_id=options.get("client.id") or SOFTWARE,
            software=SOFTWARE,
            security=Security.from_kafka(options),
            **times,
        )


def parse_bootstrap(text: str) -> tuple[str, ...]:
    """`a:9092,b:9092`; a listener's name before `://` may stand there, as in Kafka."""
    addresses = tuple(_address(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise BadSetting("bootstrap.servers is empty: host:port, several with commas")
    return addresses


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[host]:port`; the settings have checked that it is one."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str) -> str:
    bare = text.partition("://")[2] or text
    host, colon, port = bare.rpartition(":")
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    # isdecimal alone also takes digits of other scripts.
    if not colon or not host or is_bare_ipv6 or not (port.isascii() and port.isdecimal()):
        raise BadSetting(f"bootstrap.servers: {text!r} is not host:port")
    if not 0 < int(port) <= PORT_MAX:
        raise BadSetting(f"bootstrap.servers: {text!r} has no port between 1 and {PORT_MAX}")
    return bare


def _milliseconds(name: str, text: str) -> int:
    value = text.strip()
    if not (value.isascii() and value.isdecimal()) or int(value) == 0:
        raise BadSetting(f"{name}={text}: it is a number of milliseconds above 0")
    return int(value)
