"""The statements that merge a batch into a table of type 2, in PostgreSQL's words.

As history.py does it: the rows of the keys that the batch touches tell their events again, the
batch's events are put among them, and rows whose end has changed are updated. Rows that are there
stay, with whatever else they have in columns that are not ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ottla.pipelines.sinks.postgres_sql import DELETED, ROW, Merge, Sequences, Target, sql_name
from ottla.pipelines.sinks.upserts import END, START


@dataclass(frozen=True)
class Deletes(Sequences):
    """The table beside a target of type 2: deletes that end no row."""

    def describe(self) -> str:
        return f"{super().describe()}, type 2"

    def unique(self) -> Sequence[str]:
        return [*super().unique(), "q0"]

    def told_by_rows(self) -> None:
        """Rows are no deletes."""


@dataclass(frozen=True)
class History:
    """The events of all keys that a batch touches, as a table for the time of the merge.

    Its columns: k0, k1, … the keys, q the sequence, r the row of the staging table (null in what
    was there), d whether it is a delete, and since when, ended the next event's sequence.
    """

    merge: Merge
    deletes: Deletes

    @property
    def name(self) -> str:
        return f"{self.merge.staging}h"

    def statements(self) -> Iterator[str]:
        yield f"CREATE UNLOGGED TABLE {self.name} AS {self._events()}"
        yield self._update()
        yield self._insert()
        beside, keys = self.deletes.name, self._keys()
        same = " AND ".join(f"t.{one} = h.{one}" for one in keys)
        yield f"DELETE FROM {beside} t USING {self.name} h WHERE {same}"
        columns = ", ".join(keys)
        yield (
            f"INSERT INTO {beside} ({columns}, q0, deleted_at) SELECT {columns}, q, deleted_at "
            f"FROM {self.name} WHERE d AND ends_nothing"
        )
        yield f"DROP TABLE {self.name}"

    @property
    def _target(self) -> Target:
        return self.merge.target

    def _column(self, name: str) -> str:
        return sql_name(self._target.column(name) or name)

    def _keys(self) -> list[str]:
        return [f"k{at}" for at in range(len(self.merge.keys))]

    def _sequence(self, value: str) -> str:
        """In the type of the target's column; texts by their bytes, as Spark compares them."""
        kind = self._target.types[self._target.column(START) or START]
        is_text = kind.startswith(("text", "character", "bpchar"))
        return f"CAST({value} AS {kind})" + (' COLLATE "C"' if is_text else "")

    def _events(self) -> str:
        keys = self._keys()
        columns = ", ".join(keys)
        new = ", ".join(
            f"{self.merge.value(one)} AS {key}"
            for one, key in zip(self.merge.keys, keys, strict=True)
        )
        old = ", ".join(
            f"t.{sql_name(one)} AS {key}" for one, key in zip(self.merge.keys, keys, strict=True)
        )
        touched = ", ".join(f"t.{sql_name(one)}" for one in self.merge.keys)
        beside = ", ".join(f"t.{key}" for key in keys)
        start = self._sequence(f"t.{self._column(START)}")
        end = self._sequence(f"t.{self._column(END)}")
        following = " AND ".join([*(f"n.{key} = o.{key}" for key in keys), "n.q = o.ended"])
        known = " AND ".join([*(f"known.{key} = new.{key}" for key in keys), "known.q = new.q"])
        return (
            f"WITH new AS (SELECT {new}, {self._sequence('s.q0')} AS q, s.{ROW} AS r, "
            f"s.{DELETED} AS d FROM {self.merge.staging} s), "
            f"stored AS (SELECT {old}, {start} AS q, {end} AS ended FROM {self._target.name} t "
            f"WHERE ({touched}) IN (SELECT {columns} FROM new)), "
            f"known AS (SELECT {columns}, q, CAST(NULL AS bigint) AS r, false AS d, "
            "CAST(NULL AS timestamptz) AS deleted_at FROM stored "
            f"UNION ALL SELECT {columns}, ended, NULL, true, now() FROM stored o "
            f"WHERE ended IS NOT NULL AND NOT EXISTS (SELECT 1 FROM stored n WHERE {following}) "
            f"UNION ALL SELECT {beside}, {self._sequence('t.q0')}, NULL, true, t.deleted_at "
            f"FROM {self.deletes.name} t WHERE ({beside}) IN (SELECT {columns} FROM new)), "
            f"events AS (SELECT * FROM known UNION ALL SELECT {columns}, q, r, d, "
            "CASE WHEN d THEN now() END FROM new "
            f"WHERE NOT EXISTS (SELECT 1 FROM known WHERE {known})) "
            "SELECT *, lead(q) OVER w AS ended, coalesce(lag(d) OVER w, true) AS ends_nothing "
            f"FROM events WINDOW w AS (PARTITION BY {columns} ORDER BY q)"
        )

    def _update(self) -> str:
        start, end = self._column(START), self._column(END)
        same = " AND ".join(
            f"t.{sql_name(one)} = h.{key}"
            for one, key in zip(self.merge.keys, self._keys(), strict=True)
        )
        return (
            f"UPDATE {self._target.name} t SET {end} = h.ended FROM {self.name} h "
            f"WHERE h.r IS NULL AND NOT h.d AND {same} AND {self._sequence('t.' + start)} = h.q "
            f"AND {self._sequence('t.' + end)} IS DISTINCT FROM h.ended"
        )

    def _insert(self) -> str:
        names = [*map(sql_name, self.merge.columns), self._column(START), self._column(END)]
        values = [*map(self.merge.value, self.merge.columns), "h.q", "h.ended"]
        return (
            f"INSERT INTO {self._target.name} ({', '.join(names)}) SELECT {', '.join(values)} "
            f"FROM {self.name} h JOIN {self.merge.staging} s ON s.{ROW} = h.r WHERE NOT h.d"
        )
