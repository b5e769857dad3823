"""What an inspection says about files: each finding is one line with a place, a fact and advice."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Trouble(StrEnum):
    """The kinds of findings; scripts may rely on these words."""

    CRC = "crc"
    LENGTH = "length"
    ZEROS = "zeros"
    OLD_FORMAT = "old-format"
    HEADER = "header"
    RECORDS = "records"
    ORDER = "order"
    GAP = "gap"
    EPOCH = "epoch"
    TORN = "torn-tail"
    CUT = "unsynced-damage"
    INDEX = "index"
    TIME_INDEX = "time-index"
    TRANSACTION_INDEX = "transaction-index"
    SNAPSHOT = "snapshot"
    METADATA_SNAPSHOT = "metadata-snapshot"
    CHECKPOINT = "checkpoint"
    SHORT_LOG = "short-log"
    MISSING_FRONT = "missing-front"
    TOPIC_ID = "topic-id"
    NOTED = "noted"
    LEFTOVER = "leftover"
    STRAY = "stray"
    GONE = "gone"
    UNREADABLE = "unreadable"


_RESTORE: Final = "Check the disk, then restore the file from a copy; readers can go on after it."
_REBUILT: Final = "Remove the file and restart the broker: it is built anew from the log."

ADVICE: Final[dict[Trouble, str]] = {
    Trouble.CRC: _RESTORE,
    Trouble.LENGTH: _RESTORE,
    Trouble.ZEROS: _RESTORE,
    Trouble.HEADER: _RESTORE,
    Trouble.RECORDS: "The producer wrote it so, or memory failed; consumers must skip this batch.",
    Trouble.OLD_FORMAT: "Let Kafka 3.x copy the topic to a new one; no Ottla reads this format.",
    Trouble.ORDER: _RESTORE,
    Trouble.GAP: "Only compaction may leave gaps. If it never ran here, restore from a copy.",
    Trouble.EPOCH: "Remove leader-epoch-checkpoint and restart the broker: it is built anew.",
    Trouble.TORN: "Nothing to do: the next start of the broker sets it right.",
    Trouble.CUT: "Copy the directory before the broker starts: it would cut the log here.",
    Trouble.INDEX: _REBUILT,
    Trouble.TIME_INDEX: _REBUILT,
    Trouble.TRANSACTION_INDEX: "Remove it and the .index beside it and restart the broker: both "
    "are built anew from the log.",
    Trouble.SNAPSHOT: "Remove the file: producers' states are replayed from the batches.",
    Trouble.METADATA_SNAPSHOT: "The broker passes over it if an older one is there, or all of the "
    "metadata log; otherwise restore it from a copy.",
    Trouble.CHECKPOINT: "Remove the file; the next start then checks every log from its beginning.",
    Trouble.SHORT_LOG: "Messages are lost: restore the partition from a copy.",
    Trouble.MISSING_FRONT: "Messages are lost: restore the missing segments from a copy.",
    Trouble.TOPIC_ID: "Find out which directory is the topic's own before the broker starts.",
    Trouble.NOTED: "Once the log is whole again a restart of the broker takes the note away.",
    Trouble.LEFTOVER: "Nothing to do: the broker removes or completes it.",
    Trouble.STRAY: "`ottla log dump --records` shows its messages; remove it if nobody needs them.",
    Trouble.GONE: "Nothing to do: a running broker deletes what is too old.",
    Trouble.UNREADABLE: "Check the disk and the rights of the file.",
}

# What a running or restarting broker sets right by itself, without anybody losing anything.
_HARMLESS: Final = frozenset({Trouble.TORN, Trouble.NOTED, Trouble.LEFTOVER, Trouble.GONE})


class Finding(NamedTuple):
    trouble: Trouble
    path: str
    what: str
    position: int | None = None
    offset: int | None = None

    @property
    def is_problem(self) -> bool:
        return self.trouble not in _HARMLESS

    @property
    def advice(self) -> str:
        return ADVICE[self.trouble]


class Checked(NamedTuple):
    """A partition, a segment or a snapshot that was looked at as a whole."""

    name: str
    segments: int
    batches: int
    records: int
    size: int
    start_offset: int
    end_offset: int
    problems: int
    notes: int
    problems_not_shown: int = 0
