"""Several brokers on one host, its workers: what each is given, from what was given once.

Worker 1 has the node's number, its directories and, where it is one, its vote: a node that ran
alone becomes worker 1 with all that it has. The others are brokers only. All of them accept
clients at the addresses that were given, and each at ports of its own, which clients are told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.listeners import WILDCARDS, Address, Listener
from ottla.config.roles import BROKER
from ottla.errors import InvalidConfig

WORKERS_MAX: Final = 100
# Worker 2 of node 3 is node 1003: the last digits tell the host.
ID_STEP: Final = 1000
# Worker 2 of a listener at 9092 has 9112: what lies beside 9092, such as a controller's 9093, stays
# free.
PORT_STEP: Final = 10
PORT_MAX: Final = 65_535
# Below each data directory; no partition can be called so.
WORKERS_DIRECTORY: Final = "workers"
CONTROLLER_LISTENER: Final = "CONTROLLER"


def worker_id(node_id: int, number: int) -> int:
    return node_id + ID_STEP * (number - 1)


def worker_directory(path: str, number: int) -> str:
    return path if number == 1 else os.path.join(path, WORKERS_DIRECTORY, str(number))


def check_workers(config: BrokerConfig, count: int) -> None:
    """InvalidConfig for what one node can be and several on a host cannot."""
    if not 1 <= count <= WORKERS_MAX:
        raise InvalidConfig(f"--workers is {count}, but must be 1 to {WORKERS_MAX}, or auto.")
    if not config.is_broker:
        raise InvalidConfig("process.roles is controller, and --workers is for brokers.")
    if config.node_id >= ID_STEP:
        raise InvalidConfig(
            f"node.id is {config.node_id}, but must be below {ID_STEP} with --workers: worker 2 of "
            f"node 1 is node {worker_id(1, 2)}."
        )
    if config.bootstrap_listeners:
        raise InvalidConfig("bootstrap.listeners is what --workers sets itself; leave it out.")
    for listener in config.client_listeners():
        if listener.port == 0:
            raise InvalidConfig(f"listeners has {listener}, but --workers needs a port to share.")
    _check_voter(config)
    _check_ports(config, count)


def _check_voter(config: BrokerConfig) -> None:
    """Other nodes must reach worker 1, and not whichever accepts."""
    if config.controller_listeners():
        return
    shared = {listener.port for listener in config.client_listeners()}
    for voter in config.voters():
        if voter.node_id == config.node_id and voter.address.port in shared:
            own = voter.address._replace(port=voter.address.port + PORT_STEP)
            raise InvalidConfig(
                f"controller.quorum.voters names {voter.node_id}@{voter.address}, a port that all "
                f"workers of this host share; name worker 1's own on all nodes: "
                f"{voter.node_id}@{own}."
            )


def _check_ports(config: BrokerConfig, count: int) -> None:
    taken: dict[int, str] = {}
    shared = [(listener.port, str(listener)) for listener in config.client_listeners()]
    own = [
        (listener.port, f"{listener} of worker {number}")
        for number in range(1, count + 1)
        for listener in _listeners(config, number)
    ]
    pages = [
        (address.port, f"http.listener={address} of worker {number}")
        for number in range(1, count + 1)
        if (address := _http(config, number)) is not None and address.port
    ]
    for port, what in (*shared, *own, *pages):
        if port > PORT_MAX:
            raise InvalidConfig(f"{what}: there are no ports above {PORT_MAX}.")
        if port in taken:
            raise InvalidConfig(f"{taken[port]} and {what} have the same port; move one of them.")
        taken[port] = what


def worker_config(config: BrokerConfig, number: int, host: str) -> BrokerConfig:
    """What worker `number` starts with. `host` names this machine, and is the rack by default."""
    texts = {
        "node.id": str(worker_id(config.node_id, number)),
        "broker.rack": config.broker_rack or host,
        "log.dirs": ",".join(worker_directory(path, number) for path in config.log_dirs),
        "listeners": _joined(_listeners(config, number)),
        "bootstrap.listeners": _joined(config.client_listeners()),
    }
    if config.metadata_log_dir is not None:
        texts["metadata.log.dir"] = worker_directory(config.metadata_log_dir, number)
    if config.advertised_listeners:
        texts["advertised.listeners"] = _joined(_moved(config, config.told(), number))
    address = _http(config, number)
    if address is not None and number > 1:
        texts["http.listener"] = str(address)
    if number > 1 and config.is_controller:
        texts["process.roles"] = BROKER
        texts["controller.listener.names"] = (
            ",".join(config.controller_listener_names) or CONTROLLER_LISTENER
        )
        if not config.voters():
            texts["controller.quorum.bootstrap.servers"] = str(_controller(config))
    return config.changed(texts)


def _listeners(config: BrokerConfig, number: int) -> list[Listener]:
    return _moved(config, config.bound(), number)


def _moved(config: BrokerConfig, listeners: Iterable[Listener], number: int) -> list[Listener]:
    """Clients' ports are the worker's own; the controllers' listener stays, at worker 1."""
    moved = []
    for listener in listeners:
        if listener.name not in config.controller_names:
            moved.append(listener._replace(port=listener.port + PORT_STEP * number))
        elif number == 1:
            moved.append(listener)
    return moved


def _http(config: BrokerConfig, number: int) -> Address | None:
    address = config.http_address()
    if address is None or address.port == 0:
        return address
    return address._replace(port=address.port + number - 1)


def _controller(config: BrokerConfig) -> Address:
    """Where the other workers reach worker 1, which alone decides."""
    listener = (config.controller_listeners() or _listeners(config, 1))[0]
    if listener.host in WILDCARDS:
        return Address("::1" if listener.host == "::" else "127.0.0.1", listener.port)
    return listener.address


def _joined(listeners: Iterable[Listener]) -> str:
    return ",".join(map(str, listeners))
