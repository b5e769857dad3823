"""The columns of a read: Arrow's schema and Spark's must be two spellings of one thing."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.spark.columns import (
    ARROW,
    DEFAULT_COLUMNS,
    READ_COLUMNS,
    arrow_schema,
    spark_schema,
)

# The schema of Spark's own Kafka connector with `includeHeaders`.
CONNECTOR = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
    ]
)


def test_the_columns_are_those_of_the_connector_in_its_order():
    assert list(READ_COLUMNS) == CONNECTOR.names
    assert list(DEFAULT_COLUMNS) == CONNECTOR.names[:-1]


def test_the_arrow_schema_is_what_pyspark_makes_of_the_connectors():
    wanted = to_arrow_schema(CONNECTOR, timezone="UTC")
    assert arrow_schema(READ_COLUMNS).equals(wanted, check_metadata=True)
    assert str(arrow_schema(READ_COLUMNS)) == str(wanted)


def test_the_ddl_says_the_same_types():
    fields = [f"{field.name}{field.dataType.simpleString()}" for field in CONNECTOR]
    assert spark_schema(READ_COLUMNS).lower().replace(" ", "") == ",".join(fields).lower()
    assert "timestampType INT" in spark_schema(READ_COLUMNS)


def test_wanted_columns_keep_the_order_in_which_they_are_asked_for():
    assert arrow_schema(["offset", "key"]).names == ["offset", "key"]
    assert spark_schema(["offset", "key"]) == "offset BIGINT, key BINARY"
    assert arrow_schema().names == list(DEFAULT_COLUMNS)


def test_no_type_is_a_large_one():
    assert not [kind for kind in ARROW.values() if "large" in str(kind)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [([], "at least one column"), (["keys"], "no column 'keys'"), (["key", "key"], "named twice")],
)
def test_columns_that_cannot_be_read_are_refused_in_one_line(columns, said):
    for schema in (arrow_schema, spark_schema):
        with pytest.raises(ValueError, match=said) as refused:
            schema(columns)
        assert "\n" not in str(refused.value)
