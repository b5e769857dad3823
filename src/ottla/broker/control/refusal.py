"""A start that is refused leaves the data directories as clean as it has found them.

A clean stop is proven by a marker (KIP-966), which a start takes away before it writes. Where the
node is not let in, no partition has been opened: once the metadata log is closed as by a stop, the
marker is true again, and is put back with the epoch that it told.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ottla.broker.storage.stores import METADATA_PARTITION
from ottla.errors import OttlaError
from ottla.log.checkpoints import LOG_SIZES, RECOVERY_POINTS, write_offset

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import Stores
    from ottla.ports import Disk

logger = logging.getLogger(__name__)

_NOT_CLEAN: Final = "the next start will check what is there: %s"


def leave_as_found(disk: Disk, stores: Stores, metadata_log: Partition) -> None:
    """Blocking; nothing may be writing any more."""
    metadata = stores.metadata
    try:
        metadata_log.close()
        for kind, offset in (
            (RECOVERY_POINTS, metadata_log.recovery_point),
            (LOG_SIZES, metadata_log.durable_bytes),
        ):
            write_offset(disk, f"{metadata.path}/{kind}", METADATA_PARTITION, offset)
    except (OSError, OttlaError) as error:
        logger.error(_NOT_CLEAN, error)
        return
    for store in stores.online():
        if store.clean_epoch is None:
            continue
        try:
            store.data.leave_clean_marker(store.clean_epoch)
        except OSError as error:
            logger.error(_NOT_CLEAN, error)
