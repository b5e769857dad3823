"""The metadata log of this node as a start finds it, and what it remembers of its quorum."""

from __future__ import annotations

from ottla.broker.control.snapshots import open_after
from ottla.broker.storage.partition_opener import log_config
from ottla.broker.storage.stores import METADATA_PARTITION, Store
from ottla.cluster.snapshot_file import Snapshot
from ottla.config import BrokerConfig, TopicConfig
from ottla.log.checkpoints import LOG_SIZES, RECOVERY_POINTS, START_OFFSETS, read_offsets
from ottla.log.handles import Handles
from ottla.log.log import Log
from ottla.ports import Clock, Disk
from ottla.quorum.state import FILE_NAME as QUORUM_FILE
from ottla.quorum.state import QuorumState, decode_state, encode_state


class MetadataLog:
    """All of it blocks."""

    def __init__(
        self, clock: Clock, disk: Disk, handles: Handles, store: Store, config: BrokerConfig
    ) -> None:
        self._clock = clock
        self._disk = disk
        self._handles = handles
        self._store = store
        self._config = config
        self.directory = store.data.partition_path(METADATA_PARTITION)
        self._is_first_state = True

    def open(self, snapshot: Snapshot | None) -> Log:
        """Its records go on where the newest snapshot ends, or before."""
        start_offset = self._checkpointed(START_OFFSETS)
        return open_after(snapshot, start_offset, self.directory, self._open_from)

    def _open_from(self, start_offset: int) -> Log:
        was_clean, known_bytes = self._store.was_clean, None
        if was_clean and start_offset == self._checkpointed(START_OFFSETS):
            known_bytes = self._checkpointed(LOG_SIZES) or None
        return Log.open(
            self._disk,
            self.directory,
            log_config(TopicConfig.resolve(self._config, {}), self._config),
            now_ms=self._clock.now().wall_ms,
            clean=was_clean,
            recovery_point=self._checkpointed(RECOVERY_POINTS),
            start_offset=start_offset,
            known_bytes=known_bytes,
            handles=self._handles,
        )

    def _checkpointed(self, kind: str) -> int:
        offsets = read_offsets(self._disk, f"{self._store.path}/{kind}")
        return offsets.get(METADATA_PARTITION, 0)

    def read_state(self) -> QuorumState:
        path = f"{self.directory}/{QUORUM_FILE}"
        self._is_first_state = not self._disk.exists(path)
        return QuorumState() if self._is_first_state else decode_state(self._disk.read_file(path))

    def save_state(self, state: QuorumState) -> None:
        """Durable when this returns."""
        self._disk.make_directory(self.directory)
        self._disk.write_file(f"{self.directory}/{QUORUM_FILE}", encode_state(state))
        if self._is_first_state:
            # Its directory may be new as well: a crash must not take the vote with it.
            self._disk.sync_directory(self._store.path)
            self._is_first_state = False
