"""The coordinators' runtime: persists what pure deciders decide.

One runtime serves one partition and one state machine. Records are folded at append, so the next
decision sees them; replies, also those of plain reads, wait until everything that was appended
before them is committed. Who has waited too long for that is told so, and what was decided stands.
A failed append rebuilds the machine from the log, and from a snapshot where the log no longer tells
everything. A record that the machine cannot read is reported and passed over; it keeps its place in
the log, for a version that can. Bytes that the disk has changed are something else: they are not
passed over, and the load is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ottla.broker.storage.partition import Partition
from ottla.broker.storage.waiters import FutureWaiter
from ottla.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotEnoughReplicasAfterAppend,
    OttlaError,
    RequestTimedOut,
    StorageFailed,
    TransactionCoordinatorFenced,
)
from ottla.log.markers import COMMIT, OTHER, read_marker
from ottla.machine import Decision, InTransaction, StateMachine, Ticket, TransactionEnded
from ottla.ports import Clock, Executor
from ottla.types import Now
from ottla.wire.codec import MalformedMessage
from ottla.wire.records import (
    BatchHeader,
    Record,
    crc_matches,
    decode_records,
    encode_batch,
    headers_in,
    read_header,
)
from ottla.wire.schema import Buffer

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=StateMachine[Any])
T = TypeVar("T")

LOAD_CHUNK_BYTES: Final = 4 * 1024 * 1024
LOAD_PAUSE_S: Final = 1.0
# So many of the records that cannot be read are named, the others counted.
UNREADABLE_NAMED_MAX: Final = 10
# What is wrong with a transaction, and not with the log: nothing was appended.
REFUSED: Final = (InvalidProducerEpoch, InvalidTransactionState, TransactionCoordinatorFenced)


class Held(NamedTuple):
    """A decision that waits for its records, or those before it, to be committed."""

    end_offset: int
    replies: list[tuple[Ticket, Any]]
    records: list[Any]
    until_ms: int


class Snapshot(Protocol):
    """Stands for all records before its end offset, in batches of fewer."""

    @property
    def end_offset(self) -> int: ...

    @property
    def batches(self) -> Sequence[Buffer]: ...


class Runtime(Generic[S]):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        io: Executor,
        partition: Partition,
        machine: S,
        on_committed: Callable[[list[Any]], None] | None = None,
        newest_snapshot: Callable[[], Snapshot | None] | None = None,
        wait_ms_max: int | None = None,
        on_snapshot: Callable[[list[Any]], None] | None = None,
        on_loaded: Callable[[], None] | None = None,
    ) -> None:
        """`on_snapshot` is told of records in the place of all that `on_committed` was told."""
        self.machine = machine
        self.partition = partition
        self._loop = loop
        self._clock = clock
        self._io = io
        self._on_committed = on_committed
        self._held: deque[Held] = deque()
        self._wait_ms_max = wait_ms_max
        self._overdue: asyncio.TimerHandle | None = None
        self._newest_snapshot = newest_snapshot
        self._on_snapshot = on_snapshot
        self._on_loaded = on_loaded
        self._published_offset = 0
        # One reads the snapshot at a time, whether to fold it or to tell of it.
        self._snapshot_turn = asyncio.Lock()
        self._has_told_of_a_snapshot = False
        # What the last replay read after its snapshot, and what it could not read.
        self.replayed_bytes = 0
        self.unreadable_records = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._is_loaded = False
        self._is_closed = False
        # Why nothing is decided here; another node may lead.
        self._refusal: OttlaError | None = None
        self._telling: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------- deciding

    def submit(self, decide: Callable[[S, Now, Ticket], Decision[Any]]) -> asyncio.Future[Any]:
        """Runs a decider now; the future has its reply once all it rests on is committed."""
        ticket: asyncio.Future[Any] = self._loop.create_future()
        if not self._is_loaded:
            ticket.set_exception(self._unavailable())
            return ticket
        now = self._clock.now()
        try:
            decision = decide(self.machine, now, ticket)
            self._commit(decision, now)
        except OttlaError as error:
            ticket.set_exception(error)
        self._arm_timer()
        return ticket

    def read(self, look: Callable[[S, Now], T]) -> asyncio.Future[T]:
        """Looks at the state now; the future has the answer once all it rests on is committed."""

        def decide(machine: S, now: Now, ticket: Ticket) -> Decision[Any]:
            return Decision(replies=[(ticket, look(machine, now))])

        return self.submit(decide)

    def _commit(self, decision: Decision[Any], now: Now) -> None:
        records = decision.records
        if records:
            try:
                self._append(records, now)
            except REFUSED as error:
                _fail((ticket for ticket, _ in decision.replies), error)
                return
            except (OttlaError, OSError) as error:
                self._held.append(Held(0, decision.replies, [], 0))
                self.failed(None, error)
                return
        end = self.partition.end_offset
        if end <= self.partition.high_watermark.offset and not self._held:
            self._release(end, decision.replies, records)
            return
        until_ms = now.steady_ms + (self._wait_ms_max or 0)
        self._held.append(Held(end, decision.replies, records, until_ms))
        self.partition.wait_committed(end, self, None)
        self._watch_the_wait()

    def _append(self, records: list[Any], now: Now) -> None:
        first = records[0]
        if isinstance(first, TransactionEnded):
            self.partition.append_marker(
                first.producer_id,
                first.producer_epoch,
                first.coordinator_epoch,
                now.wall_ms,
                is_commit=first.is_commit,
                version=first.version,
            )
        else:
            self._append_batch(records, now)
        for record in records:
            self.machine.apply(record, now.wall_ms)

    def _append_batch(self, records: list[Any], now: Now) -> None:
        encode, first = self.machine.encode, records[0]
        options: dict[str, Any] = {}
        plain = records
        if isinstance(first, InTransaction):
            options = {
                "producer_id": first.producer_id,
                "producer_epoch": first.producer_epoch,
                "is_transactional": True,
            }
            plain = [each.record for each in records]
        batch = encode_batch(
            [Record(position, now.wall_ms, *encode(each)) for position, each in enumerate(plain)],
            **options,
        )
        view = memoryview(batch)
        verification = first.verification if options else None
        self.partition.append_own(view, read_header(view), now.wall_ms, verification)

    def _release(
        self, end_offset: int, replies: Iterable[tuple[Ticket, Any]], records: list[Any]
    ) -> None:
        self._publish(end_offset, records)
        for ticket, reply in replies:
            if isinstance(ticket, asyncio.Future) and not ticket.done():
                if isinstance(reply, Exception):
                    ticket.set_exception(reply)
                else:
                    ticket.set_result(reply)

    def _publish(self, end_offset: int, records: list[Any]) -> None:
        """Tells of committed records, of each once, also when the log is read again."""
        self._published_offset = end_offset
        if records and self._on_committed is not None:
            self._on_committed(records)

    @property
    def published_offset(self) -> int:
        """All committed records before this one were told, and none after it."""
        return self._published_offset

    @property
    def waiting(self) -> int:
        """Decisions that are not committed yet."""
        return len(self._held)

    async def all_committed(self) -> None:
        """Returns when everything that is appended now is committed."""
        waiter = FutureWaiter(self._loop.create_future())
        self.partition.wait_committed(self.partition.end_offset, waiter, None)
        await waiter.future

    # -------------------------------------------------- told by the partition, as a WriteWaiter

    def succeeded(self, item: Any) -> None:
        committed = self.partition.high_watermark.offset
        while self._held and self._held[0][0] <= committed:
            held = self._held.popleft()
            self._release(held.end_offset, held.replies, held.records)

    def _watch_the_wait(self) -> None:
        if self._wait_ms_max is None or self._overdue is not None:
            return
        first = next((held for held in self._held if held.replies), None)
        if first is not None:
            delay_ms = max(0, first.until_ms - self._clock.now().steady_ms)
            self._overdue = self._loop.call_later(delay_ms / 1000, self._fail_overdue)

    def _fail_overdue(self) -> None:
        """The disk takes too long for those who wait; their records may get there all the same."""
        self._overdue = None
        now_ms = self._clock.now().steady_ms
        late = RequestTimedOut(f"{self.partition.name}: not on disk in {self._wait_ms_max} ms")
        for index, held in enumerate(self._held):
            if held.until_ms > now_ms:
                break
            _fail((ticket for ticket, _ in held.replies), late)
            self._held[index] = held._replace(replies=[])
        self._watch_the_wait()

    def failed(self, item: Any, error: Exception) -> None:
        """What the machine believes is not what the log says: forget it, and read the log again."""
        if not self._is_loaded:
            return
        if isinstance(error, NotEnoughReplicasAfterAppend):
            # It is in the log, and committed when enough are in sync again; who waits is told when
            # that takes too long.
            self.partition.wait_committed(self._held[-1].end_offset, self, None)
            return
        logger.error("%s: append failed, the state is rebuilt: %s", self.partition.name, error)
        self._fail_everybody(CoordinatorNotAvailable(str(error)))
        if not self._is_closed:
            self.start_loading()

    # ----------------------------------------------------------------------- leading, following

    def start_leading(self) -> asyncio.Task[None]:
        """Decides once the whole log is committed and read; the task ends then."""
        self._refusal = None
        return self.start_loading()

    def stop_leading(self, refusal: OttlaError) -> None:
        """Another node may decide from now on: what was believed here is forgotten."""
        self._refusal = refusal
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self._fail_everybody(refusal)

    @property
    def is_deciding(self) -> bool:
        return self._is_loaded

    def tell_committed(self) -> asyncio.Task[None] | None:
        """Where another node decides: tells of what is committed by now, of each record once."""
        if self._is_closed or self._published_offset >= self.partition.high_watermark.offset:
            return None
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._tell_until_it_works())
        return self._telling

    async def _tell_until_it_works(self) -> None:
        while True:
            try:
                await self._tell_committed()
            except (OttlaError, OSError) as error:
                logger.warning("%s cannot be read yet: %s", self.partition.name, error)
                await asyncio.sleep(LOAD_PAUSE_S)
            else:
                return

    async def _tell_committed(self) -> None:
        if not self._published_offset or self._published_offset < self.partition.start_offset:
            await self._load_snapshot(fold=False)
        while not self._is_loaded and self._published_offset < self.partition.high_watermark.offset:
            offset = max(self._published_offset, self.partition.start_offset)
            end_offset, records = await self._io.run(self._read_chunk, offset)
            if end_offset == offset:
                break
            # A load may have told of some of them meanwhile.
            news = [record for record, at, _ in records if at >= self._published_offset]
            if end_offset > self._published_offset:
                self._publish(end_offset, news)

    def _fail_everybody(self, error: OttlaError) -> None:
        self._is_loaded = False
        self._stop_timer()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        waiting: list[Ticket] = self.machine.abandon()
        for held in self._held:
            waiting.extend(ticket for ticket, _ in held.replies)
        self._held.clear()
        _fail(waiting, error)

    def _unavailable(self) -> OttlaError:
        if self._is_closed:
            return CoordinatorNotAvailable(f"{self.partition.name} is closed here")
        if self._refusal is not None:
            return type(self._refusal)(*self._refusal.args)
        return CoordinatorLoading(f"{self.partition.name} is being read")

    # --------------------------------------------------------------------------------- loading

    def start_loading(self) -> asyncio.Task[None]:
        """Replays the log into the machine, in the background; the task ends when it is ready."""
        if self._loading is None or self._loading.done():
            self._loading = self._loop.create_task(self._load_until_it_works())
        return self._loading

    async def _load_until_it_works(self) -> None:
        while True:
            try:
                await self.load()
            except (OttlaError, OSError) as error:
                logger.warning("%s cannot be read yet: %s", self.partition.name, error)
                self.machine.abandon()
                await asyncio.sleep(LOAD_PAUSE_S)
            else:
                return

    async def load(self) -> None:
        # After a failed write, what was written before it may still be on its way to the disk.
        await self.all_committed()
        self.unreadable_records = 0
        offset = await self._load_snapshot()
        self.replayed_bytes = 0
        while offset < self.partition.high_watermark.offset:
            end_offset, records = await self._io.run(self._read_chunk, offset)
            if end_offset == offset:
                break  # Compaction, or Kafka's, may have left a hole up to the end.
            self._apply(records)
            news = [record for record, at, _ in records if at >= self._published_offset]
            self._publish(max(end_offset, self._published_offset), news)
            offset = end_offset
        if self.unreadable_records > UNREADABLE_NAMED_MAX:
            logger.error(
                "%s: %d records could not be read", self.partition.name, self.unreadable_records
            )
        if self.partition.is_cold:
            await self.partition.warm_up(self._io.run)
        self.machine.loaded(self._clock.now())
        self._is_loaded = True
        self._arm_timer()
        if self._on_loaded is not None:
            self._on_loaded()

    async def _load_snapshot(self, *, fold: bool = True) -> int:
        """Takes in what the log no longer tells; returns the offset from which on it does."""
        if self._newest_snapshot is None:
            return self.partition.start_offset
        async with self._snapshot_turn:
            start_offset = self.partition.start_offset
            snapshot = await self._io.run(self._newest_snapshot)
            covered_offset = 0 if snapshot is None else snapshot.end_offset
            if covered_offset < start_offset:
                raise StorageFailed(
                    f"{self.partition.name} begins at offset {start_offset}, "
                    "and no snapshot tells what was before"
                )
            if snapshot is None:
                return start_offset
            await self._take_snapshot(snapshot, fold=fold)
        return covered_offset

    async def _take_snapshot(self, snapshot: Snapshot, *, fold: bool) -> None:
        """The first is told of as it is read. One that takes the place of what was told before,
        be it half of the first, is told of as a whole.
        """
        is_first = not self._published_offset and not self._has_told_of_a_snapshot
        is_news = self._published_offset < snapshot.end_offset
        told: list[Any] = []
        for batch in snapshot.batches:
            _, records = await self._io.run(self._decode, batch, 0)
            if fold:
                self._apply(records)
            if is_news and is_first:
                self._has_told_of_a_snapshot = True
                self._publish(self._published_offset, [record for record, _, _ in records])
            elif is_news:
                told += [record for record, _, _ in records]
        if self._published_offset < snapshot.end_offset:
            if told and self._on_snapshot is not None:
                self._on_snapshot(told)
            self._published_offset = snapshot.end_offset

    def _apply(self, records: list[tuple[Any, int, int]]) -> None:
        for record, _, wall_ms in records:
            self.machine.apply(record, wall_ms)

    def _read_chunk(self, offset: int) -> tuple[int, list[tuple[Any, int, int]]]:
        """In a thread: the offset after the next records, and each with its offset and time."""
        data = self.partition.read(offset, LOAD_CHUNK_BYTES, cached_only=False)
        assert data is not None
        self.replayed_bytes += len(data)
        return self._decode(data, offset)

    def _decode(self, data: Buffer, offset: int) -> tuple[int, list[tuple[Any, int, int]]]:
        found: list[tuple[Any, int, int]] = []
        next_offset = offset
        for position, header in headers_in(data):
            if header.is_control:
                marker = self._marker_in(data, position, header)
                if marker is not None and header.base_offset >= offset:
                    found.append((marker, header.base_offset, header.max_timestamp))
            else:
                for record in self._records_in(data, position, header):
                    if record.offset < offset:
                        continue
                    try:
                        decoded = self.machine.decode(record.key, record.value)
                    except (OttlaError, MalformedMessage) as error:
                        self._pass_over(record.offset, 1, error)
                        continue
                    if decoded is not None:
                        if header.is_transactional:
                            identity = (header.producer_id, header.producer_epoch)
                            decoded = InTransaction(*identity, decoded)
                        found.append((decoded, record.offset, record.timestamp))
            next_offset = header.next_offset
        return next_offset, found

    def _marker_in(
        self, data: Buffer, position: int, header: BatchHeader
    ) -> TransactionEnded | None:
        """The end of a transaction; other control batches are none of a machine's business."""
        if not header.is_transactional:
            return None
        marker = read_marker(memoryview(data)[position : position + header.size])
        if marker is None or marker.kind == OTHER:
            return None
        identity = (header.producer_id, header.producer_epoch)
        return TransactionEnded(*identity, marker.kind == COMMIT, marker.coordinator_epoch)

    def _records_in(self, data: Buffer, position: int, header: BatchHeader) -> Sequence[Record]:
        try:
            return decode_records(data, position)
        except CorruptBatch as error:
            if not crc_matches(data, position, header):
                raise
            self._pass_over(header.base_offset, max(1, header.count), error)
            return ()

    def _pass_over(self, offset: int, count: int, error: Exception) -> None:
        if self.unreadable_records < UNREADABLE_NAMED_MAX:
            logger.error(
                "%s: what is at offset %d cannot be read and is passed over: %s",
                self.partition.name,
                offset,
                error,
            )
        self.unreadable_records += count

    # ---------------------------------------------------------------------------------- timers

    def _arm_timer(self) -> None:
        deadline = self.machine.next_deadline_ms()
        if deadline is None or (self._timer is not None and self._timer_at_ms <= deadline):
            return
        self._stop_timer()
        self._timer_at_ms = deadline
        delay_ms = max(0, deadline - self._clock.now().steady_ms)
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_loaded:
            return
        now = self._clock.now()
        self._commit(self.machine.on_deadline(now), now)
        self._arm_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self, reason: OttlaError | None = None) -> None:
        """Whoever waits is told the reason."""
        self._is_closed = True
        for task in (self._loading, self._telling):
            if task is not None:
                task.cancel()
        closed = CoordinatorNotAvailable(f"{self.partition.name} is closed here")
        self._fail_everybody(reason or closed)


def _fail(tickets: Iterable[Ticket], error: OttlaError) -> None:
    for ticket in tickets:
        if isinstance(ticket, asyncio.Future) and not ticket.done():
            ticket.set_exception(error)
