"""Where this node is served, and what it tells others of that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
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
    doors: dict[str, Door] = {}
    for wanted in config.bound():
        door = Door(
            network,
            partial(connections.connection, wanted.name),
            wanted.address,
            f"listeners={wanted}",
            "choose another address with --listen HOST:PORT",
            backlog=config.socket_listen_backlog_size,
        )
        doors[wanted.name] = door
        try:
            await door.bind()
        except BaseException:
            for each in doors.values():
                each.close()
            raise
    return doors


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
