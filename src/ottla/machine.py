"""What a coordinator is to the runtime that persists for it.

A machine is a fold over the records of one partition, with deciders on top. A decider looks at the
state and returns a `Decision`; it never changes durable state itself. The runtime

1. appends the decision's records as ONE batch (all or none) and calls `apply` for each, at append,
   so that the next decision sees them;
2. releases the decision's replies when everything appended so far is committed, also when the
   decision has no records: what a reply tells may rest on records that are still on their way;
3. asks `next_deadline_ms` after each decision and calls `on_deadline` when that moment has come
   (late is fine, early does nothing).

A ticket that a decision does not answer is parked inside the machine; a later decision (another
request's, or `on_deadline`'s) answers it. Every ticket is answered exactly once.

When an append fails, or leadership goes, what the machine believes is not what the log says. Then
the runtime calls `abandon`, fails the tickets it returns and those of all unreleased replies with a
retriable error (CoordinatorNotAvailable, NotCoordinator), and, to go on, replays the log into the
same machine: `apply` for each committed record, then `loaded`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.types import Now

R = TypeVar("R")

# Opaque, hashable, unique per waiting request; the runtime passes the future of the reply.
Ticket: TypeAlias = object


class InTransaction(NamedTuple, Generic[R]):
    """A record that counts only if its producer's transaction is committed.

    A decision's records are all of one transaction, or of none.
    """

    producer_id: int
    producer_epoch: int
    record: R
    # What the partition has to be shown where the transaction begins with this record.
    verification: Any = None


class TransactionEnded(NamedTuple):
    """A marker: what its producer has in the log without one counts now, or never will."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int = -1
    # Of transactions, as its coordinator keeps to it.
    version: int = 0


@dataclass(slots=True)
class Decision(Generic[R]):
    """What to write, and whom to tell what once it is committed."""

    records: list[R] = field(default_factory=list)
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)


class StateMachine(Protocol[R]):
    def encode(self, record: R) -> tuple[bytes | None, bytes | None]:
        """The record's key and value; a value of None is a tombstone."""

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """The record, or None for a kind that this version does not know, which is skipped.

        A record of a known kind that cannot be read raises OttlaError or MalformedMessage; it is
        reported, and then skipped as well.
        """

    def apply(self, record: R, wall_ms: int) -> None:
        """Folds one record into the state: at append, and at replay."""

    def loaded(self, now: Now) -> None:
        """The replay is over: arms the timers of what was found."""

    def next_deadline_ms(self) -> int | None:
        """The steady time at which `on_deadline` has something to do, if any."""

    def on_deadline(self, now: Now) -> Decision[R]:
        """Does what is due, perhaps only a part of it; `next_deadline_ms` then says so."""

    def abandon(self) -> list[Ticket]:
        """Forgets everything, as if newly built, and hands back the tickets that were parked."""
