"""The chores of a broker, wired to what they look after, and what its pages tell of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ottla.broker.chores import Chore, Chores
from ottla.broker.metrics.storage_gauges import Storage, register_storage_gauges
from ottla.broker.services import Services
from ottla.broker.storage.checkpoints import Checkpoints
from ottla.broker.storage.compaction import CompactionChore, Compactor
from ottla.broker.storage.recovery_points import RecoveryPointsChore
from ottla.broker.storage.retention import RetentionChore
from ottla.broker.storage.scrub import ScrubChore
from ottla.log.handles import Handles


class Housekeeping:
    def __init__(
        self,
        services: Services,
        handles: Handles,
        checkpoints: Checkpoints,
        start_compactor: Callable[[], Awaitable[Compactor]],
    ) -> None:
        self._services = services
        self._handles = handles
        clock, disk, metadata = services.clock, services.disk, services.metadata
        stores, partitions, shortener = services.stores, services.partitions, services.shortener
        self._snapshots = services.snapshots
        self._snapshots.cut_with(shortener.shorten)
        self.retention = RetentionChore(partitions, stores, shortener, clock, disk, services.config)
        self.scrub = ScrubChore(
            lambda: (*partitions, services.controller.partition),
            stores,
            handles,
            disk,
            clock,
            lambda: metadata.broker_config,
        )
        self.compaction = CompactionChore(
            partitions,
            stores,
            shortener,
            checkpoints.save_recovery_point,
            handles,
            clock,
            disk,
            lambda: metadata.broker_config,
            start_compactor,
        )
        self._recovery_points = RecoveryPointsChore(stores.online, checkpoints.save_recovery_points)
        self.chores = Chores(())

    def start(self, *others: Chore) -> None:
        self.chores = Chores(
            (
                self._snapshots,
                self.retention,
                self.scrub,
                self.compaction,
                self._recovery_points,
                *others,
            )
        )
        self.chores.start()

    def register_gauges(self, recovery_s: float) -> None:
        services = self._services
        storage = Storage(
            services.stores,
            services.partitions,
            services.controller.partition,
            self._handles,
            self._snapshots,
            self.retention,
            self.compaction,
            self.scrub,
            recovery_s,
            services.stores.was_clean,
        )
        register_storage_gauges(services.metrics, storage)
