"""Levels of features that hold for the whole cluster (KIP-584), written in the metadata log.

There is one so far: `metadata.version` says what its records may be. Groups of KIP-848
(`group.version`) and transactions (`transaction.version`) get theirs when they are there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.cluster.image import BrokerImage, ControllerImage, MetadataImage
from ottla.errors import CannotStart, InvalidUpdateVersion
from ottla.wire.messages.metadata_records import FeatureLevelRecord

METADATA_VERSION: Final = "metadata.version"


class Levels(NamedTuple):
    """The levels of a feature that a broker can work with."""

    first: int
    last: int


# A log begins with Kafka's 3.9-IV0. The versions in framing.py have been right since 3.7-IV2 (17);
# at 4.0-IV0 (22) a log of Kafka's would begin with group.version too.
BEGINNING: Final = {METADATA_VERSION: 21}
# 4.0-IV1: partitions have eligible leader replicas (KIP-966).
ELIGIBLE_LEADERS: Final = 23
SUPPORTED: Final = {METADATA_VERSION: Levels(21, ELIGIBLE_LEADERS)}


def has_eligible_leaders(image: MetadataImage) -> bool:
    return image.features.get(METADATA_VERSION, 0) >= ELIGIBLE_LEADERS


def levels(image: MetadataImage) -> dict[str, int]:
    """The levels that hold, or will as soon as the log has begun."""
    return BEGINNING | image.features


def raised(image: MetadataImage, name: str, level: int) -> list[FeatureLevelRecord]:
    """A higher level of a feature, once every node that is registered can work with it."""
    now = image.features.get(name, 0)
    supported = SUPPORTED.get(name)
    if supported is None:
        raise InvalidUpdateVersion(f"There is no feature {name}.")
    if not max(now, supported.first) <= level <= supported.last:
        raise InvalidUpdateVersion(
            f"{name} is at {now} and can be raised to {supported.last}, not set to {level}."
        )
    nodes: list[BrokerImage | ControllerImage] = [*image.brokers.values()]
    for node in [*nodes, *image.controllers.values()]:
        own = next((told for told in node.features if told.name == name), None)
        # A node that has told nothing is of the version before there was more than one level.
        if level > (BEGINNING[name] if own is None else own.last):
            raise InvalidUpdateVersion(
                f"Node {node.id} does not know {name} {level}; start a newer version of it first."
            )
    return [] if level == now else [FeatureLevelRecord(name=name, feature_level=level)]


def finalize(image: MetadataImage) -> list[FeatureLevelRecord]:
    """The levels that the log does not know yet; CannotStart where we do not know the log's."""
    missing = []
    for name, known in SUPPORTED.items():
        level = image.features.get(name)
        if level is None:
            missing.append(FeatureLevelRecord(name=name, feature_level=BEGINNING[name]))
        elif not known.first <= level <= known.last:
            raise CannotStart(
                f"The metadata log is of {name} {level}, and this version of Ottla reads "
                f"{known.first} to {known.last}; start the version that wrote it."
            )
    return missing
