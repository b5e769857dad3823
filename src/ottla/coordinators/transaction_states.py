"""The states of a transaction, and what leads from one to the next, as tables."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class TransactionState(IntEnum):
    """By Kafka's numbers, which records carry. The last two are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As Kafka's tools call it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class TransactionEvent(Enum):
    INIT = "init"
    ADD = "add"
    COMMIT = "commit"
    ABORT = "abort"
    MARKED = "marked"


class Ending(Enum):
    """What becomes of a request to end a transaction."""

    PREPARE = "prepare"
    ALREADY = "already"
    UNDER_WAY = "under way"
    INVALID = "invalid"


S, E = TransactionState, TransactionEvent

# A transaction without partitions may be aborted from anywhere: its producer cannot know that
# there was none, since it is the produce requests that add them (KIP-890).
NEXT: Final = {
    (S.EMPTY, E.INIT): S.EMPTY,
    (S.COMPLETE_COMMIT, E.INIT): S.EMPTY,
    (S.COMPLETE_ABORT, E.INIT): S.EMPTY,
    (S.EMPTY, E.ADD): S.ONGOING,
    (S.ONGOING, E.ADD): S.ONGOING,
    (S.COMPLETE_COMMIT, E.ADD): S.ONGOING,
    (S.COMPLETE_ABORT, E.ADD): S.ONGOING,
    (S.ONGOING, E.COMMIT): S.PREPARE_COMMIT,
    (S.ONGOING, E.ABORT): S.PREPARE_ABORT,
    (S.EMPTY, E.ABORT): S.PREPARE_ABORT,
    (S.COMPLETE_COMMIT, E.ABORT): S.PREPARE_ABORT,
    (S.COMPLETE_ABORT, E.ABORT): S.PREPARE_ABORT,
    (S.PREPARE_COMMIT, E.MARKED): S.COMPLETE_COMMIT,
    (S.PREPARE_ABORT, E.MARKED): S.COMPLETE_ABORT,
}

# Decided, with markers still to be written.
PREPARED: Final = frozenset({S.PREPARE_COMMIT, S.PREPARE_ABORT})
# Begun and not yet over.
OPEN: Final = PREPARED | {S.ONGOING}
RESTING: Final = frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT})

# By state and whether to commit, for clients whose epoch stays the same from one transaction to
# the next. What is not listed is invalid.
ENDING: Final = {
    (S.ONGOING, True): Ending.PREPARE,
    (S.ONGOING, False): Ending.PREPARE,
    (S.PREPARE_COMMIT, True): Ending.UNDER_WAY,
    (S.PREPARE_ABORT, False): Ending.UNDER_WAY,
    (S.COMPLETE_COMMIT, True): Ending.ALREADY,
    (S.COMPLETE_ABORT, False): Ending.ALREADY,
}

# By state, whether to commit, and whether the request is of the epoch before, so that it was
# answered once already, for clients with an epoch for each transaction (KIP-890). Who has the epoch
# after a decision may be ahead of its markers, and asks again; Kafka 4.0 takes it for fenced.
ENDING_WITH_EPOCHS: Final = {
    (S.EMPTY, False, False): Ending.PREPARE,
    (S.ONGOING, True, False): Ending.PREPARE,
    (S.ONGOING, False, False): Ending.PREPARE,
    (S.PREPARE_COMMIT, True, True): Ending.UNDER_WAY,
    (S.PREPARE_COMMIT, True, False): Ending.UNDER_WAY,
    (S.PREPARE_COMMIT, False, False): Ending.UNDER_WAY,
    (S.PREPARE_ABORT, False, True): Ending.UNDER_WAY,
    (S.PREPARE_ABORT, True, False): Ending.UNDER_WAY,
    (S.PREPARE_ABORT, False, False): Ending.UNDER_WAY,
    (S.COMPLETE_COMMIT, True, True): Ending.ALREADY,
    (S.COMPLETE_COMMIT, False, False): Ending.PREPARE,
    (S.COMPLETE_ABORT, False, True): Ending.ALREADY,
    (S.COMPLETE_ABORT, False, False): Ending.PREPARE,
}

# Here a request is of the transaction's own epoch; elsewhere it may be of the one before.
CURRENT_ONLY: Final = frozenset({S.EMPTY, S.ONGOING})
