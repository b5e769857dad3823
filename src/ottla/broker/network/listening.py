"""Where this node is served, and what it tells others of that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.network.doors import Door
from ottla.broker.network.router import APIS, HandedServices, Router, apis_on
from ottla.config import BrokerConfig
from ottla.config.listeners import WILDCARDS, Address, Listener
from ottla.ports import Network
from ottla.wire.messages.broker_registration import Listener as Endpoint

if TYPE_CHECKING:
    from ottla.broker.network.connection import Connections

PLAINTEXT: Final = 0


def give_routers(connections: Connections, services: HandedServices) -> None:
    """Where controllers have a listener of their own, no listener serves everything."""
    for listener in services.config.bound():
        apis = apis_on(services.config, listener.name)
        if apis is not APIS:
            connections.routers[listener.name] = Router(services, apis)


async def bind(network: Network, config: BrokerConfig, connections: Connections) -> dict[str, Door]:
    """By listener its door, bound and not yet open; a taken port stops the start here."""
    remedy = "choose another address with --listen HOST:PORT"
    doors = {
        wanted.name: Door(
            network,
            partial(connections.connection, wanted.name),
            wanted.address,
            f"listeners={wanted}",
            remedy,
            backlog=config.socket_listen_backlog_size,
        )
        for wanted in config.bound()
    }
    await _bind_all(doors.values())
    return doors


async def bind_shared(
    network: Network, config: BrokerConfig, connections: Connections
) -> list[Door]:
    """The doors that other brokers of this host have as well, bound and not yet open."""
    doors = [
        Door(
            network,
            partial(connections.connection, wanted.name),
            wanted.address,
            f"bootstrap.listeners={wanted}",
            "choose another address",
            backlog=config.socket_listen_backlog_size,
            is_shared=True,
        )
        for wanted in config.shared()
    ]
    await _bind_all(doors)
    return doors


async def open_all(doors: Iterable[Door]) -> None:
    for door in doors:
        await door.open()


def close_all(doors: Iterable[Door]) -> None:
    for door in doors:
        door.close()


async def _bind_all(doors: Iterable[Door]) -> None:
    try:
        for door in doors:
            await door.bind()
    except BaseException:
        close_all(doors)
        raise


def http_door(
    network: Network,
    config: BrokerConfig,
    wanted: Address,
    protocol_factory: Callable[[], asyncio.BaseProtocol],
) -> Door:
    return Door(
        network,
        protocol_factory,
        wanted,
        f"http.listener={wanted}",
        "choose another address with --http HOST:PORT, or none with --http ''",
        or_any_port=not config.is_given("http.listener"),
    )


def told_to_clients(config: BrokerConfig, bound: Mapping[str, Address]) -> list[Endpoint]:
    """The endpoints of the broker, as it registers them."""
    return [_endpoint(listener, bound) for listener in config.advertised()]


def told_to_nodes(config: BrokerConfig, bound: Mapping[str, Address]) -> list[Endpoint]:
    """The endpoints of the controller: its own, or else those that it shares with clients."""
    own = config.controller_listeners()
    if not own:
        return told_to_clients(config, bound)
    told = {listener.name: listener for listener in config.told()}
    return [_endpoint(_reachable(config, told.get(each.name, each)), bound) for each in own]


def known_to_nodes(config: BrokerConfig) -> tuple[str, int] | None:
    """Where other nodes find this controller, if that is known before it listens."""
    if not config.is_controller:
        return None
    listener = (config.controller_listeners() or config.advertised())[0]
    told = {each.name: each for each in config.told()}.get(listener.name, listener)
    if not told.port:
        return None
    reachable = _reachable(config, told)
    return reachable.host, reachable.port


def _endpoint(listener: Listener, bound: Mapping[str, Address]) -> Endpoint:
    port = listener.port or bound[listener.name].port
    return Endpoint(listener.name, listener.host, port, PLAINTEXT)


def _reachable(config: BrokerConfig, listener: Listener) -> Listener:
    """Of one that listens everywhere, the host by which the voters know it, or this machine's."""
    if listener.host not in WILDCARDS:
        return listener
    for voter in config.voters():
        if voter.node_id == config.node_id:
            return listener._replace(host=voter.address.host)
    return listener._replace(host=socket.gethostname())
