"""What a node is, and on which of its listeners: broker, controller, or both (KIP-500).

The rules are those of Kafka, with one difference: a node that is both may do without a listener
for controllers. Then nodes speak to each other where clients speak to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.config.kafka_files import PROTOCOLS
from ottla.config.listeners import PLAINTEXT, WILDCARDS, Address, Listener
from ottla.errors import InvalidConfig

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
ROLES: Final = (BROKER, CONTROLLER)
# On this machine nobody else can listen on the same port.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_roles(config: BrokerConfig) -> None:
    """InvalidConfig for the first misfit of roles, voters and listeners."""
    if len(set(config.process_roles)) < len(config.process_roles):
        raise InvalidConfig("process.roles names a role twice; write broker,controller.")
    _check_voters(config)
    if not config.is_controller:
        _check_broker_alone(config)
    elif not config.is_broker:
        _check_controller_alone(config)
    _check_controller_listeners(config)
    check_listeners(config)


def is_alone(config: BrokerConfig) -> bool:
    """Whether no setting names another controller: then this one may begin a cluster by itself."""
    others = [each for each in config.bootstrap_servers() if not is_own(config, each)]
    return config.is_controller and len(config.voters()) < 2 and not others


def is_own(config: BrokerConfig, address: Address) -> bool:
    """Whether an address is this controller's, by all that its settings say."""
    bound = config.controller_listeners() or config.bound()
    if config.controller_names and not config.controller_listeners():
        # Another --listen has replaced the listeners of a file, which speaks of its own still.
        return address.host in LOOPBACK
    names = {listener.name for listener in bound}
    places = [*bound, *(listener for listener in config.told() if listener.name in names)]
    return any(
        address.port == place.port and address.host in (place.host, *LOOPBACK) for place in places
    )


def _check_voters(config: BrokerConfig) -> None:
    named = {voter.node_id for voter in config.voters()}
    if config.is_controller and named and config.node_id not in named:
        raise InvalidConfig(
            f"controller.quorum.voters does not name node.id={config.node_id}, which "
            "process.roles makes a controller; add it, give this node one of these ids, or set "
            "process.roles=broker."
        )
    if not config.is_controller and config.node_id in named:
        raise InvalidConfig(
            f"controller.quorum.voters names node.id={config.node_id}, which process.roles makes "
            "a broker and no controller; take it out of the voters, or set "
            "process.roles=broker,controller."
        )


def _check_broker_alone(config: BrokerConfig) -> None:
    if not (config.voters() or config.bootstrap_servers()):
        raise InvalidConfig(
            "process.roles is broker, and nothing says where the controllers are; set "
            "controller.quorum.bootstrap.servers=HOST:PORT (or controller.quorum.voters)."
        )
    _need_names(config)
    bound = {listener.name for listener in (*config.bound(), *config.told())}
    for name in sorted(bound & config.controller_names):
        raise InvalidConfig(
            f"controller.listener.names has {name}, which is among this broker's own listeners; "
            "a node with process.roles=broker serves no controller: take it out of listeners and "
            "advertised.listeners."
        )


def _check_controller_alone(config: BrokerConfig) -> None:
    _need_names(config)
    for listener in config.bound():
        if listener.name not in config.controller_names:
            raise InvalidConfig(
                f"listeners has {listener.name}, which is for clients, and process.roles is "
                "controller; name only those of controller.listener.names "
                f"({', '.join(sorted(config.controller_names))}), or add broker to process.roles."
            )


def _need_names(config: BrokerConfig) -> None:
    if not config.controller_names:
        raise InvalidConfig(
            f"controller.listener.names is empty, and process.roles is "
            f"{','.join(config.process_roles)}; set it to the name of the controllers' listener, "
            "such as CONTROLLER."
        )


def _check_controller_listeners(config: BrokerConfig) -> None:
    if not config.is_controller:
        return
    bound = {listener.name for listener in config.bound()}
    missing = sorted(config.controller_names - bound)
    # To the only node nobody connects, so that another --listen may replace what a file says.
    if missing and not (config.is_broker and is_alone(config)):
        raise InvalidConfig(
            f"controller.listener.names has {missing[0]}, which is not among the listeners "
            f"({', '.join(sorted(bound))}); add {missing[0]}://HOST:PORT to listeners."
        )
    if config.is_broker and bound <= config.controller_names:
        raise InvalidConfig(
            f"listeners has only {', '.join(sorted(bound))}, which controller.listener.names "
            "keeps for controllers; add one for clients, or set process.roles=controller."
        )


def check_listeners(config: BrokerConfig) -> None:
    """Whether each speaks what there is, and can be reached where it is said to be."""
    bound = config.bound()
    protocols = dict(pair.split(":") for pair in config.listener_security_protocol_map)
    for listener in bound:
        usual = listener.name if listener.name in PROTOCOLS else None
        if listener.name in config.controller_names:
            # As in Kafka, they need no line of their own in the map.
            usual = usual or PLAINTEXT
        protocol = protocols.get(listener.name, usual)
        if protocol != PLAINTEXT:
            raise InvalidConfig(
                f"listeners names {listener.name}, which speaks {protocol or 'no known protocol'}; "
                "only PLAINTEXT is there so far (listener.security.protocol.map gives other names "
                f"to it, as {listener.name}:PLAINTEXT)."
            )
    names = {listener.name for listener in bound}
    clients = {listener.name for listener in config.client_listeners()}
    for listener in config.shared():
        if listener.name not in clients:
            raise InvalidConfig(
                f"bootstrap.listeners names {listener.name}, which is not among the listeners for "
                f"clients ({', '.join(sorted(clients)) or 'there are none'})."
            )
    for listener in config.told():
        if listener.name not in names:
            raise InvalidConfig(
                f"advertised.listeners names {listener.name}, which is not among the listeners "
                f"({', '.join(sorted(names))})."
            )
    for listener in config.advertised():
        if listener.host in WILDCARDS:
            raise InvalidConfig(_advice(config, listener))
    if config.is_broker and not config.advertised():
        raise InvalidConfig(
            "advertised.listeners has none for clients; add "
            f"{config.client_listeners()[0].name}://HOST:PORT."
        )


def _advice(config: BrokerConfig, listener: Listener) -> str:
    if config.advertised_listeners:
        return (
            f"advertised.listeners says {listener}, which no client can connect to; "
            "name a host that clients reach."
        )
    return (
        f"Listening on {listener.address} needs the address that clients are to use; add "
        f"--advertise HOST:{listener.port or 'PORT'} "
        f"(or advertised.listeners={listener.name}://HOST:{listener.port or 'PORT'})."
    )
