"""Looking through the files of one partition without believing any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from ottla.errors import CorruptBatch, StorageFailed
from ottla.log import epochs
from ottla.log.checkpoints import parse_lines
from ottla.log.corruption import NOTE
from ottla.log.inspection.findings import Checked, Finding, Trouble
from ottla.log.inspection.index_check import (
    TRANSACTION_ENTRY,
    IndexCheck,
    OffsetIndexCheck,
    TimeIndexCheck,
    entries_of,
)
from ottla.log.inspection.walk import Piece, ReadableDisk, walk
from ottla.log.producer_state import CorruptSnapshot, snapshot_rows
from ottla.log.scan import OFFSET_DELTA_MAX
from ottla.log.segment import LOG, OFFSET_INDEX, SNAPSHOT, SWAP, TIME_INDEX, path_of
from ottla.types import NO_EPOCH
from ottla.wire.records import BatchHeader, decode_records

TRANSACTION_INDEX: Final = ".txnindex"
METADATA_SNAPSHOT: Final = ".checkpoint"
SEGMENT_FILE: Final = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)")
METADATA_SNAPSHOT_FILE: Final = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
LEFTOVER_FILE: Final = re.compile(r".*\.(deleted|cleaned|swap|tmp|part)")
FINDINGS_MAX: Final = 100


@dataclass(slots=True)
class PartitionFacts:
    """What is known about a partition from beside its directory."""

    is_clean: bool = True
    recovery_point: int = 0
    start_offset: int | None = None
    high_watermark: int | None = None
    may_have_gaps: bool = False
    # Ours: the log start is durable before any file goes, so files may not begin after it. It is
    # asked once more before that is said: a running broker deletes old segments meanwhile.
    has_durable_start: bool = False
    start_now: Callable[[], int] = lambda: 0
    # Ours: how long the logs were that a clean stop left.
    left_bytes: int | None = None


@dataclass(slots=True)
class _Damage:
    """Bytes that are no batch; told when it is known what follows them."""

    finding: Finding
    size: int
    intact_after: int = 0
    last_offset_after: int = -1


@dataclass(slots=True)
class PartitionCheck:
    """One walk over a partition, or over one segment of it. Findings come as they are made."""

    disk: ReadableDisk
    directory: str
    name: str
    facts: PartitionFacts
    on_bytes: Callable[[int], None]
    is_deep: bool = False
    only_base: int | None = None
    _segments: int = 0
    _batches: int = 0
    _records: int = 0
    _size: int = 0
    _start: int = 0
    _end: int = 0
    _latest_epoch: int = NO_EPOCH
    _epochs: list[tuple[int, int]] = field(default_factory=list)
    _gaps: list[Finding] = field(default_factory=list)
    _damage: _Damage | None = None
    _torn: _Damage | None = None
    _is_after_damage: bool = False
    _is_compacted: bool = False
    _is_being_swapped: bool = False
    _problems: int = 0
    _notes: int = 0
    _problems_not_shown: int = 0

    def run(self) -> Iterator[Finding | Checked]:
        for finding in self._findings():
            if finding.is_problem:
                self._problems += 1
            else:
                self._notes += 1
            if self._problems + self._notes <= FINDINGS_MAX:
                yield finding
            else:
                self._problems_not_shown += finding.is_problem
        yield Checked(
            self.name,
            self._segments,
            self._batches,
            self._records,
            self._size,
            self._start,
            self._end,
            self._problems,
            self._notes,
            self._problems_not_shown,
        )

    def _findings(self) -> Iterator[Finding]:
        try:
            names = self.disk.list(self.directory)
        except FileNotFoundError:
            yield Finding(Trouble.GONE, self.directory, "the directory went while it was read")
            return
        except OSError as error:
            yield Finding(Trouble.UNREADABLE, self.directory, str(error.strerror))
            return
        bases = sorted(int(n[:20]) for n in names if SEGMENT_FILE.fullmatch(n) and n.endswith(LOG))
        if self.only_base is None:
            yield from self._check_names(names)
        yield from self._load_epochs()
        self._start = self._end = bases[0] if bases else max(0, self.facts.start_offset or 0)
        if self.only_base is not None:
            self._start = self._end = self.only_base
        for base in bases:
            if self.only_base in (None, base):
                yield from self._check_segment(base, is_last=base == bases[-1])
        yield from self._tell_damage(None)
        if not (self.facts.may_have_gaps or self._is_compacted):
            yield from self._gaps
        yield from self._tell_torn()
        if self.only_base is None:
            yield from self._check_against_checkpoints(bases)
        for name in names:
            if name.endswith(SNAPSHOT) and self.only_base in (None, int(name[:20])):
                yield from self._check_snapshot(name)
            elif METADATA_SNAPSHOT_FILE.fullmatch(name) and self.only_base is None:
                yield from check_metadata_snapshot(self.disk, f"{self.directory}/{name}")

    def _check_names(self, names: list[str]) -> Iterator[Finding]:
        # Compaction's new segment has not got its name yet; the old ones may have lost theirs.
        self._is_being_swapped = any(name.endswith(f"{LOG}{SWAP}") for name in names)
        leftovers = [name for name in names if LEFTOVER_FILE.fullmatch(name)]
        if leftovers:
            what = (
                f"{len(leftovers)} files of work under way or given up, {leftovers[0]} among them"
            )
            yield Finding(Trouble.LEFTOVER, self.directory, what)
        if NOTE in names:
            what = "the broker has found damage in this log and fenced it"
            yield Finding(Trouble.NOTED, f"{self.directory}/{NOTE}", what)

    # -------------------------------------------------------------------------------- segments

    def _check_segment(self, base: int, *, is_last: bool) -> Iterator[Finding]:
        path = path_of(self.directory, base, LOG)
        try:
            file = self.disk.open(path)
        except FileNotFoundError:
            yield Finding(Trouble.GONE, path, "the segment went while its log was read")
            self._end = max(self._end, base)
            self._is_after_damage = True
            return
        except OSError as error:
            yield Finding(Trouble.UNREADABLE, path, str(error.strerror), offset=base)
            self._is_after_damage = True
            return
        try:
            size = file.size()
            yield from self._tell_damage(base)
            yield from self._check_base(path, base)
            indexes = list(self._open_indexes(base, size, is_last=is_last))
            for piece in walk(file.read, size, base):
                self.on_bytes(piece.size)
                yield from self._take(path, base, piece, indexes)
        except OSError as error:
            yield Finding(Trouble.UNREADABLE, path, str(error.strerror), offset=self._end)
            self._is_after_damage = True
            return
        finally:
            file.close()
        self._segments += 1
        self._size += size
        for check in indexes:
            check.finish(size, self._end - 1)
        findings = [finding for check in indexes for finding in check.findings]
        if self._is_unsynced():
            # Not synced either, and built anew by recovery.
            findings = [finding._replace(trouble=Trouble.TORN) for finding in findings]
        if findings and not is_last and self._was_replaced(path, size):
            yield Finding(Trouble.GONE, path, "the segment was replaced while it was read")
            return
        yield from findings

    def _was_replaced(self, path: str, size: int) -> bool:
        """Compaction puts another file in its place, and other indexes beside it."""
        try:
            file = self.disk.open(path)
        except FileNotFoundError:
            return True
        try:
            return file.size() != size
        finally:
            file.close()

    def _check_base(self, path: str, base: int) -> Iterator[Finding]:
        if self._torn is not None:
            return
        if base < self._end:
            what = f"the segment begins at {base}, the one before it ends with {self._end - 1}"
            yield Finding(Trouble.ORDER, path, what, 0, base)
        elif base > self._end and self._segments and not self._is_after_damage:
            if self._is_unsynced() and not self.facts.may_have_gaps:
                # The end of a segment may be lost while the next one is on the disk already.
                self._torn = _Damage(self._gap(path, 0, base), 0)
                return
            self._gaps.append(self._gap(path, 0, base))
        self._end = max(self._end, base)

    def _open_indexes(self, base: int, size: int, *, is_last: bool) -> Iterator[IndexCheck]:
        for suffix, kind in ((OFFSET_INDEX, OffsetIndexCheck), (TIME_INDEX, TimeIndexCheck)):
            path = path_of(self.directory, base, suffix)
            try:
                yield kind(path, self.disk.read_file(path), base, is_last=is_last)
            except FileNotFoundError:
                # While a segment is written to, its indexes are in the broker's memory.
                if not is_last and size and self.disk.exists(path_of(self.directory, base, LOG)):
                    missing = kind(path, b"", base, is_last=True)
                    missing.findings.append(Finding(kind.trouble, path, "the file is missing"))
                    yield missing
        path = path_of(self.directory, base, TRANSACTION_INDEX)
        if self.disk.exists(path):
            yield _TransactionIndexCheck(path, self.disk.read_file(path), base, is_last=is_last)

    def _take(
        self, path: str, base: int, piece: Piece, indexes: list[IndexCheck]
    ) -> Iterator[Finding]:
        header = piece.header
        is_damage = piece.trouble is not None or header is None
        if is_damage or self._torn is not None:
            for check in indexes:
                check.skip(piece.position, piece.size)
        if is_damage or header is None:
            self._add_damage(path, piece)
            return
        if self._torn is not None:
            self._torn.intact_after += 1
            self._torn.last_offset_after = header.last_offset
            self._torn.size += piece.size
            return
        yield from self._tell_damage(header.base_offset)
        yield from self._check_header(path, base, piece.position, header)
        if self.is_deep:
            yield from self._open_batch(path, piece)
        for check in indexes:
            check.take(piece.position, header)
        self._batches += 1
        self._records += header.count
        # Even when it goes back: one batch that lies about its offsets is told of once.
        self._end = header.next_offset
        self._is_after_damage = False

    def _check_header(
        self, path: str, base: int, position: int, header: BatchHeader
    ) -> Iterator[Finding]:
        first, offsets = header.base_offset, header.last_offset_delta + 1
        if first < self._end:
            what = f"offsets {first} to {header.last_offset} come after {self._end - 1}"
            yield Finding(Trouble.ORDER, path, what, position, first)
        elif first > self._end and not self._is_after_damage:
            self._gaps.append(self._gap(path, position, first))
        if header.last_offset - base > OFFSET_DELTA_MAX:
            what = f"offset {header.last_offset} is too far from the segment's {base}"
            yield Finding(Trouble.ORDER, path, what, position, first)
        if not 0 <= header.count <= offsets:
            what = f"{header.count} records in a batch of {offsets} offsets"
            yield Finding(Trouble.HEADER, path, what, position, first)
        elif header.count < offsets:
            self._is_compacted = True
        yield from self._check_epoch(path, position, header)

    def _open_batch(self, path: str, piece: Piece) -> Iterator[Finding]:
        assert piece.header is not None
        try:
            data = piece.data
            if len(data) < piece.size:
                file = self.disk.open(path)
                try:
                    data = memoryview(file.read(piece.size, piece.position))
                finally:
                    file.close()
            decode_records(data)
        except CorruptBatch as error:
            what = f"the batch is as it was written, but cannot be opened: {error}"
            offset = piece.header.base_offset
            yield Finding(Trouble.RECORDS, path, what, piece.position, offset)

    # ---------------------------------------------------------------------------------- damage

    def _gap(self, path: str, position: int, next_offset: int) -> Finding:
        what = f"offsets {self._end} to {next_offset - 1} are not there"
        return Finding(Trouble.GAP, path, what, position, self._end)

    def _add_damage(self, path: str, piece: Piece) -> None:
        if self._torn is not None:
            self._torn.size += piece.size
            return
        trouble = piece.trouble or Trouble.HEADER
        if self._damage is not None:
            # Damage right after damage: one finding tells of both.
            self._damage.size += piece.size
            return
        finding = Finding(trouble, path, piece.what, piece.position, self._end)
        damage = _Damage(finding, piece.size)
        if self._is_unsynced() and trouble is not Trouble.OLD_FORMAT:
            self._torn = damage
        else:
            self._damage = damage

    def _is_unsynced(self) -> bool:
        return not self.facts.is_clean and self._end >= self.facts.recovery_point

    def _tell_damage(self, next_offset: int | None) -> Iterator[Finding]:
        """`next_offset` is where the log goes on; None at its end."""
        damage, self._damage = self._damage, None
        if damage is None:
            return
        self._is_after_damage = True
        what = f"{damage.finding.what} ({damage.size} bytes)"
        if next_offset is not None and next_offset > self._end:
            what += f"; offsets {self._end} to {next_offset - 1} cannot be read"
        elif next_offset is None:
            what += f"; nothing from offset {self._end} on can be read"
        yield damage.finding._replace(what=what)

    def _tell_torn(self) -> Iterator[Finding]:
        torn = self._torn
        if torn is None:
            return
        where = f"after the recovery point {self.facts.recovery_point}"
        if not torn.intact_after:
            what = f"a torn tail of {torn.size} bytes {where}: {torn.finding.what}"
            yield torn.finding._replace(trouble=Trouble.TORN, what=what)
            return
        what = (
            f"damage {where}: {torn.finding.what}; {torn.intact_after} intact batches up to "
            f"offset {torn.last_offset_after} follow"
        )
        yield torn.finding._replace(trouble=Trouble.CUT, what=what)

    # ------------------------------------------------------------------------- what lies beside

    def _load_epochs(self) -> Iterator[Finding]:
        path = f"{self.directory}/{epochs.FILE_NAME}"
        try:
            lines = parse_lines(self.disk, path, field_count=2)
        except StorageFailed as error:
            trouble = Trouble.EPOCH if self.facts.is_clean else Trouble.TORN
            yield Finding(trouble, path, str(error).removeprefix(f"{path}: "))
            return
        entries = [(int(epoch), int(offset)) for epoch, offset in lines]
        for before, entry in pairwise(entries):
            if entry[0] <= before[0] or entry[1] < before[1]:
                what = f"(epoch {entry[0]}, offset {entry[1]}) comes after {before}"
                yield Finding(Trouble.EPOCH, path, what, offset=entry[1])
                return
        self._epochs = entries

    def _check_epoch(self, path: str, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Only where an epoch begins: all its batches would say the same."""
        epoch = header.leader_epoch
        if epoch == self._latest_epoch or epoch == NO_EPOCH:
            return
        before, self._latest_epoch = self._latest_epoch, epoch
        if epoch < before:
            what = f"a batch of leader epoch {epoch} comes after one of {before}"
            yield Finding(Trouble.ORDER, path, what, position, header.base_offset)
            return
        # The file knows an epoch no earlier than at the next roll or stop.
        if not self._epochs or epoch > self._epochs[-1][0]:
            return
        if header.base_offset < self._epochs[0][1]:
            return
        known = max(entry for entry in self._epochs if entry[1] <= header.base_offset)
        if known[0] != epoch:
            what = (
                f"leader-epoch-checkpoint says epoch {known[0]} from offset {known[1]} on, "
                f"a batch at {header.base_offset} says {epoch}"
            )
            yield Finding(Trouble.EPOCH, path, what, position, header.base_offset)

    def _check_snapshot(self, name: str) -> Iterator[Finding]:
        path, offset = f"{self.directory}/{name}", int(name[:20])
        try:
            rows = list(snapshot_rows(self.disk.read_file(path)))
        except FileNotFoundError:
            return
        except CorruptSnapshot as error:
            is_new = not self.facts.is_clean and offset >= self.facts.recovery_point
            trouble = Trouble.TORN if is_new else Trouble.SNAPSHOT
            yield Finding(trouble, path, f"it cannot be believed: {error}", offset=offset)
            return
        for row in rows:
            if row[3] >= offset:
                what = f"producer {row[0]} wrote offset {row[3]}, after the snapshot's {offset}"
                yield Finding(Trouble.SNAPSHOT, path, what, offset=offset)
                return

    def _check_against_checkpoints(self, bases: list[int]) -> Iterator[Finding]:
        facts = self.facts
        synced = max(facts.recovery_point, facts.start_offset or 0)
        if self._end < synced:
            what = f"the log ends at offset {self._end}, but was synced up to {synced}"
            yield Finding(Trouble.SHORT_LOG, self.directory, what, offset=self._end)
        elif facts.high_watermark is not None and self._end < facts.high_watermark:
            committed = facts.high_watermark
            what = f"the log ends at offset {self._end}, but was committed up to {committed}"
            yield Finding(Trouble.SHORT_LOG, self.directory, what, offset=self._end)
        elif facts.is_clean and facts.left_bytes not in (None, self._size):
            what = f"a clean stop left {facts.left_bytes} bytes of log, there are {self._size}"
            yield Finding(Trouble.SHORT_LOG, self.directory, what, offset=self._end)
        if facts.start_offset is not None and bases:
            is_missing = facts.has_durable_start and bases[0] > facts.start_offset
            if is_missing and not self._is_being_swapped and bases[0] > facts.start_now():
                what = f"files begin at offset {bases[0]}, the log at {facts.start_offset}"
                yield Finding(Trouble.MISSING_FRONT, self.directory, what, offset=bases[0])
            self._start = max(self._start, facts.start_offset)
        if self._epochs and self._epochs[-1][1] > self._end and facts.is_clean:
            path = f"{self.directory}/{epochs.FILE_NAME}"
            what = f"an epoch begins at {self._epochs[-1][1]}, the log ends at {self._end}"
            yield Finding(Trouble.EPOCH, path, what, offset=self._epochs[-1][1])


class _TransactionIndexCheck(IndexCheck):
    """Kafka's aborted transactions of a segment; only its form is checked."""

    trouble = Trouble.TRANSACTION_INDEX
    entry = TRANSACTION_ENTRY

    def _check_form(self, file_bytes: int) -> None:
        if file_bytes % self.entry.size and not self.is_last:
            self._tell(len(self.entries), f"{file_bytes} bytes are no whole number of entries")
        for at, (version, producer_id, first, last, _) in enumerate(self.entries):
            if version != 0 or first > last:
                self._tell(at, f"producer {producer_id}, version {version}, {first} to {last}")
                return

    def take(self, position: int, header: BatchHeader) -> None: ...

    def skip(self, position: int, size: int) -> None: ...

    def finish(self, size: int, last_offset: int) -> None: ...


def check_metadata_snapshot(disk: ReadableDisk, path: str) -> Iterator[Finding]:
    """A snapshot of the metadata image (KIP-630): batches between a header and a footer."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    is_closed, end, position = False, 0, 0
    try:
        for piece in walk(file.read, file.size(), 0):
            position, header = piece.position, piece.header
            if piece.trouble is not None or header is None:
                yield Finding(Trouble.METADATA_SNAPSHOT, path, piece.what, position, end)
                return
            if header.base_offset != end:
                what = f"offset {header.base_offset} follows {end - 1}"
                yield Finding(Trouble.METADATA_SNAPSHOT, path, what, position, end)
            end, is_closed = header.next_offset, header.is_control and end > 0
    finally:
        file.close()
    if not is_closed:
        yield Finding(
            Trouble.METADATA_SNAPSHOT, path, "it has no footer: it was not finished", position
        )


__all__ = [
    "METADATA_SNAPSHOT",
    "PartitionCheck",
    "PartitionFacts",
    "check_metadata_snapshot",
    "entries_of",
]
