"""The states of a batch on its way to the disk and to its consumers, and the rules between them.

| state     | what it means                                             | next                     |
|-----------|-----------------------------------------------------------|--------------------------|
| QUEUED    | has its offsets; is written when the loop turn ends       | WRITTEN FAILED FENCED    |
| WRITTEN   | the operating system has it; a power cut may take it      | SYNCING COMMITTED FENCED |
| SYNCING   | a sync is under way that covers it                        | SYNCED FENCED            |
| SYNCED    | a power cut does not take it; other replicas may lack it  | COMMITTED                |
| COMMITTED | before the high watermark: consumers see it, and acks=all | (none)                   |
|           | is answered                                               |                          |
| FAILED    | the disk refused it, or a follower cut it off: others get | (none)                   |
|           | its offsets                                               |                          |
| FENCED    | a sync failed: nobody knows whether it is on disk         | FAILED                   |

From WRITTEN to COMMITTED without a sync goes only what is written with `write.caching`. What is
FENCED fails when the log is opened again, cut where it was synced. Whatever is not COMMITTED may
also be cut off by a follower whose leader does not have it. Between the states stand the marks of
the log, in this order, which no step may break:

    high watermark ≤ synced (written, with write.caching) ≤ written ≤ end
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class WriteState(Enum):
    QUEUED = auto()
    WRITTEN = auto()
    SYNCING = auto()
    SYNCED = auto()
    COMMITTED = auto()
    FAILED = auto()
    FENCED = auto()


NEXT: Final[Mapping[WriteState, frozenset[WriteState]]] = {
    WriteState.QUEUED: frozenset({WriteState.WRITTEN, WriteState.FAILED, WriteState.FENCED}),
    WriteState.WRITTEN: frozenset({WriteState.SYNCING, WriteState.COMMITTED, WriteState.FENCED}),
    WriteState.SYNCING: frozenset({WriteState.SYNCED, WriteState.FENCED}),
    WriteState.SYNCED: frozenset({WriteState.COMMITTED}),
    WriteState.COMMITTED: frozenset(),
    WriteState.FAILED: frozenset(),
    WriteState.FENCED: frozenset({WriteState.FAILED}),
}
