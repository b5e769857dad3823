"""What `ottla log dump` makes of records, and the progress line of `verify`."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import log
from ottla.cli.dumping import read_topics
from ottla.cli.main import main
from ottla.cli.opening import decoder_for, open_control, readable
from ottla.cli.read_only import ReadOnlyDisk
from ottla.cluster import framing
from ottla.cluster.snapshot_file import SnapshotId, encode_snapshot
from ottla.coordinators import group_records
from ottla.coordinators.group_records import GroupRecord, OffsetRecord
from ottla.log.inspection.inspection import TopicFacts
from ottla.types import METADATA_TOPIC, OFFSETS_TOPIC
from ottla.wire.codec import encode
from ottla.wire.messages.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    RegisteredVoter,
    Voter,
    VoterEndpoint,
    VotersRecord,
)
from ottla.wire.messages.group_records import OffsetCommitValue
from ottla.wire.messages.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.wire.records import Record, encode_batch

NOW_MS = 1_790_000_000_000
ID = bytes(range(16))
ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"


def control(kind: int, value: bytes) -> dict[str, Any] | None:
    return open_control(Record(0, NOW_MS, struct.pack(">hh", 0, kind), value))


@pytest.mark.parametrize(("kind", "name"), [(0, "ABORT"), (1, "COMMIT")])
def test_the_ends_of_transactions_are_named(kind: int, name: str) -> None:
    assert control(kind, struct.pack(">hi", 0, 7)) == {"is": name, "coordinator_epoch": 7}


def test_the_quorums_records_are_opened() -> None:
    change = LeaderChangeMessage(1, 3, [Voter(3, ID)], [])
    assert control(2, encode(change, 1)) == {
        "is": "LEADER_CHANGE",
        "version": 1,
        "leader_id": 3,
        "voters": [{"voter_id": 3, "voter_directory_id": ID_TEXT}],
        "granting_voters": [],
    }
    version = control(5, encode(KRaftVersionRecord(0, 1), 0))
    assert version == {"is": "KRAFT_VERSION", "version": 0, "k_raft_version": 1}
    feature = KRaftVersionFeature(0, 1)
    voter = RegisteredVoter(3, ID, [VoterEndpoint("C", "host", 9093)], feature)
    voters = control(6, encode(VotersRecord(0, [voter]), 0))
    assert voters is not None
    assert voters["voters"][0]["endpoints"] == [{"name": "C", "host": "host", "port": 9093}]


def test_control_records_that_nobody_knows_are_shown_by_their_number() -> None:
    assert control(99, b"") == {"is": "CONTROL_99"}
    assert open_control(Record(0, NOW_MS, b"", b"")) is None
    broken = control(2, b"\x00\x00\xff")
    assert broken is not None
    assert "unreadable" in broken


def test_metadata_records_are_opened_and_foreign_ones_named() -> None:
    opened = decoder_for(METADATA_TOPIC)
    assert opened is not None
    topic = framing.encode_record(TopicRecord("orders", ID))
    assert opened(Record(0, NOW_MS, None, topic)) == {
        "is": "TopicRecord",
        "name": "orders",
        "topic_id": ID_TEXT,
    }
    change = opened(Record(0, NOW_MS, None, framing.encode_record(PartitionChangeRecord(1, ID))))
    assert change is not None
    assert change["directories"] is None
    assert opened(Record(0, NOW_MS, None, bytes([1, 28, 0]))) == {"is": "ClearElrRecord"}
    wrong = opened(Record(0, NOW_MS, None, b"\x09\x09"))
    assert wrong is not None
    assert "unreadable" in wrong


def test_group_records_are_opened() -> None:
    opened = decoder_for(OFFSETS_TOPIC)
    assert opened is not None

    def row(record: GroupRecord | OffsetRecord) -> dict[str, Any] | None:
        return opened(Record(0, NOW_MS, *group_records.encode_record(record)))

    commit = row(OffsetRecord("g", "t", 1, OffsetCommitValue(5, 0, "m", NOW_MS)))
    assert commit is not None
    assert (commit["is"], commit["group"], commit["offset"]) == ("offset", "g", 5)
    assert row(GroupRecord("g", None)) == {"is": "group", "group": "g", "deleted": True}
    assert opened(Record(0, NOW_MS, b"\x00\x63", b"x")) is None


def test_bytes_are_text_or_digits() -> None:
    assert readable(None) is None
    assert readable("grün".encode()) == "grün"
    assert readable(b"line\nend") == {"hex": b"line\nend".hex()}
    assert readable(b"\xff\x00") == {"hex": "ff00"}


def test_which_topics_are_compacted_is_read_from_snapshot_and_log(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    first, second, gone = ID, bytes(16), bytes(15) + b"\x09"
    id = SnapshotId(10, 1)
    snapshot = [TopicRecord("a", first), ConfigRecord(2, "a", "cleanup.policy", "compact,delete")]
    batches = b"".join(encode_snapshot(id, snapshot, NOW_MS, NOW_MS))
    (directory / f"{id}.checkpoint").write_bytes(batches)
    before = [TopicRecord("stale", gone)]
    after = [TopicRecord("b", second), TopicRecord("c", gone), RemoveTopicRecord(gone)]
    data = bytearray()
    for base, records in ((8, before), (10, after)):
        values = [framing.encode_record(record) for record in records]
        rows = [Record(base + at, NOW_MS, None, value) for at, value in enumerate(values)]
        data += encode_batch(rows, base_offset=base)
    (directory / f"{8:020d}.log").write_bytes(data)
    assert read_topics(ReadOnlyDisk(), str(tmp_path)) == {
        "a": TopicFacts(first, is_compacted=True),
        "b": TopicFacts(second, is_compacted=False),
    }
    assert read_topics(ReadOnlyDisk(), str(tmp_path / "elsewhere")) is None


def test_long_work_shows_its_progress_to_a_person_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    batch = encode_batch([Record(0, NOW_MS, None, b"x")])
    (partition / f"{0:020d}.log").write_bytes(batch)
    monkeypatch.setattr(log, "PROGRESS_EVERY_S", 0.0)
    assert main(["log", "verify", str(partition)]) == 0
    assert capsys.readouterr().err == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["log", "verify", str(partition)]) == 0
    assert "100 %" in terminal.getvalue()
    assert "t-0" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
