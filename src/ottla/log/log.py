"""One partition on disk.

A batch goes through three states: queued (`append` gave it offsets), written (`write` gave it to
the operating system) and synced (a `SyncTicket` came back). `append` does no IO. A new segment is
begun in memory and gets its file in `write`, so that `write` is the only place where the disk can
refuse; whatever it refuses is taken back as if it had never been appended.

Nothing here waits or knows a loop. All of it belongs to one thread; what readers in other threads
may use beside it is `LogView`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ottla.errors import OffsetOutOfRange, StorageFailed
from ottla.log.appending import AppendingLog
from ottla.log.closing import TakeShort, remove_needless_snapshots, save_for_clean_start
from ottla.log.corruption import Corruption
from ottla.log.epochs import Epochs
from ottla.log.handles import Handles
from ottla.log.hints import Hints, Progress, Saving
from ottla.log.opening.listing import Loaded, producers_at
from ottla.log.opening.loading import load
from ottla.log.opening.short_logs import ShortLog
from ottla.log.producer_state import ProducerState
from ottla.log.reading import Reader
from ottla.log.segment import Segment
from ottla.log.site import Site
from ottla.log.truncation import Cut, Shortening, clear_files, cut_files, find_cut
from ottla.log.unsynced import SyncTicket, Unsynced
from ottla.log.values import Appended, LogConfig, LogPosition
from ottla.log.writing import Probing, Queue, Writing, go_back
from ottla.ports import Disk
from ottla.types import LeaderEpoch

# Half the price of calling the class, and this is the path of every batch.
_new_tuple: Final = tuple.__new__

__all__ = ["Appended", "Log", "LogConfig", "LogPosition", "SyncTicket"]


class Log(AppendingLog):
    __slots__ = (
        "_is_closed",
        "_is_doubtful",
        "_progress",
        "_recovery_point",
        "_unsynced",
        "_writing",
        "cuts",
        "synced",
        "written",
    )

    def __init__(self, handles: Handles, directory: str, config: LogConfig, loaded: Loaded) -> None:
        super().__init__(handles, directory, config, loaded)
        active = self._active
        self.written = LogPosition(loaded.end_offset, active.base_offset, active.size)
        self.synced = self.written
        self._writing: Writing | Probing | Saving | None = None
        self._unsynced = Unsynced(handles, directory)
        self._is_closed = False
        self._is_doubtful = False
        # How often its end was cut off, so that other bytes may be where some were.
        self.cuts = 0
        self._recovery_point = loaded.recovery_point
        self._progress = Progress(self.directory)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        start_offset: int = 0,
        known_bytes: int | None = None,
        short: ShortLog | None = None,
        handles: Handles | None = None,
        is_synced_together: bool = False,
    ) -> Log:
        """Blocking, as `load` says. All that is found and kept is synced: `synced` is the end.

        With `is_synced_together` the caller syncs the file system before it uses the log.
        """
        if handles is None:
            handles = Handles(disk)
        site = Site(disk, handles, directory, config, now_ms, is_synced_together)
        loaded = load(
            site,
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            known_bytes=known_bytes,
            short=short,
        )
        log = cls(handles, directory, config, loaded)
        log.start_offset = max(start_offset, loaded.segments[0].base_offset)
        log._locate_transactions()
        return log

    @classmethod
    def new(cls, handles: Handles, directory: str, config: LogConfig, now_ms: int) -> Log:
        """The log of a partition that has never been. It does not look into the directory."""
        segment = Segment(directory, 0, 0, now_ms)
        return cls(handles, directory, config, Loaded([segment], 0, ProducerState(), Epochs(), {}))

    # --------------------------------------------------------------------------------- writing

    def write(self) -> None:
        """Gives everything queued to the disk. An OSError means that nothing of it happened."""
        writing = self.begin_write()
        if writing is not None:
            try:
                writing.run()
            except OSError:
                self.fail_write(writing)
                raise
            self.finish_write(writing)

    @property
    def makes_files(self) -> bool:
        """Whether the next write creates files, which takes longer than writing to them."""
        return bool(self._rolls) or not self._active.is_created

    def begin_write(self) -> Writing | None:
        """All that is queued, to be run in this thread or another; None when nothing is."""
        assert self._writing is None
        if not self._queue and not self._rolls:
            return None
        assert self._mark is not None
        active = self._active
        self._writing = writing = Writing(
            self._unsynced,
            self._epochs,
            self.directory,
            self._rolls,
            active,
            # Not the list itself where it is empty: the log goes on adding to it.
            _new_tuple(Queue, (self._queue, self._queue_at, self._aborted or (), self._aborted_at)),
            _new_tuple(LogPosition, (self.end_offset, active.base_offset, active.size)),
            self._mark,
            self._producers.change_count,
        )
        self._rolls, self._queue = [], []
        if self._aborted:
            self._aborted = []
        return writing

    def finish_write(self, writing: Writing) -> None:
        """It has run; what was queued meanwhile is still queued."""
        for roll in writing.rolls:
            roll.segment.seal()
        self._chain.snapshots.update(writing.snapshots)
        self._producers.keep(writing.change_count)
        self.written = writing.place
        self._end_write(writing)

    def fail_write(self, writing: Writing) -> None:
        """It has failed: nothing of it happened, nor of what was queued meanwhile."""
        self._mark = writing.mark
        self._take_back()
        self.fenced |= writing.is_left_over
        self._end_write(writing)

    def _end_write(self, writing: Writing | Probing | Saving) -> None:
        self._writing = None
        for ticket in writing.synced:
            self._unsynced.finish(ticket)
        if writing.is_abandoned:
            self.abandon()

    def begin_probe(self, byte_count: int) -> Probing | None:
        """Its run raises OSError when the disk would not take so many more bytes."""
        if self._queue or self._rolls or self._writing or not self._active.is_created:
            return None
        self._writing = probing = Probing(self._unsynced, self._active, byte_count)
        return probing

    def end_probe(self, probing: Probing) -> None:
        self.fenced |= probing.is_left_over
        self._end_write(probing)

    def take_back(self) -> None:
        """What is queued is refused, as if `write` had tried."""
        if self._queue or self._rolls:
            self._take_back()

    def _take_back(self) -> None:
        """Nothing since the last `write` happened; its run has cut off what reached the disk."""
        assert self._mark is not None
        self._active = self._chain.hold(go_back(self.segments, self._handles, self._mark))
        self.end_offset = self.written.offset
        self._producers.undo()
        self._epochs.retreat(self.end_offset)
        self._rolls = []
        self._clear_queue()

    # --------------------------------------------------------------------------------- syncing

    def begin_sync(self) -> SyncTicket | None:
        """What to sync so that all that is written now is safe; None when it is already."""
        return None if self.fenced else self._unsynced.ticket(self.written)

    def gave(self, ticket: SyncTicket) -> bool:
        """False when the ticket is of a log in whose place this one was opened."""
        return ticket.giver is self._unsynced

    def finish_sync(self, ticket: SyncTicket) -> None:
        """The ticket's files and directories are synced."""
        assert self.gave(ticket), f"{self.directory}: a ticket of another log"
        if self.fenced:
            self._unsynced.give_up(ticket.generation)
            return
        if self._writing is None:
            self._unsynced.finish(ticket)
        else:
            self._writing.synced.append(ticket)
        if ticket.position.offset > self.synced.offset:
            self.synced = ticket.position

    def fail_sync(self, ticket: SyncTicket | None = None) -> None:
        """A sync failed: what is on disk after `synced` is unknown, and stays so.

        Another sync that succeeds would prove nothing: the kernel reports a lost page once. But
        its files stay open until it is back; without a `ticket`, nobody is syncing any.
        """
        self.fenced = self._is_doubtful = True
        if ticket is None:
            self._unsynced.give_up_all()
        else:
            ticket.give_up()

    def reopen(self, now_ms: int) -> Log:
        """Blocking. A fresh log from a fenced one; after a failed sync cut where it was synced.

        After that point even batches that look intact are not believed: they may come from the
        page cache and be nowhere else.
        """
        if self.corruption is not None:
            raise StorageFailed(f"{self.directory} is damaged: {self.corruption}")
        self.abandon()
        if self._is_doubtful:
            self._site(now_ms).cut(self.segments, self.synced)
        return Log.open(
            self._handles.disk,
            self.directory,
            self.config,
            now_ms=now_ms,
            clean=False,
            recovery_point=self.synced.offset,
            start_offset=self.start_offset,
            handles=self._handles,
        )

    @property
    def recovery_point(self) -> int:
        """Up to here a start after a crash takes everything for synced."""
        return self.synced.offset if self._recovery_point is None else self._recovery_point

    # Hints for recovery are taken here, encoded and written in threads: `take_hints`,
    # `Hints.encode`, `begin_saving`, `Saving.run`, `end_saving`. An OSError there is harmless.

    def take_hints(self) -> Hints | None:
        """What would give recovery a place to begin; None when there is nothing new."""
        if self._queue or self._rolls or self._writing or self.fenced:
            return None
        return self._progress.hints(self._active, self.written.offset, self._producers)

    def begin_saving(self, hints: Hints) -> Saving | None:
        """None when another thread is at the files, or they say more by now."""
        if self._writing or self.fenced or hints.segment is not self._active:
            return None
        self._writing = saving = self._progress.saving(
            self._unsynced, hints, self.segments, self._epochs
        )
        return saving

    def end_saving(self, saving: Saving) -> None:
        if saving.is_done:
            self._progress.saved(saving, self._chain.snapshots)
        self._end_write(saving)

    def condemn(self, corruption: Corruption) -> None:
        """Damage was found in what is synced: no more writes, no reads of the damaged part."""
        known = self.corruption
        self.corruption = corruption if known is None else known.joined(corruption)
        self.fenced = True
        self._reader.forget()

    def position_at(self, offset: int) -> LogPosition:
        """Blocking: of the batch that begins at `offset` or holds it; at the end, `written`."""
        written = self.written
        if offset >= written.offset:
            return written
        place = find_cut(self.segments, self._handles, max(offset, self.start_offset))
        return LogPosition(place.offset, place.segment.base_offset, place.size)

    # ---------------------------------------------------------------------- epochs and producers

    def start_epoch(self, epoch: int) -> None:
        """A leader's epoch begins at the end of the log."""
        self._epochs.assign(LeaderEpoch(epoch), self.end_offset)

    def inherit(self, before: Log, now_ms: int) -> None:
        """This log was opened in the place of another: it waits for all that was refused there."""
        self._producers.inherit(before._producers, self.end_offset, now_ms)

    def _locate_transactions(self) -> None:
        """Blocking: of those that the snapshots tell, where they begin."""
        self._producers.transactions.locate(self.position_at)

    # -------------------------------------------------------------------------------- shortening

    def delete_before(self, offset: int) -> Sequence[Segment]:
        """Moves the start; returns the segments that have left the log, for `set_aside`.

        The caller has made the new start durable in the log-start-offset-checkpoint.
        """
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"{self.directory} ends at {self.end_offset}, before {offset}")
        if offset > self.start_offset:
            self.start_offset = offset
            self._epochs.cut_start(offset)
        gone = self._chain.shed(self.start_offset)
        if gone:
            self._reader.forget()
        return gone

    def set_aside(self, segments: Iterable[Segment]) -> list[str]:
        """Blocking, and fit for a thread: renames their files; returns what is to be removed."""
        site = self._site(now_ms=0)
        return [path for segment in segments for path in site.set_aside(segment)]

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Compaction: in memory, the new one takes the place of these neighbours."""
        self._chain.replace(old, new)
        # Who reads an old segment just now remembers its place in the old reader.
        self._reader = Reader(self._handles)

    def truncate(self, offset: int, now_ms: int) -> None:
        """Blocking: cuts the batch with `offset` and all after it. No sync may be under way.

        The caller has moved the recovery point to the cut or before it, durably: a log that ends
        before its recovery point counts as damaged.
        """
        self._begin_shortening()
        if offset >= self.end_offset:
            # A leader that has written nothing leaves an epoch that begins here.
            self._epochs.cut_end(self.end_offset)
            return
        cut = find_cut(self.segments, self._handles, max(offset, self.start_offset))
        self._shorten(cut, cut_files, now_ms)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Blocking: everything goes, the log is empty and begins at `offset`. No sync is under way.

        The caller has made the new start durable, as for `delete_before`, and the recovery point
        lies at it or before it.
        """
        self._begin_shortening()
        self.start_offset = offset
        # What retention took from the leader meanwhile, nobody will send again.
        self._producers = ProducerState()
        self._epochs.cut_end(0)
        cut = Cut(Segment(self.directory, offset, 0, now_ms), offset, 0)
        self._shorten(cut, clear_files, now_ms)

    def _begin_shortening(self) -> None:
        assert self._writing is None, f"{self.directory}: a thread is at its files"
        self.take_back()
        if self.fenced:
            raise StorageFailed(f"{self.directory} is fenced until it is opened again")

    def _shorten(self, cut: Cut, shorten_files: Shortening, now_ms: int) -> None:
        """What is cut off is promised no more: where the disk fails, `reopen` completes it."""
        site, chain, offset = self._site(now_ms), self._chain, cut.offset
        self.end_offset = offset
        self.cuts += 1
        self.written = self.synced = LogPosition(offset, cut.segment.base_offset, cut.size)
        self._reader.forget()
        self._progress = Progress(self.directory)
        self._epochs.cut_end(offset)
        try:
            shorten_files(site, self._unsynced, chain, cut)
            self._active = cut.segment
            before = self._producers
            self._producers = producers_at(site, chain.segments, chain.snapshots, offset)
            self._producers.inherit(before, offset, now_ms)
            self._locate_transactions()
            self._epochs.save(self._unsynced, self.directory, offset)
            self._unsynced.names_changed()
            self._unsynced.sync(self.written)
        except OSError:
            self.fail_sync()
            raise

    # --------------------------------------------------------------------------------- closing

    def begin_close(self, take: TakeShort | None = None) -> SyncTicket | None:
        """Blocking: writes out all that a clean start needs. Sync the ticket, `finish_close` it."""
        if self._recovery_point is not None:
            return None  # It was damaged when it was opened: there is nothing to write out.
        if self.fenced:
            self.abandon()
            raise StorageFailed(f"{self.directory} is fenced: it needs recovery at the next start")
        self.write()
        state = (self._chain, self.end_offset, self._producers, self._epochs)
        save_for_clean_start(self._unsynced, self.directory, *state, take)
        self._is_closed = True
        return self.begin_sync()

    def finish_close(self, ticket: SyncTicket | None) -> None:
        """The ticket is synced. Of the snapshots only those of a segment's start and end stay."""
        if ticket is not None:
            self.finish_sync(ticket)
        if self.corruption is None:
            disk = self._handles.disk
            remove_needless_snapshots(disk, self.directory, self._chain, self.end_offset)
        self.abandon()

    def close(self) -> None:
        """Blocking: afterwards `open(clean=True)` works. StorageFailed when it does not."""
        if self._is_closed:
            return
        try:
            ticket = self.begin_close()
            if ticket is not None:
                self._unsynced.sync_ticket(ticket)
            self.finish_close(ticket)
        except OSError:
            self.fail_sync()
            self.abandon()
            raise

    def _site(self, now_ms: int) -> Site:
        return Site(self._handles.disk, self._handles, self.directory, self.config, now_ms)

    def abandon(self) -> None:
        """Closes its files as they are: for a log that is to be deleted, or cannot be saved."""
        self.fenced = True
        if self._writing is not None:
            self._writing.is_abandoned = True
            return
        self._unsynced.let_go()
        for segment in self.segments:
            for handle in segment.handles():
                self._handles.drop(handle)
