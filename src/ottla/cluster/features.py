"""Levels of features that hold for the whole cluster (KIP-584), written in the metadata log.

There is one so far: `metadata.version` says what its records may be. Groups of KIP-848
(`group.version`) and transactions (`transaction.version`) get theirs when they are there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.cluster.image import MetadataImage
from ottla.errors import CannotStart
from ottla.wire.messages.metadata_records import FeatureLevelRecord

METADATA_VERSION: Final = "metadata.version"


class Levels(NamedTuple):
    """The levels of a feature that a broker can work with."""

    first: int
    last: int


# Kafka's 3.9-IV0. The versions in framing.py have been right since 3.7-IV2 (17); with 4.0-IV0 (22)
# a log would begin with group.version too, and with 4.0-IV1 (23) have eligible leader replicas.
SUPPORTED: Final = {METADATA_VERSION: Levels(21, 21)}


def finalize(image: MetadataImage) -> list[FeatureLevelRecord]:
    """The levels that the log does not know yet; CannotStart where we do not know the log's."""
    missing = []
    for name, levels in SUPPORTED.items():
        level = image.features.get(name)
        if level is None:
            missing.append(FeatureLevelRecord(name=name, feature_level=levels.last))
        elif not levels.first <= level <= levels.last:
            raise CannotStart(
                f"The metadata log is of {name} {level}, and this version of Ottla reads "
                f"{levels.first} to {levels.last}; start the version that wrote it."
            )
    return missing
