"""Snapshots of the metadata: when they are taken, and how the metadata log is cut before them.

The last two are kept, and the log after the older of them, so that one damaged file costs nothing.
A start reads the newest whole snapshot and what the log says after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.runtime import Runtime
from ottla.broker.control.voter_records import KRAFT_VERSION_MAX, voters_record
from ottla.broker.storage.partition import Partition
from ottla.broker.threads import wait_out
from ottla.cluster.controller import Controller
from ottla.cluster.image import InconsistentMetadata
from ottla.cluster.snapshot import ImageCopy, copy_of
from ottla.cluster.snapshot_file import (
    DamagedSnapshot,
    Snapshot,
    SnapshotFiles,
    SnapshotId,
    encode_snapshot,
)
from ottla.config import BrokerConfig
from ottla.errors import CannotStart, CorruptBatch, OttlaError, SnapshotNotFound
from ottla.log.log import Log
from ottla.ports import Clock, Disk, Executor
from ottla.quorum.voters import VoterSet
from ottla.types import LeaderEpoch, Offset
from ottla.wire.schema import Buffer

logger = logging.getLogger(__name__)

T = TypeVar("T")

Shorten: TypeAlias = Callable[[Mapping[Partition, int]], Awaitable[dict[Partition, OSError]]]

KEPT: Final = 2
PAUSE_S: Final = 1.0
PAUSE_AFTER_FAILURE_S: Final = 60.0
COMMIT_S_MAX: Final = 30.0
FINISH_S_MAX: Final = 10.0
COPIES_MAX: Final = 5
# Less than this is replayed in a blink: about two thousand records.
REPLAYED_BYTES_MIN: Final = 64 * 1024
# A replay of so much of the snapshot's own size is worth a new one.
REPLAYED_SHARE: Final = 0.25


class Kept(NamedTuple):
    """A snapshot that is durable."""

    id: SnapshotId
    size: int
    last_contained_ms: int


class Growth(NamedTuple):
    """What has come since the last snapshot."""

    new_bytes: int
    snapshot_bytes: int
    waited_ms: int


def is_due(growth: Growth, config: BrokerConfig) -> bool:
    """As Kafka's settings say; without news there is nothing to do."""
    if not growth.new_bytes:
        return False
    interval_ms = config.metadata_log_max_snapshot_interval_ms
    return growth.new_bytes >= config.metadata_log_max_record_bytes_between_snapshots or (
        interval_ms > 0 and growth.waited_ms >= interval_ms
    )


def is_worth_a_start(growth: Growth) -> bool:
    """The next start would read noticeably less with a snapshot taken now.

    Each start writes a record for every partition, so that without this the replay would grow from
    start to start up to the full size that the settings allow.
    """
    return growth.new_bytes >= max(REPLAYED_BYTES_MIN, growth.snapshot_bytes * REPLAYED_SHARE)


def to_keep(
    snapshots: Sequence[Kept], log_bytes: int, now_ms: int, config: BrokerConfig
) -> Sequence[Kept]:
    """Of these, the oldest first, those that stay."""
    kept = snapshots[-KEPT:]
    if len(kept) < KEPT:
        return kept
    bytes_max, age_ms_max = config.metadata_max_retention_bytes, config.metadata_max_retention_ms
    is_too_much = 0 <= bytes_max < log_bytes + sum(snapshot.size for snapshot in kept)
    is_too_old = 0 <= age_ms_max < now_ms - kept[0].last_contained_ms
    return kept[-1:] if is_too_much or is_too_old else kept


def open_after(
    snapshot: Snapshot | None, start_offset: int, directory: str, open_log: Callable[[int], Log]
) -> Log:
    """Blocking: the metadata log, whose records go on where the snapshot ends or before.

    `start_offset` is what the checkpoint says; `open_log` opens the log from an offset on.
    """
    covered_offset = 0 if snapshot is None else snapshot.end_offset
    if start_offset > covered_offset:
        raise _uncovered(directory, start_offset)
    log = open_log(start_offset)
    if log.corruption is not None:
        log.abandon()
        raise _damaged(directory, log.corruption)
    if log.start_offset > covered_offset:
        log.abandon()
        raise _uncovered(directory, log.start_offset)
    if log.end_offset < covered_offset:
        # All that it holds is in the snapshot; new records must come after that.
        logger.warning(
            "%s: the log ends at offset %d, before its snapshot; it goes on at offset %d",
            directory,
            log.end_offset,
            covered_offset,
        )
        log.abandon()
        log = open_log(covered_offset)
    return log


def _damaged(directory: str, reason: object) -> CannotStart:
    return CannotStart(
        f"The metadata log is damaged: {reason}. "
        f"Put {directory} back from a copy, or start with another data directory."
    )


def _uncovered(directory: str, begins_at: int) -> CannotStart:
    return _damaged(
        directory, f"it begins at offset {begins_at}, and no whole snapshot tells what was before"
    )


class RecordedVoters(Protocol):
    def voters_at(self, end_offset: int) -> VoterSet | None:
        """Those of the log before this offset; None while they are a setting."""

    def forget_voters_before(self, offset: int) -> None: ...


class MetadataSnapshots:
    """Takes snapshots of what is committed, and cuts the log. A chore."""

    name: Final = "metadata-snapshots"

    def __init__(
        self, clock: Clock, io: Executor, disk: Disk, directory: str, config: BrokerConfig
    ) -> None:
        self._clock = clock
        self._io = io
        self._files = SnapshotFiles(disk, directory)
        self._config = config
        self._found: Snapshot | None = None
        self._has_looked = False
        self._kept: list[Kept] = []
        # By the end of a snapshot that is or was there, the epoch of the record before it.
        self._epochs: dict[Offset, LeaderEpoch] = {}
        self._counted_from = 0
        self._is_first_round = True
        self._is_tidy = False
        self._is_cut = False
        self._has_failed = False
        self.last_run_ms = 0

    # -------------------------------------------------------------------------------- starting

    def look(self) -> Snapshot | None:
        """Blocking: finds the newest whole snapshot, which `newest` hands out once more."""
        self._found, self._has_looked = self._files.newest(), True
        self._kept = [] if self._found is None else [_kept(self._found)]
        self._epochs = dict(self._files.ids())
        return self._found

    def newest(self) -> Snapshot | None:
        """Blocking: what a replay begins with."""
        if not self._has_looked:
            return self._files.newest()
        found, self._found, self._has_looked = self._found, None, False
        return found

    def take_of(
        self, controller: Runtime[Controller], metadata: MetadataCache, voters: RecordedVoters
    ) -> None:
        """Whose image is written, who says how far it is committed, and who knows the voters."""
        self._controller = controller
        self._voters = voters
        self._metadata = metadata
        self._counted_from = self._bytes_in
        self._waits_since_ms = self._clock.now().steady_ms

    async def replay(self) -> None:
        """Reads all that the metadata log and its snapshot say."""
        controller = self._controller
        bytes_in = self._bytes_in
        try:
            await controller.load()
        except (CorruptBatch, InconsistentMetadata) as error:
            raise _damaged(controller.partition.directory, error) from error
        self._counted_from = bytes_in - controller.replayed_bytes
        self._waits_since_ms = self._clock.now().steady_ms

    def cut_with(self, shorten: Shorten) -> None:
        self._shorten = shorten

    # ------------------------------------------------------------- given to and taken from others

    @property
    def newest_id(self) -> SnapshotId:
        """What a follower is told to fetch; (0, 0) where there is none."""
        return self._kept[-1].id if self._kept else SnapshotId(Offset(0), LeaderEpoch(0))

    def epoch_before(self, offset: int) -> LeaderEpoch | None:
        """Of the record before a snapshot's end; None when no snapshot is known to end there."""
        return self._epochs.get(Offset(offset))

    async def piece(self, id: SnapshotId, position: int, bytes_max: int) -> tuple[int, Buffer]:
        """The size of a snapshot, and some of its bytes."""
        if not id.end_offset:
            # What a disk was formatted with, the first leader has written to the log.
            raise SnapshotNotFound("a disk's own first checkpoint is not for others")
        return await self._in_thread(partial(self._files.piece, id, position, bytes_max))

    async def add_piece(self, id: SnapshotId, position: int, data: Buffer) -> None:
        await self._in_thread(partial(self._files.add_piece, id, position, data))

    async def check_pieces(self, id: SnapshotId) -> Snapshot:
        """Returns when all of it is on disk, and sound."""
        return await self._in_thread(partial(self._files.check_pieces, id))

    async def forget_pieces(self, id: SnapshotId) -> None:
        await self._in_thread(partial(self._files.forget_pieces, id))

    async def adopt(self, snapshot: Snapshot) -> None:
        """The log is about to begin after this one: those before it are of no use any more."""
        await self._in_thread(partial(self._files.take_pieces, snapshot.id))
        self._kept = []
        self._note(_kept(snapshot))
        self._found, self._has_looked = None, False
        self._counted_from = self._bytes_in

    def _note(self, kept: Kept) -> None:
        self._kept = [*(each for each in self._kept if each.id < kept.id), kept]
        self._epochs[kept.id.end_offset] = kept.id.epoch
        known = {each.id.end_offset for each in self._kept}
        self._epochs = {end: epoch for end, epoch in self._epochs.items() if end in known}

    # ---------------------------------------------------------------------------------- a round

    @property
    def pause_s(self) -> float:
        return PAUSE_AFTER_FAILURE_S if self._has_failed else PAUSE_S

    async def run(self) -> None:
        """Takes a snapshot if it is time for one, and cuts what is no longer needed."""
        try:
            await self._go_round(for_a_start=self._is_first_round)
        except (OSError, OttlaError, TimeoutError) as error:
            self._has_failed = True
            logger.warning("no snapshot of the metadata for now: %s", error)
        else:
            self._has_failed = self._is_first_round = False

    async def finish(self) -> None:
        """Before a stop: one more round, if the last one went well."""
        if self._has_failed or self._controller.partition.is_fenced:
            return
        try:
            async with asyncio.timeout(FINISH_S_MAX):
                await self._go_round(for_a_start=True)
        except (OSError, OttlaError, TimeoutError) as error:
            logger.warning("no snapshot of the metadata before the stop: %s", error)

    async def _go_round(self, *, for_a_start: bool) -> None:
        if self._controller.unreadable_records:
            # What could not be read is in the log and would be in no snapshot.
            return
        if not self._is_tidy:
            self._kept = await self._in_thread(self._tidied_up)
            self._is_tidy = True
        growth = self._growth()
        if is_due(growth, self._config) or (for_a_start and is_worth_a_start(growth)):
            await self.take()
        await self._cut()

    def _tidied_up(self) -> list[Kept]:
        """In a thread: removes what a crash has left; returns what is kept, now with a fallback."""
        self._files.remove_unfinished()
        for older in reversed(self._files.ids()):
            if self._kept and older < self._kept[0].id:
                try:
                    return [_kept(self._files.read(older)), *self._kept]
                except (DamagedSnapshot, OSError) as error:
                    logger.warning("%s is passed over: %s", self._files.path(older), error)
        return self._kept

    async def take(self) -> None:
        """Returns when a snapshot of all that is committed now is durable."""
        now = self._clock.now()
        partition = self._controller.partition
        # The log can then be cut exactly after what the snapshot tells.
        partition.roll(now.wall_ms)
        async with asyncio.timeout(COMMIT_S_MAX):
            await self._controller.all_committed()
        bytes_in = self._bytes_in
        end_offset, copy = await self._copied_image()
        if end_offset <= self.newest_id.end_offset:
            return
        epoch = LeaderEpoch(max(0, partition.epoch_at(end_offset - 1)))
        id = SnapshotId(Offset(end_offset), epoch)
        standing = self._voters.voters_at(end_offset)
        voters = None if not standing else voters_record(standing)
        level = 0 if standing is None else KRAFT_VERSION_MAX
        batches = encode_snapshot(id, copy.records(), now.wall_ms, now.wall_ms, voters, level)
        size = await self._in_thread(partial(self._files.write, id, batches))
        if id < self.newest_id:
            # Meanwhile another node's was taken, and the log begins after that.
            await self._in_thread(partial(self._files.remove, [id]))
            return
        self._note(Kept(id, size, now.wall_ms))
        self._voters.forget_voters_before(end_offset)
        self._is_cut = False
        self._counted_from = bytes_in
        self._waits_since_ms = now.steady_ms
        self.last_run_ms = now.wall_ms
        logger.debug("the metadata up to offset %d is in a snapshot of %d bytes", end_offset, size)

    async def _copied_image(self) -> tuple[int, ImageCopy]:
        """The committed image, and the offset after it; the loop is not held for long."""
        for _ in range(COPIES_MAX):
            end_offset = self._controller.published_offset
            copy = ImageCopy(self._metadata.image)
            while copy.step():
                await asyncio.sleep(0)
                if self._controller.published_offset != end_offset:
                    break
            else:
                return end_offset, copy
        # It changes all the time: then at one go.
        return self._controller.published_offset, copy_of(self._metadata.image)

    async def _cut(self) -> None:
        """Everything before the oldest snapshot that is kept goes, once there is another."""
        partition, now_ms = self._controller.partition, self._clock.now().wall_ms
        kept = list(to_keep(self._kept, partition.size_bytes, now_ms, self._config))
        if (self._is_cut and kept == self._kept) or len(self._kept) < KEPT:
            return
        failed = await self._shorten({partition: kept[0].id.end_offset})
        if failed:
            raise failed[partition]
        await self._in_thread(partial(self._remove_others, {snapshot.id for snapshot in kept}))
        self._kept = kept
        self._is_cut = True

    def _remove_others(self, kept: set[SnapshotId]) -> None:
        self._files.remove(id for id in self._files.ids() if id < max(kept) and id not in kept)

    # --------------------------------------------------------------------------------- helpers

    @property
    def _bytes_in(self) -> int:
        return self._controller.partition.metrics.bytes_in

    def _growth(self) -> Growth:
        return Growth(
            self._bytes_in - self._counted_from,
            self._kept[-1].size if self._kept else 0,
            self._clock.now().steady_ms - self._waits_since_ms,
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await wait_out(self._io.run(work))


def _kept(snapshot: Snapshot) -> Kept:
    return Kept(snapshot.id, snapshot.size, snapshot.last_contained_ms)
