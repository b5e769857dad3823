"""JSON of all kinds, and columns of it."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import strategies as some

from ottla.spark.formats.spark_types import parse_type

EVERYTHING = (
    "b BOOLEAN, i8 TINYINT, i16 SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, x BINARY, "
    "day DATE, t TIMESTAMP, n TIMESTAMP_NTZ, m DECIMAL(10, 2), a ARRAY<INT>, "
    "o STRUCT<p: STRING, q: ARRAY<DATE>>"
)


def column(*values: bytes | str | None) -> pa.Array:
    return pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())


JSON_VALUES = some.recursive(
    some.one_of(
        some.none(),
        some.booleans(),
        some.integers(-(2**65), 2**65),
        some.floats(allow_nan=False),
        some.text(max_size=5),
        some.sampled_from(
            [
                "2024-01-02T03:04:05+05:30",
                "2024-01-02T03:04:05-0230",
                "2024-01-02",
                "2024-01-02T03:04:05Z",
                "2024-01-02 03:04:05",
                "AQI=",
                "NaN",
                "1",
                "",
            ]
        ),
    ),
    lambda inner: some.one_of(
        some.lists(inner, max_size=3),
        some.dictionaries(some.sampled_from(["b", "i", "p", "q", "t"]), inner, max_size=3),
    ),
    max_leaves=4,
)
OBJECTS = some.dictionaries(
    some.sampled_from([field.name for field in parse_type(EVERYTHING)] + ["other"]),
    JSON_VALUES,
    max_size=4,
).map(lambda found: json.dumps(found, ensure_ascii=False).encode())
