"""Every option of format("ottla") once: its proper spelling, default and meaning.

Names that are not here are errors, and the table of docs/spark.md is drawn from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Side = Literal["read", "write", "both"]


@dataclass(frozen=True)
class Option:
    name: str
    side: Side
    default: str
    meaning: str


_READ: Final = (
    Option("subscribe", "read", "", "topics, separated by commas"),
    Option("subscribePattern", "read", "", "a Java regular expression, searched in topic names"),
    Option("assign", "read", "", 'single partitions: `{"topicA":[0,1]}`'),
    Option("startingOffsets", "read", "`earliest` (batch), `latest` (stream)",
           "`earliest`, `latest` (streams only), `committed` (where `groupId` stands; earliest "
           'where it has no commit), or JSON: `{"topicA":{"0":23,"1":-1}}`, '
           "-1 latest, -2 earliest"),
    Option("endingOffsets", "read", "`latest`", "batch only: `latest` or JSON as above (not -2)"),
    Option("startingTimestamp", "read", "", "begin at the first record this late (milliseconds)"),
    Option("endingTimestamp", "read", "", "batch only: end before the first record this late"),
    Option("startingOffsetsByTimestamp", "read", "",
           'a time for each partition: `{"topicA":{"0":1735689600000}}`'),
    Option("endingOffsetsByTimestamp", "read", "", "batch only: the same for the end"),
    Option("startingOffsetsByTimestampStrategy", "read", "`error`",
           "where no record is so late: `error`, or `latest` to begin at the end"),
    Option("failOnDataLoss", "read", "`true`",
           "whether a query fails when wanted records are gone; otherwise it goes on after them"),
    Option("kafkaConsumer.pollTimeoutMs", "read", "`120000`",
           "how long a broker may have records and give none, before the query fails"),
    Option("maxOffsetsPerTrigger", "read", "no limit", "streams: offsets per micro-batch at most"),
    Option("minOffsetsPerTrigger", "read", "", "streams: wait until there is so much to read"),
    Option("maxTriggerDelay", "read", "`15m`", "streams: but no longer than this"),
    Option("minPartitions", "read", "one task per partition",
           "cut partitions into at least so many tasks, which gives up the order within one"),
    Option("maxRecordsPerPartition", "read", "no limit",
           "offsets per task at most; likewise"),
    Option("includeHeaders", "read", "`false`", "add the column `headers`"),
    Option("columns", "read", "all", "build only these, for example `key,offset`"),
    Option("groupId", "read", "", "commit progress to this consumer group"),
    Option("keyFormat", "read", "", "`json`, `avro` or `string`: a typed `key`, and `_error`"),
    Option("keySchema", "read", "", "its schema (json: Spark DDL or Spark's JSON; avro: JSON)"),
    Option("keySchemaIds", "read", "",
           "with `avroFraming=confluent`: the registry's ids that fit `keySchema`, `12,15`, or "
           'these with their own schemas, `{"12": {…}}`; a key with another id is an error'),
    Option("valueFormat", "read", "", "`json`, `avro` or `string`: a typed `value`, and `_error`"),
    Option("valueSchema", "read", "", "its schema, as `keySchema`"),
    Option("valueSchemaIds", "read", "", "its ids, as `keySchemaIds`"),
    Option("avroFraming", "read", "`none`",
           "`confluent` takes the five bytes of a registry off Avro keys and values"),
    Option("deadLetterTopic", "read", "",
           "what does not parse is written there too, before its rows go on"),
)  # fmt: skip

_WRITE: Final = (
    Option("topic", "write", "the column `topic`", "write all rows here"),
)  # fmt: skip

_BOTH: Final = (
    Option("kafka.bootstrap.servers", "both", "", "brokers to begin with: `host:port,host:port`"),
    Option("bootstrap", "both", "", "short for `kafka.bootstrap.servers`"),
)

# What a job may carry over from format("kafka"): known, and nothing comes of it.
WITHOUT_EFFECT: Final = (
    Option("groupIdPrefix", "read", "", "no group is joined"),
    Option("fetchOffset.numRetries", "read", "", "errors that pass are tried again for a minute"),
    Option("fetchOffset.retryIntervalMs", "read", "", "likewise"),
    Option("partition.metadata.cache.ttl.ms", "read", "", "kept for a moment anyway"),
)

# Spark's own, which arrive among the others.
FROM_SPARK: Final = ("path", "checkpointLocation", "queryName")

# What pipelines add to deadLetterTopic: names for two headers, and where letters begin.
FROM_PIPELINES: Final = ("deadLettersOf", "deadLettersFrom")

OPTIONS: Final = _BOTH + _READ + _WRITE


def names_known() -> tuple[str, ...]:
    tables = OPTIONS + WITHOUT_EFFECT
    return tuple(option.name for option in tables) + FROM_SPARK + FROM_PIPELINES


def render_table(side: Side) -> str:
    """The rows of one side for the docs."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    rows += [
        f"| `{option.name}` | {option.default} | {option.meaning} |"
        for option in OPTIONS
        if option.side == side
    ]
    return "\n".join(rows) + "\n"
