"""Upserts: of the rows of a key the newest stays, whatever comes late, in every kind of table.

Stories are told with messages: (id, v, seconds, partition, offset), where v is null in tombstones.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.pipelines.language.model import CurrentTableSink, JdbcSink, TableSink, TopicSource
from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.sinks import current_table, jdbc
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.kinds import sink_problems
from spark.kit.flows import PLACE, pipeline_of
from spark.kit.postgres import PASSWORD, USER, Postgres

NUMBERS = itertools.count()

Message: TypeAlias = tuple[int, str | None, int, int, int]
Rows: TypeAlias = list[tuple[Any, ...]]
MESSAGE = "id int, v string, seconds int, _partition int, _offset long"


class Table:
    """A table of one kind, which takes batches of messages."""

    def __init__(self, spark: SparkSession, sink: TableSink, rows: Callable[[str], Rows]) -> None:
        self.sink = sink
        self._spark = spark
        self._rows = rows
        self._numbers = itertools.count()

    def put(self, *messages: Message) -> list[str]:
        """What the table holds after the batch, as `id v`."""
        self.merge(messages_frame(self._spark, messages))
        return [f"{id} {v}" for id, v in self.rows("id, v")]

    def merge(self, frame: DataFrame) -> None:
        batch = Batch.of_stream("a-query", next(self._numbers))
        if isinstance(self.sink, CurrentTableSink):
            current_table.merge(frame, self.sink, batch)
        else:
            assert isinstance(self.sink, JdbcSink)
            jdbc.write(frame, pipeline_of(self.sink), self.sink, batch)

    def rows(self, columns: str) -> Rows:
        """Sorted."""
        return self._rows(columns)

    def having(self, **more: Any) -> Table:
        """The same table with other settings."""
        other = Table(self._spark, replace(self.sink, **more), self._rows)
        other._numbers = self._numbers
        return other


def messages_frame(spark: SparkSession, messages: Iterable[Message]) -> DataFrame:
    frame = spark.createDataFrame(list(messages), MESSAGE)
    time = "timestamp_seconds(seconds) AS _timestamp"
    return frame.selectExpr("id", "v", time, "_partition", "_offset", "v IS NULL AS _tombstone")


MakeTable: TypeAlias = Callable[..., Table]


@pytest.fixture(params=["current table", "PostgreSQL"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> MakeTable:
    """Makes a table that nobody has used; `columns` are those of the database."""

    def make(columns: str = "id int, v text, PRIMARY KEY (id)", **more: Any) -> Table:
        name = f"upserted_{next(NUMBERS)}"
        named = {"name": f"sink_{name}", "place": PLACE, "input": "v", "mode": "upsert"}
        more = {"keys": ("id",), **named, **more}
        if request.param == "current table":
            path = tmp_path / name

            def read(columns: str) -> Rows:
                found = pq.read_table(path / "current").to_pylist()
                return sorted(tuple(row[one] for one in columns.split(", ")) for row in found)

            return Table(spark, CurrentTableSink(**more, path=str(path)), read)
        postgres: Postgres = request.getfixturevalue("postgres")
        postgres.rows(f"CREATE TABLE {name} ({columns})")

        def ask(columns: str) -> Rows:
            lines = postgres.rows(f"SELECT {columns} FROM {name}")
            return sorted(tuple(map(_value, line.split("|"))) for line in lines)

        login = {"url": postgres.url, "user": USER, "password": PASSWORD}
        return Table(spark, JdbcSink(**more, **login, table=name), ask)

    return make


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else text or None


# ------------------------------------------------------------------------- the place in the topic


AGAIN = ((1, "a", 60, 0, 1), (1, "b", 50, 0, 2), (2, "c", 1, 0, 3), (2, None, 2, 1, 1))

# Batch by batch: what comes, and what the table holds then.
STORIES: dict[str, list[tuple[Sequence[Message], list[str]]]] = {
    # A key moves when a topic grows partitions, or when producers choose them differently.
    "of two partitions the later row stays, whatever the offsets": [
        ([(1, "old", 10, 0, 500), (1, "new", 20, 1, 3), (2, "b", 10, 0, 501)], ["1 new", "2 b"]),
        ([(1, "late", 15, 2, 900), (2, "c", 5, 0, 502)], ["1 new", "2 c"]),
    ],
    "within a partition the offset counts, whatever the clocks say": [
        ([(1, "first", 50, 0, 1), (1, "second", 40, 0, 2)], ["1 second"]),
        ([(1, "third", 30, 0, 3)], ["1 third"]),
        # Not later than the row which the third one has replaced.
        ([(1, "elsewhere", 45, 1, 9)], ["1 third"]),
        ([(1, "fourth", 20, 0, 4), (1, "elsewhere", 48, 1, 10)], ["1 fourth"]),
        ([(1, "elsewhere", 51, 1, 11)], ["1 elsewhere"]),
    ],
    # The first offsets were not read the first time.
    "a topic that is read again changes nothing": [
        (messages, ["1 b"]) for messages in (AGAIN[1:], AGAIN[:1], AGAIN, AGAIN[1:2], AGAIN[2:3])
    ],
    "a removed key does not come back with a row that is older": [
        ([(1, None, 30, 0, 8), (1, "older", 20, 1, 9), (2, "b", 1, 0, 9)], ["2 b"]),
        ([(1, "older still", 10, 1, 10), (2, None, 40, 1, 11)], []),
        ([(1, "late", 29, 1, 12), (2, "late", 39, 0, 10)], []),
        ([(1, "anew", 31, 1, 13)], ["1 anew"]),
    ],
}
KEYS_OF_A_STORY = 10


def test_the_newest_row_of_a_key_stays(table: MakeTable) -> None:
    """All stories side by side, each with keys of its own: a batch is what takes time."""
    there = table()
    held: dict[str, list[str]] = {name: [] for name in STORIES}
    for at in range(max(map(len, STORIES.values()))):
        batch: list[Message] = []
        for number, (name, steps) in enumerate(STORIES.items()):
            if at < len(steps):
                messages, held[name] = steps[at]
                batch += [(number * KEYS_OF_A_STORY + key, *rest) for key, *rest in messages]
        found: dict[str, list[str]] = {name: [] for name in STORIES}
        for row in there.put(*batch):
            key, v = row.split(" ", 1)
            number, own = divmod(int(key), KEYS_OF_A_STORY)
            found[list(STORIES)[number]].append(f"{own} {v}")
        assert found == held, f"after batch {at}"


# -------------------------------------------------------------------------------- removed keys


def test_a_row_that_comes_after_the_life_of_the_tombstone_is_taken(table: MakeTable) -> None:
    """As the docs say: nothing is known of the removal any more."""
    there = table()
    there.put((1, None, 30, 0, 1))
    assert there.put((1, "older", 20, 1, 9)) == []
    assert there.having(tombstone_life_s=0.0).put((1, "older", 20, 1, 9)) == ["1 older"]
    assert there.put((1, "oldest", 10, 1, 8)) == ["1 older"]


def test_deletes_are_what_the_file_says(table: MakeTable) -> None:
    there = table(apply_as_deletes="v = 'gone'")
    assert there.put((1, "gone", 1, 0, 1), (2, "b", 1, 0, 2)) == ["2 b"]
    kept = table(apply_as_deletes="false")
    assert kept.put((1, None, 1, 0, 1)) == ["1 None"]


# --------------------------------------------------------------------------- a declared sequence


def test_a_declared_sequence_also_holds_where_it_is_not_written(table: MakeTable) -> None:
    there = table(sequence_by="_timestamp")
    assert there.put((1, "new", 20, 0, 1), (1, "old", 10, 0, 2)) == ["1 new"]
    assert there.put((1, "old", 19, 0, 3)) == ["1 new"]
    assert there.put((1, "same time", 20, 0, 4)) == ["1 same time"]
    assert there.put((1, None, 21, 0, 5)) == []
    assert there.put((1, "late", 20, 0, 6)) == []


def test_a_table_from_before_there_were_sequences_is_compared_by_its_own_column(
    table: MakeTable, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    there = table("id int, v text, at int, PRIMARY KEY (id)", sequence_by="at")

    def put(text: str) -> list[str]:
        there.merge(spark.sql(f"SELECT * FROM VALUES {text} AS rows(id, v, at)"))
        return [f"{id} {v}" for id, v in there.rows("id, v")]

    put("(1, 'a', 5), (2, 'b', 5)")
    if isinstance(there.sink, CurrentTableSink):
        shutil.rmtree(Path(there.sink.path) / "current" / current_table.SEQUENCES)
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        of_it = f"obj_description(oid, 'pg_class') LIKE '%.{there.sink.table},%'"
        (beside,) = postgres.rows(f"SELECT relname FROM pg_class WHERE {of_it}")
        postgres.rows(f"DROP TABLE {beside}")
    assert put("(1, 'late', 4), (2, 'newer', 6), (3, 'c', 1)") == ["1 a", "2 newer", "3 c"]


def test_texts_are_sequenced_by_their_bytes(table: MakeTable) -> None:
    """As Spark does; a database left alone would put Z between a and b, or after both."""
    there = table("id int, v text, at text, PRIMARY KEY (id)", sequence_by="at")

    def put(v: str, at: str) -> None:
        there.merge(there._spark.createDataFrame([(1, v, at)], "id int, v string, at string"))

    put("large", "Z")
    put("small", "a")
    put("large again", "Y")
    assert there.rows("v") == [("small",)]


def test_another_sequence_for_the_same_table_is_refused(table: MakeTable) -> None:
    there = table()
    there.put((1, "a", 1, 0, 1))
    with pytest.raises(
        PipelineFailed, match=r"sink sink_\w+: .*_offset.* cannot be compared"
    ) as no:
        there.having(sequence_by="_timestamp").put((1, "b", 1, 0, 2))
    assert len(str(no.value).splitlines()) == 1
    assert there.rows("v") == [("a",)]


def test_a_row_without_a_sequence_ends_the_run(table: MakeTable) -> None:
    there = table(sequence_by="v")
    line = r"a row has no sequence \(v is null\); leave such rows out in a view"
    with pytest.raises(Exception, match=line):
        there.put((1, None, 1, 0, 1))
    # Nothing of that batch is there, and nothing of it stands in the way of the next.
    assert there.put((2, "b", 1, 0, 2)) == ["2 b"]


# ---------------------------------------------------------------------------- before it starts


def told(spark: SparkSession, columns: str, *topics: str, **more: Any) -> list[str]:
    frame = spark.createDataFrame([], f"id int, v string{columns}")
    sink = CurrentTableSink(
        name="out", place=PLACE, input="v", mode="upsert", keys=("id",), path="o", **more
    )
    sources = [TopicSource(name=topic, place=PLACE, topics=(topic,)) for topic in topics]
    return [one.text for one in sink_problems(sink, frame, sources)]


def test_what_cannot_be_compared_is_refused_with_what_to_add(spark: SparkSession) -> None:
    place = ", _timestamp timestamp, _partition int, _offset long"
    assert told(spark, place, "a") == []
    assert told(spark, place, "a", "b", sequence_by="v") == []
    assert told(spark, place, "a", "b") == [
        "sink out: v comes of several topics (a, b), whose offsets cannot be compared; name a "
        "column by sequence_by that tells which of two rows is newer"
    ]
    assert told(spark, ", _offset long", "a") == [
        "sink out: by _offset alone rows of two partitions cannot be compared; let v have "
        "_timestamp and _partition too, or name a column by sequence_by"
    ]
    (line,) = told(spark, place, "a", sequence_by="_offset")
    assert line.startswith("sink out: sequence_by: _offset: offsets of two partitions cannot be ")


# -------------------------------------------------------------------------------------- type 2

HISTORY = "id int, v text, __START_AT int, __END_AT int, PRIMARY KEY (id, __START_AT)"
VERSIONS = "id, __START_AT, __END_AT, v"


def put_events(there: Table, *events: tuple[int, str | None, int]) -> Rows:
    """(id, v, n), where a row without v is a delete; what the table holds then, as VERSIONS."""
    frame = there._spark.createDataFrame(list(events), "id int, v string, n int")
    # Under a name that is not written, so that the sequence is only in its own columns.
    there.merge(frame.withColumnRenamed("n", "_timestamp"))
    return there.rows(VERSIONS)


@pytest.fixture
def versions(table: MakeTable) -> Callable[[], Table]:
    return lambda: table(
        HISTORY, stored_as_scd_type=2, sequence_by="_timestamp", apply_as_deletes="v IS NULL"
    )


def test_every_version_of_a_row_is_kept_with_where_it_holds(
    versions: Callable[[], Table],
) -> None:
    there = versions()
    assert put_events(there, (1, "a", 1), (1, "c", 5), (2, "x", 3)) == [
        (1, 1, 5, "a"), (1, 5, None, "c"), (2, 3, None, "x"),
    ]  # fmt: skip
    # Late rows go where they belong; one that comes again changes nothing, nor does another one
    # of the same sequence.
    assert put_events(there, (1, "b", 3), (2, "x", 3), (1, "other", 5)) == [
        (1, 1, 3, "a"), (1, 3, 5, "b"), (1, 5, None, "c"), (2, 3, None, "x"),
    ]  # fmt: skip


def test_a_delete_ends_a_version_also_one_that_comes_later(versions: Callable[[], Table]) -> None:
    there = versions()
    assert put_events(there, (1, None, 4), (2, "x", 2), (2, None, 9)) == [(2, 2, 9, "x")]
    assert put_events(there, (1, "a", 1), (2, None, 5)) == [(1, 1, 4, "a"), (2, 2, 5, "x")]
    # What ended a row until an earlier delete came is still known.
    assert put_events(there, (1, "b", 6), (2, "y", 7)) == [
        (1, 1, 4, "a"), (1, 6, None, "b"), (2, 2, 5, "x"), (2, 7, 9, "y"),
    ]  # fmt: skip


def test_a_table_of_type_one_does_not_become_one_of_type_two(versions: Callable[[], Table]) -> None:
    there = versions()
    put_events(there, (1, "a", 1))
    with pytest.raises(PipelineFailed, match=r"is no table of type 1|holds other sequences"):
        put_events(there.having(stored_as_scd_type=1), (1, "b", 2))


def test_type_two_needs_a_declared_sequence(spark: SparkSession) -> None:
    place = ", _timestamp timestamp, _partition int, _offset long"
    (line,) = told(spark, place, "a", stored_as_scd_type=2)
    assert line.startswith("sink out: stored_as_scd_type: 2 needs sequence_by: a column that tells")
    (line,) = told(spark, ", __END_AT int", stored_as_scd_type=2, sequence_by="v")
    assert "v has a column __END_AT, which a table of type 2 has itself; rename it" in line


# ------------------------------------------------------------------------- any order, any batches

Case: TypeAlias = list[Message]
# In one job of Spark, each with a key of its own.
CASES = 120


def split(events: Sequence[Any], parts: int, chance: random.Random) -> list[list[Any]]:
    """In this order, into so many batches."""
    cuts = sorted(chance.randint(0, len(events)) for _ in range(parts - 1))
    edges = [0, *cuts, len(events)]
    return [list(events[a:b]) for a, b in itertools.pairwise(edges)]


def interleaved(case: Case, chance: random.Random) -> Case:
    """As a reader may see them: each partition in its order."""
    waiting = {one: [each for each in case if each[3] == one] for one in {m[3] for m in case}}
    seen: Case = []
    while any(waiting.values()):
        partition = chance.choice([one for one, left in waiting.items() if left])
        seen.append(waiting[partition].pop(0))
    return seen


def left_by_place(case: Case) -> str | None:
    """Message by message, and nothing forgotten."""
    times: dict[int, int] = {}
    best: tuple[tuple[int, int, int], str | None] | None = None
    for _, v, seconds, partition, offset in sorted(case, key=lambda one: (one[3], one[4])):
        times[partition] = max(seconds, times.get(partition, 0))
        place = (times[partition], partition, offset)
        if best is None or place > best[0]:
            best = (place, v)
    return best[1] if best else None


def cases_of(chance: random.Random) -> list[Case]:
    """Each is the story of one key: few partitions, clocks that go back, deletes."""

    def message(offset: int) -> Message:
        v = None if chance.random() < 0.4 else f"v{offset}"
        return (0, v, chance.randint(1, 6), chance.randint(0, 2), offset)

    return [[message(at) for at in range(chance.randint(1, 7))] for _ in range(CASES)]


def any_chance() -> random.Random:
    """Each run has its own; a failure shows the seed that tells its story again."""
    seed = int(os.environ.get("OTTLA_TEST_SEED") or secrets.randbits(32))
    print(f"OTTLA_TEST_SEED={seed}")
    return random.Random(seed)


def test_any_batches_leave_what_the_messages_say(table: MakeTable) -> None:
    chance = any_chance()
    cases, there = cases_of(chance), table()
    split_up = [split(interleaved(case, chance), 3, chance) for case in cases]
    found: list[str] = []
    for at in range(3):
        batch = [(key, *each[1:]) for key, parts in enumerate(split_up) for each in parts[at]]
        found = there.put(*batch)
    wanted = [(key, left_by_place(case)) for key, case in enumerate(cases)]
    assert found == [f"{key} {v}" for key, v in wanted if v is not None]


def test_any_order_leaves_what_the_sequence_says(table: MakeTable) -> None:
    """Also with rows that come twice."""
    chance = any_chance()
    cases = cases_of(chance)
    there = table(sequence_by="_timestamp", apply_as_deletes="v IS NULL")
    found: list[str] = []
    split_up = []
    for case in cases:
        numbered = [(0, v, at, 0, 0) for at, (_, v, *_) in enumerate(case)]
        again = numbered + chance.sample(numbered, len(numbered) // 2)
        chance.shuffle(again)
        split_up.append(split(again, 3, chance))
    for at in range(3):
        batch = [(key, *each[1:]) for key, parts in enumerate(split_up) for each in parts[at]]
        found = there.put(*batch)
    wanted = [(key, case[-1][1]) for key, case in enumerate(cases)]
    assert found == [f"{key} {v}" for key, v in wanted if v is not None]


def versions_left(case: list[tuple[str | None, int]]) -> list[tuple[int, int | None, str]]:
    """Event by event: what is open is closed by the next."""
    closed: list[tuple[int, int | None, str]] = []
    current: tuple[int, str] | None = None
    for v, at in sorted(case, key=lambda one: one[1]):
        if current is not None:
            closed.append((current[0], at, current[1]))
        current = None if v is None else (at, v)
    return closed if current is None else [*closed, (current[0], None, current[1])]


def test_any_order_leaves_the_same_history(versions: Callable[[], Table]) -> None:
    chance = any_chance()
    cases, there = cases_of(chance), versions()
    told = [[(v, at) for at, (_, v, *_) in enumerate(case)] for case in cases]
    split_up = []
    for events in told:
        again = events + chance.sample(events, len(events) // 2)
        chance.shuffle(again)
        split_up.append(split(again, 3, chance))
    found: Rows = []
    for at in range(3):
        found = put_events(
            there, *((key, *each) for key, parts in enumerate(split_up) for each in parts[at])
        )
    wanted = [(key, *row) for key, events in enumerate(told) for row in versions_left(events)]
    assert found == wanted
