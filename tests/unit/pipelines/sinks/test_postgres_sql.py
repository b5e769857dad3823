"""The statements of a JDBC sink, word by word; tests/spark/pipelines/test_jdbc.py runs them."""

from __future__ import annotations

import pytest

from ottla.pipelines.sinks import postgres_sql as sql

TARGET = sql.Target("public", 'or"ders', {"id": "uuid", "v": "text", "at": "timestamp"})


def test_names_are_quoted_whatever_is_in_them() -> None:
    assert sql.sql_name('a"; DROP TABLE x; --') == '"a""; DROP TABLE x; --"'
    assert TARGET.name == '"public"."or""ders"'


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("orders", ["orders"]),
        ("shop.orders", ["shop", "orders"]),
        ('shop."or.ders"', ["shop", "or.ders"]),
    ],
)
def test_a_table_may_be_in_a_schema(name: str, parts: list[str]) -> None:
    assert sql.table_parts(name) == parts


def test_columns_are_found_as_postgresql_writes_them() -> None:
    assert TARGET.column("ID") == "id"
    assert TARGET.column("id") == "id"
    assert TARGET.column("nothing") is None


@pytest.mark.parametrize(
    ("kind", "cast"),
    [
        ("character varying(3)", "character varying"),
        ("character(3)", "bpchar"),
        ("character varying(3)[]", "character varying[]"),
        ("character varying", "character varying"),
        ("numeric(10,2)", "numeric(10,2)"),
        ("timestamp(0) without time zone", "timestamp(0) without time zone"),
        ('"character(3)"', '"character(3)"'),
    ],
)
def test_a_text_is_not_cut_by_its_cast(kind: str, cast: str) -> None:
    """PostgreSQL cuts in silence where a length is asked for, and refuses where it is not."""
    assert sql.cast_type(kind) == cast


def test_rows_are_appended_in_the_order_of_the_batch() -> None:
    merge = sql.Merge(TARGET, "s1", ["id", "v"])
    assert merge.insert() == (
        'INSERT INTO "public"."or""ders" AS t ("id", "v") '
        "SELECT CAST(s.c0 AS uuid), CAST(s.c1 AS text) FROM s1 s ORDER BY s.r"
    )


def test_an_upsert_is_merged_by_its_keys() -> None:
    merge = sql.Merge(TARGET, "s1", ["id", "v", "at"], ["id"])
    assert merge.insert().endswith(
        'FROM s1 s WHERE NOT s.d ON CONFLICT ("id") DO UPDATE SET "v" = excluded."v", '
        '"at" = excluded."at"'
    )
    assert merge.delete() == (
        'DELETE FROM "public"."or""ders" AS t USING s1 s WHERE s.d AND t."id" = CAST(s.c0 AS uuid)'
    )


def test_a_table_of_keys_alone_has_nothing_to_update() -> None:
    merge = sql.Merge(TARGET, "s1", ["id"], ["id"])
    assert merge.insert().endswith('WHERE NOT s.d ON CONFLICT ("id") DO NOTHING')


def test_what_is_older_than_its_sequence_is_held_back() -> None:
    merge = sql.Merge(TARGET, "s1", ["id", "v"], ["id"])
    sequences = sql.Sequences(TARGET, ["id"], {"it's": "text"})
    beside = sequences.name
    assert beside.startswith('"public".ottla_sequences_')
    assert sequences.create()[0] == (
        f'CREATE TABLE {beside} (k0 uuid, q0 text COLLATE "C" NOT NULL, deleted_at timestamptz, '
        "PRIMARY KEY (k0))"
    )
    assert sequences.create()[2].endswith(
        "IS 'Ottla: public.or\"ders, keys id uuid, sequence by it''s text'"
    )
    assert merge.leave_one(sequences) == (
        "DELETE FROM s1 s USING s1 b WHERE CAST(s.c0 AS uuid) = CAST(b.c0 AS uuid) "
        "AND (b.q0, b.r) > (s.q0, s.r)"
    )
    assert merge.leave_one(None).endswith(" AND (b.r) > (s.r)")
    assert merge.hold_back(sequences) == [
        f"DELETE FROM s1 s USING {beside} t WHERE t.k0 = CAST(s.c0 AS uuid) AND t.q0 > s.q0"
    ]
    assert merge.remember(sequences) == (
        f"INSERT INTO {beside} (k0, q0, deleted_at) SELECT CAST(s.c0 AS uuid), q0, "
        "CASE WHEN s.d THEN now() END FROM s1 s "
        "ON CONFLICT (k0) DO UPDATE SET q0 = excluded.q0, deleted_at = excluded.deleted_at"
    )


def test_sequences_of_a_table_from_before_are_told_by_its_rows() -> None:
    sequences = sql.Sequences(TARGET, ["id"], {"AT": "timestamptz"})
    assert sequences.told_by_rows() == (
        f'INSERT INTO {sequences.name} (k0, q0) SELECT "id", CAST("at" AS timestamptz) '
        'FROM "public"."or""ders" WHERE "id" IS NOT NULL AND "at" IS NOT NULL '
        "ON CONFLICT DO NOTHING"
    )
    assert sql.Sequences(TARGET, ["id"], {"_offset": "bigint"}).told_by_rows() is None
