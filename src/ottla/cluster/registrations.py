"""Who may register, and as what: the checks of a broker's registration and its record.

A broker registers fenced, under an epoch that is higher than all before it. The same incarnation
may register again, and keeps its epoch and standing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster import features
from ottla.cluster.directories import is_reserved
from ottla.cluster.image import BrokerImage, MetadataImage
from ottla.errors import (
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from ottla.wire.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.wire.messages.controller_registration import ControllerRegistrationRequest
from ottla.wire.messages.controller_registration import Feature as ControllerLevels
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)

FENCE, UNFENCE = 1, -1
SHUT_DOWN = 1


def check(image: MetadataImage, cluster_id: str | None, request: BrokerRegistrationRequest) -> None:
    """Raises what is wrong with the request whoever else there may be."""
    if request.cluster_id != cluster_id:
        raise InconsistentClusterId(
            f"Broker {request.broker_id} belongs to cluster {request.cluster_id}, and this is "
            f"{cluster_id}; give it the data directory or the address of its own cluster."
        )
    _check_directories(image, request)
    _check_features(image, f"broker {request.broker_id}", request.features)


def _check_directories(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    told = request.log_dirs
    if not told:
        raise InvalidRegistration(f"Broker {request.broker_id} has no data directory.")
    if len(set(told)) < len(told) or any(is_reserved(directory_id) for directory_id in told):
        raise InvalidRegistration(
            f"Two data directories of broker {request.broker_id} have one id, or one has none."
        )
    for other in image.brokers.values():
        if other.id != request.broker_id and not set(told).isdisjoint(other.log_dirs):
            raise InvalidRegistration(
                f"A data directory of broker {request.broker_id} is that of broker {other.id} "
                f"({place(other)}): one of them was copied."
            )


def _check_features(
    image: MetadataImage, node: str, features_told: Sequence[Feature | ControllerLevels]
) -> None:
    known = {told.name: told for told in features_told}
    for name, level in features.levels(image).items():
        told = known.get(name)
        first, last = (
            (0, 0) if told is None else (told.min_supported_version, told.max_supported_version)
        )
        if not first <= level <= last:
            raise UnsupportedVersion(
                f"The cluster is at {name} {level}, and {node} works with "
                f"{first} to {last}; start a version of it that knows {level}."
            )


def check_no_other(existing: BrokerImage, request: BrokerRegistrationRequest) -> None:
    """`existing` lives: a second broker with its id is told where it is."""
    if existing.incarnation_id != request.incarnation_id:
        raise DuplicateBrokerRegistration(
            f"Broker {existing.id} is already running at {place(existing)}; "
            "give this one another node.id."
        )


def place(broker: BrokerImage) -> str:
    addresses = [f"{point.host}:{point.port}" for point in broker.endpoints.values()]
    return ", ".join(addresses) or "an unknown address"


def registration(request: BrokerRegistrationRequest, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            BrokerEndpoint(point.name, point.host, point.port, point.security_protocol)
            for point in request.listeners
        ],
        features=[
            BrokerFeature(told.name, told.min_supported_version, told.max_supported_version)
            for told in request.features
        ],
        rack=request.rack,
        fenced=True,
        log_dirs=list(request.log_dirs),
    )


def amended(existing: BrokerImage, request: BrokerRegistrationRequest) -> RegisterBrokerRecord:
    """The same incarnation tells of itself anew."""
    record = registration(request, existing.epoch)
    record.fenced = existing.is_fenced
    record.in_controlled_shutdown = existing.is_shutting_down
    return record


def controller_registration(
    image: MetadataImage, request: ControllerRegistrationRequest
) -> RegisterControllerRecord:
    _check_features(image, f"controller {request.controller_id}", request.features)
    return RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            ControllerEndpoint(point.name, point.host, point.port, point.security_protocol)
            for point in request.listeners
        ],
        features=[
            ControllerFeature(told.name, told.min_supported_version, told.max_supported_version)
            for told in request.features
        ],
    )


def check_epoch(image: MetadataImage, node_id: int, epoch: int) -> BrokerImage:
    """The broker, if it is its registered incarnation that speaks."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise StaleBrokerEpoch(f"Broker {node_id} is not registered.")
    if broker.epoch != epoch:
        raise StaleBrokerEpoch(
            f"Broker {node_id} is registered in epoch {broker.epoch}, not {epoch}."
        )
    return broker


def fencing(broker: BrokerImage) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=FENCE
    )


def unfencing(broker: BrokerImage) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=UNFENCE
    )


def leaving(broker: BrokerImage) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=SHUT_DOWN
    )
