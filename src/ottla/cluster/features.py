"""Levels of features that hold for the whole cluster (KIP-584), written in the metadata log.

`metadata.version` says what its records may be. With `transaction.version` 2 clients have an epoch
for each transaction (KIP-890). Groups of KIP-848 (`group.version`) get theirs when they are there.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.cluster.image import BrokerImage, ControllerImage, MetadataImage
from ottla.errors import CannotStart, InvalidUpdateVersion
from ottla.wire.messages.metadata_records import FeatureLevelRecord
from ottla.wire.messages.update_features import FeatureUpdateKey

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
# Whether the voters of the metadata log are records in it (KIP-853). Its level is no record like
# others: the quorum writes it.
KRAFT_VERSION: Final = "kraft.version"


class Levels(NamedTuple):
    """The levels of a feature that a broker can work with."""

    first: int
    last: int


# A log begins with Kafka's 3.9-IV0. The versions in framing.py have been right since 3.7-IV2 (17);
# at 4.0-IV0 (22) a log of Kafka's would begin with group.version too.
BEGINNING: Final = {METADATA_VERSION: 21, TRANSACTION_VERSION: 2}
# The levels of a log, or of a node, that says nothing of a feature: it is older than that.
UNSAID: Final = {METADATA_VERSION: 21, TRANSACTION_VERSION: 0}
# 4.0-IV1: partitions have eligible leader replicas (KIP-966).
ELIGIBLE_LEADERS: Final = 23
SUPPORTED: Final = {
    METADATA_VERSION: Levels(21, ELIGIBLE_LEADERS),
    TRANSACTION_VERSION: Levels(0, 2),
}
KRAFT_VERSIONS: Final = Levels(0, 1)
# Where new kinds of records came, so that what is written since cannot be read at a lower level.
RECORDS_CHANGED: Final = (ELIGIBLE_LEADERS,)


class Direction(IntEnum):
    """Where a request wants to have a level, by Kafka's numbers."""

    RAISE = 1
    LOWER = 2
    LOWER_UNSAFELY = 3


def has_eligible_leaders(image: MetadataImage) -> bool:
    return image.features.get(METADATA_VERSION, 0) >= ELIGIBLE_LEADERS


def levels(image: MetadataImage) -> dict[str, int]:
    """The levels that hold, or will as soon as the log has begun."""
    return (UNSAID if METADATA_VERSION in image.features else BEGINNING) | image.features


def changed(
    image: MetadataImage, voters: Collection[int], wanted: FeatureUpdateKey
) -> list[FeatureLevelRecord]:
    """Another level of a feature, once every node can work with it; `voters` have to be known."""
    name, level, now = wanted.feature, wanted.max_version_level, image.features.get(wanted.feature)
    supported = SUPPORTED.get(name)
    if supported is None:
        known = ", ".join((*SUPPORTED, KRAFT_VERSION))
        raise InvalidUpdateVersion(f"There is no feature {name}; there is {known}.")
    now = UNSAID[name] if now is None else now
    if not supported.first <= level <= supported.last:
        raise InvalidUpdateVersion(
            f"{name} is at {now} and can be raised to {supported.last}, not set to {level}."
        )
    if level < now:
        _check_lowering(name, level, now, wanted)
    elif level > now and _direction(wanted) is not Direction.RAISE:
        raise InvalidUpdateVersion(f"{name} is at {now}: {level} would not lower but raise it.")
    _check_nodes(image, voters, name, level)
    return [] if level == now else [FeatureLevelRecord(name=name, feature_level=level)]


def is_raised_quorum(now: int, wanted: FeatureUpdateKey) -> bool:
    """Whether kraft.version has to be raised; its records cannot be taken back."""
    level = wanted.max_version_level
    if not KRAFT_VERSIONS.first <= level <= KRAFT_VERSIONS.last:
        raise InvalidUpdateVersion(
            f"{KRAFT_VERSION} is at {now} and can be raised to {KRAFT_VERSIONS.last}, not set to "
            f"{level}."
        )
    if level < now:
        raise InvalidUpdateVersion(f"{KRAFT_VERSION} is at {now} and cannot be lowered.")
    if level > now and _direction(wanted) is not Direction.RAISE:
        raise InvalidUpdateVersion(
            f"{KRAFT_VERSION} is at {now}: {level} would not lower but raise it."
        )
    return level > now


def _direction(wanted: FeatureUpdateKey) -> Direction:
    try:
        direction = Direction(wanted.upgrade_type)
    except ValueError:
        raise InvalidUpdateVersion(f"There is no upgrade type {wanted.upgrade_type}.") from None
    # So version 0 of the request says it.
    return Direction.LOWER if wanted.allow_downgrade else direction


def _check_lowering(name: str, level: int, now: int, wanted: FeatureUpdateKey) -> None:
    if _direction(wanted) is Direction.RAISE:
        raise InvalidUpdateVersion(
            f"{name} is at {now}, so {level} would lower it; that has to be asked for "
            "(ottla features downgrade)."
        )
    lost = [changed_at for changed_at in RECORDS_CHANGED if level < changed_at <= now]
    if lost:
        raise InvalidUpdateVersion(
            f"{name} is at {now} and cannot be lowered to {level}: what is written since {lost[0]} "
            "could not be read any more."
        )


def _check_nodes(image: MetadataImage, voters: Collection[int], name: str, level: int) -> None:
    nodes: list[BrokerImage | ControllerImage] = [*image.brokers.values()]
    nodes += image.controllers.values()
    for node in nodes:
        own = next((told for told in node.features if told.name == name), None)
        # A node that has told nothing is of the version before there was more than one level.
        first, last = (UNSAID[name], UNSAID[name]) if own is None else (own.first, own.last)
        if not first <= level <= last:
            raise InvalidUpdateVersion(
                f"Node {node.id} does not know {name} {level}; start a newer version of it first."
            )
    unknown = sorted(set(voters) - {node.id for node in nodes})
    if unknown:
        raise InvalidUpdateVersion(
            f"Controller {unknown[0]} has not told yet which levels of {name} it knows; start it "
            "first."
        )


def check_known(image: MetadataImage) -> None:
    """CannotStart where the log is of a level that this version cannot work with."""
    for name, level in image.features.items():
        known = SUPPORTED.get(name, Levels(0, 0))
        if not known.first <= level <= known.last:
            raise CannotStart(
                f"The metadata log is of {name} {level}, and this version of Ottla reads "
                f"{known.first} to {known.last}; start the version that wrote it, or a newer one."
            )


def finalize(image: MetadataImage) -> list[FeatureLevelRecord]:
    """The levels with which a log begins; CannotStart where we do not know the log's.

    One that has begun gets others only when somebody asks for it, as nodes of an earlier version
    may read it.
    """
    check_known(image)
    if METADATA_VERSION in image.features:
        return []
    return [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in BEGINNING.items()
        if name not in image.features
    ]
