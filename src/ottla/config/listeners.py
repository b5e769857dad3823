"""Addresses: `PLAINTEXT://host:port` as Kafka writes them, or a bare `host:port`."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.config.setting import Names
from ottla.errors import InvalidConfig

PLAINTEXT: Final = "PLAINTEXT"
WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Listener(NamedTuple):
    """A named address on which clients are served, or which they are told."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def parse_address(text: str, setting_name: str) -> Address:
    """`host:port`, `[v6]:port` or `:port`."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not port.isdecimal()
        or int(port) > 65_535
        or (":" in host and not is_bracketed)
    ):
        raise InvalidConfig(
            f"{setting_name} is {text!r}, but must be host:port with a port up to 65535 "
            "(an IPv6 host in brackets)."
        )
    return Address(host[1:-1] if is_bracketed else host, int(port))


def parse_listeners(texts: Names, setting_name: str) -> tuple[Listener, ...]:
    """The listeners of a list setting; names must differ."""
    listeners = []
    for text in texts:
        name, scheme, rest = text.partition("://")
        if not scheme:
            name, rest = PLAINTEXT, text
        address = parse_address(rest, setting_name)
        listeners.append(Listener(name.upper(), address.host, address.port))
    names = [listener.name for listener in listeners]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"{setting_name} names the listener {name} twice.")
    return tuple(listeners)


class VoterAddress(NamedTuple):
    """A node that votes on the metadata, and where the others reach it."""

    node_id: int
    address: Address


def parse_voters(texts: Names, setting_name: str) -> tuple[VoterAddress, ...]:
    """`id@host:port`, each node once."""
    voters: dict[int, VoterAddress] = {}
    for text in texts:
        node_id, at, address = text.partition("@")
        if not (at and address and node_id.isascii() and node_id.isdecimal()):
            raise InvalidConfig(f"{setting_name} has {text!r}, but must be id@host:port.")
        if int(node_id) in voters:
            raise InvalidConfig(f"{setting_name} names node {node_id} twice.")
        voters[int(node_id)] = VoterAddress(int(node_id), parse_address(address, setting_name))
    return tuple(voters.values())
