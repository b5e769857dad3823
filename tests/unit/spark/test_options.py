"""Options as they arrive from Spark: lower-cased names, values as text."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from ottla.spark.formats.typed_columns import Format
from ottla.spark.options import kafka
from ottla.spark.options.catalogue import OPTIONS, WITHOUT_EFFECT
from ottla.spark.options.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    Latest,
)
from ottla.spark.options.sink import SinkOptions
from ottla.spark.options.source import SourceOptions
from ottla.spark.options.subscriptions import Assigned, Pattern, Topics
from ottla.spark.options.values import BadOption
from ottla.types import TopicPartition
from ottla.wire.compression import Compression

LEAST = {"kafka.bootstrap.servers": "one:9092,two:9093", "subscribe": "orders"}
ZERO = TopicPartition("orders", 0)


def read(options: Mapping[str, str] | None = None, **more: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **(options or {}), **more}, streaming=False)


def stream(options: Mapping[str, str] | None = None, **more: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **(options or {}), **more}, streaming=True)


def write(options: Mapping[str, str] | None = None) -> SinkOptions:
    return SinkOptions.parse({"bootstrap": "one:9092", **(options or {})})


def refused(options: Mapping[str, str] | None = None, *, streaming: bool = False) -> str:
    with pytest.raises(BadOption) as caught:
        SourceOptions.parse({**LEAST, **(options or {})}, streaming=streaming)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_batch_reads_everything_and_a_stream_what_is_to_come() -> None:
    assert (read().starting, read().ending) == (Earliest, Latest)
    assert stream().starting is Latest
    assert read().client.bootstrap == ("one:9092", "two:9093")


def test_the_defaults_are_those_of_sparks_connector() -> None:
    options = stream()
    assert options.fail_on_data_loss
    assert options.max_offsets_per_trigger is None
    assert options.max_trigger_delay_ms == 900_000
    assert not options.include_headers
    assert not options.read_committed
    assert options.group_id is None
    assert options.columns == (
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    )  # fmt: skip


def test_every_option_of_a_read_finds_its_place() -> None:
    options = stream(
        {"kafka.isolation.level": "read_committed", "kafka.max.partition.fetch.bytes": "2048"},
        failondataloss="FALSE",
        maxoffsetspertrigger="1000",
        minoffsetspertrigger="10",
        maxtriggerdelay="90s",
        minpartitions="7",
        maxrecordsperpartition="500",
        includeheaders="true",
        groupid="g",
        startingoffsets="committed",
    )
    assert not options.fail_on_data_loss
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (10, 1000)
    assert options.max_trigger_delay_ms == 90_000
    assert (options.min_partitions, options.max_records_per_partition) == (7, 500)
    assert options.include_headers
    assert options.columns[-1] == "headers"
    assert (options.group_id, options.starting) == ("g", Committed)
    assert options.read_committed
    assert options.fetch_bytes == 2048


def test_options_can_be_pickled_with_all_they_hold() -> None:
    options = stream(
        startingoffsets='{"orders":{"0":5}}', valueformat="json", valueschema="id BIGINT"
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(read())).starting is Earliest
    assert pickle.loads(pickle.dumps(write())) == write()


def test_sparks_own_options_and_what_a_job_carries_over_are_let_through() -> None:
    carried = {option.name.lower(): "17" for option in WITHOUT_EFFECT}
    stream({**carried, "path": "", "checkpointlocation": "/tmp/c", "queryname": "q"})


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("startingoffset", "startingOffsets"),
        ("subscribes", "subscribe"),
        ("valueschemas", "valueSchema"),
        ("kafka.security.protocl", "kafka.security.protocol"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
    ],
)
def test_an_unknown_option_is_told_with_the_nearest_in_its_proper_spelling(
    wrong: str, meant: str
) -> None:
    assert refused({wrong: "1"}) == f"option {wrong} is unknown; did you mean {meant}?"
    with pytest.raises(BadOption, match="did you mean"):
        write({wrong: "1"})


def test_an_option_that_resembles_nothing_is_unknown_without_a_guess() -> None:
    assert refused({"xyzzy": "1"}) == "option xyzzy is unknown"


def test_bootstrap_is_short_for_the_long_name() -> None:
    short = SourceOptions.parse({"bootstrap": "b:1", "subscribe": "t"}, streaming=False)
    assert short.client.bootstrap == ("b:1",)
    assert "differ" in refused({"bootstrap": "other:1"})
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers \(or bootstrap\) is missing"):
        SourceOptions.parse({"subscribe": "t"}, streaming=False)


def test_a_client_setting_that_is_wrong_is_the_options_fault() -> None:
    assert "not host:port" in refused({"kafka.bootstrap.servers": "nowhere"})


# ── what is read ───────────────────────────────────────────────────────────────────────────────


def only(options: Mapping[str, str]) -> SourceOptions:
    return SourceOptions.parse({"bootstrap": "b:1", **options}, streaming=False)


def test_the_three_ways_to_say_what_is_read() -> None:
    assert only({"subscribe": " a, b ,,a"}).subscription == Topics(("a", "b"))
    assert only({"subscribepattern": " a.* "}).subscription == Pattern("a.*")
    assigned = only({"assign": '{"b":[2,0,2],"a":[]}'}).subscription
    assert assigned == Assigned({"b": (0, 2)})


def test_exactly_one_of_the_three_is_wanted() -> None:
    line = refused({"assign": '{"a":[0]}'})
    assert (
        line == "exactly one of subscribe, subscribePattern, assign is wanted,"
        " subscribe and assign are given"
    )
    with pytest.raises(BadOption, match=r"none is given \(topic is for writing\)"):
        only({"topic": "t"})


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": " , "},
        {"subscribe": "not a topic"},
        {"subscribe": ".."},
        {"subscribepattern": " "},
        {"subscribepattern": "a("},
        {"subscribepattern": "[a-z&&[^b]]"},
        {"assign": "a"},
        {"assign": "{}"},
        {"assign": '{"a":0}'},
        {"assign": '{"a":[-1]}'},
        {"assign": '{"a":[true]}'},
        {"assign": '{"a":[2147483648]}'},
        {"assign": '{"a":[0],"a":[1]}'},
    ],
)
def test_what_names_nothing_is_refused(options: Mapping[str, str]) -> None:
    with pytest.raises(BadOption, match=r"wanted: .*"):
        only(options)


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("orders", "orders-eu", True),  # searched within the name, as Spark's connector does
        ("^orders$", "orders-eu", False),
        ("orders-[0-9]++", "orders-12", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        (r"^\p{Lower}+$", "abc", True),
        (r"^\p{Lower}+$", "aBc", False),
        (r"^[\p{Alpha}_]+\z", "a_B", True),
        (r"^\P{Digit}+$", "a1", False),
        (r"^(?<x>ab)-\k<x>$", "ab-ab", True),
        (r"^(?<x>ab)-\k<x>$", "ab-ac", False),
        (r"(?<=a)b", "ab", True),
        ("(?i)^ORDERS$", "orders", True),
        (r"^a\.b$", "axb", False),
        ("^[]a]+$", "a", True),
        ("consumer", "__consumer_offsets", False),
        ("transaction", "__transaction_state", False),
    ],
)
def test_patterns_are_javas(pattern: str, topic: str, matches: bool) -> None:
    subscription = only({"subscribepattern": pattern}).subscription
    assert isinstance(subscription, Pattern)
    assert subscription.matches(topic) is matches


# ── where it begins and ends ───────────────────────────────────────────────────────────────────


def test_a_time_for_all_wins_over_times_for_each_and_these_over_offsets() -> None:
    offsets = {"startingoffsets": '{"orders":{"0":7}}', "endingoffsets": '{"orders":{"0":-1}}'}
    assert read(offsets).starting == AtOffsets({ZERO: 7})
    assert read(offsets).ending == AtOffsets({ZERO: -1})
    each = {
        **offsets,
        "startingoffsetsbytimestamp": '{"orders":{"0":70}}',
        "endingoffsetsbytimestamp": '{"orders":{"0":80}}',
    }
    assert read(each).starting == AtTimestamps({ZERO: 70})
    assert read(each).ending == AtTimestamps({ZERO: 80})
    one = {**each, "startingtimestamp": " 700 ", "endingtimestamp": "800"}
    assert read(one).starting == AtTimestamp(700)
    assert read(one).ending == AtTimestamp(800)


def test_the_strategy_goes_with_the_times() -> None:
    more = {"startingoffsetsbytimestampstrategy": "LATEST"}
    assert stream({"startingtimestamp": "1", **more}).starting == AtTimestamp(1, "latest")
    each = {"startingoffsetsbytimestamp": '{"orders":{"0":70}}', **more}
    assert stream(each).starting == AtTimestamps({ZERO: 70}, "latest")
    assert "one of error, latest" in refused({"startingoffsetsbytimestampstrategy": "none"})


def test_names_of_positions_may_be_written_large() -> None:
    assert read(startingoffsets="EARLIEST").starting is Earliest
    assert stream(startingoffsets=" Latest ").starting is Latest


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    line = refused({name.lower(): "latest"}, streaming=True)
    assert line == f"option {name} is for batch reads; a stream has no end"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"startingoffsets": "latest"}, "cannot be latest in a batch"),
        ({"startingoffsets": '{"orders":{"0":-1}}'}, "-1 (latest) for orders-0"),
        ({"endingoffsets": "earliest"}, "cannot be earliest"),
        ({"endingoffsets": "committed", "groupid": "g"}, "cannot be committed"),
        ({"endingoffsets": '{"orders":{"0":-2}}'}, "-2 (earliest) for orders-0"),
        ({"startingoffsets": "committed"}, "needs the option groupId"),
        ({"startingoffsets": "first"}, "earliest, latest, committed or JSON"),
        ({"startingtimestamp": "-1"}, "whole number from 0"),
        ({"startingtimestamp": "2024-01-01"}, "for example 1735689600000"),
        ({"startingtimestamp": "9", "endingtimestamp": "8"}, "later than"),
        (
            {"startingoffsets": '{"orders":{"0":9}}', "endingoffsets": '{"orders":{"0":8}}'},
            "the start 9 of orders-0 is greater than its end 8",
        ),
        (
            {"startingoffsets": '{"orders":{"0":9}}', "endingoffsets": '{"orders":{"1":9}}'},
            "only in one of them: orders-0, orders-1",
        ),
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"}, "greater than"),
        ({"maxoffsetspertrigger": "0"}, "whole number from 1"),
        ({"maxoffsetspertrigger": "1_000"}, "whole number from 1"),
        ({"minpartitions": "2147483648"}, "from 1 to 2147483647"),
        ({"failondataloss": "yes"}, "wanted: true or false"),
        ({"maxtriggerdelay": "15 minutes"}, "for example 15m or 10s"),
        ({"maxtriggerdelay": "-5s"}, "not negative"),
        ({"groupid": " "}, "the name of a consumer group"),
        ({"kafka.isolation.level": "serializable"}, "read_uncommitted, read_committed"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(options: Mapping[str, str], part: str) -> None:
    assert part in refused(options)


def test_limits_that_say_latest_or_earliest_are_not_compared() -> None:
    read({"startingoffsets": '{"orders":{"0":9}}', "endingoffsets": '{"orders":{"0":-1}}'})
    read({"startingoffsets": '{"orders":{"0":-2}}', "endingoffsets": '{"orders":{"0":0}}'})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("10s", 10_000), ("250ms", 250), ("7", 7), ("1h", 3_600_000),
     ("2min", 120_000), ("1D", 86_400_000), ("1500us", 1)],
)  # fmt: skip
def test_durations_are_sparks(text: str, ms: int) -> None:
    assert stream(maxtriggerdelay=text).max_trigger_delay_ms == ms


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(refused({"startingoffsets": "x" * 10_000})) < 400


# ── columns and formats ────────────────────────────────────────────────────────────────────────


def test_columns_are_built_in_the_order_asked_for() -> None:
    options = read(columns="offset, KEY")
    assert options.columns == options.kafka_columns == ("offset", "key")
    assert read(columns="headers").include_headers
    assert not read(columns="key", includeheaders="true").include_headers


@pytest.mark.parametrize(
    ("columns", "part"),
    [("ofset", "did you mean offset?"), ("key,key", "key twice"), (" , ", "one or more columns"),
     ("_error", "some of")],
)  # fmt: skip
def test_columns_that_are_not_there_are_refused(columns: str, part: str) -> None:
    assert part in refused({"columns": columns})


def test_formats_come_with_an_error_column() -> None:
    options = read(valueformat="json", valueschema="id BIGINT", keyformat="STRING")
    assert options.value_format == Format("json", "id BIGINT")
    assert options.key_format == Format("string")
    assert options.columns[-1] == "_error"
    assert "_error" not in options.kafka_columns
    chosen = read(valueformat="string", columns="value")
    assert chosen.columns == ("value",)


AVRO = {"valueformat": "avro", "valueschema": '"long"'}
CONFLUENT = {**AVRO, "avroframing": "confluent", "valueschemaids": "12"}


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"valueformat": "xml"}, "one of json, avro, string"),
        ({"valueformat": "json"}, "needs valueSchema, for example id BIGINT"),
        ({"valueschema": "id BIGINT"}, "without valueFormat"),
        ({"valueformat": "string", "valueschema": "id BIGINT"}, "takes none"),
        ({"valueformat": "json", "valueschema": "id BIGNT"}, "option valueSchema: "),
        ({"valueformat": "json", "valueschema": "m MAP<INT,INT>"}, "keys of type STRING"),
        ({"keyformat": "avro", "keyschema": "{"}, "option keySchema: it is no Avro schema"),
        ({"valueformat": "string", "columns": "key"}, "columns leaves value out"),
        ({"avroframing": "other"}, "none, confluent"),
        (
            {**AVRO, "avroframing": "confluent"},
            "avroFraming=confluent needs valueSchemaIds, the ids",
        ),
        ({**AVRO, "avroframing": "confluent"}, "hex(substring(value, 2, 4))"),
        (
            {**CONFLUENT, "keyformat": "avro", "keyschema": '"int"'},
            "avroFraming=confluent needs keySchemaIds",
        ),
        (
            {**CONFLUENT, "valueschemaids": "12,x"},
            "valueSchemaIds: 'x' is no id of a schema; it is",
        ),
        ({**CONFLUENT, "valueschemaids": " "}, "valueSchemaIds"),
        ({**CONFLUENT, "valueschemaids": "4294967296"}, "'4294967296' is no id of a schema"),
        ({**AVRO, "valueschemaids": "12"}, "valueSchemaIds goes only with avroFraming=confluent"),
        ({**CONFLUENT, "keyschemaids": "12"}, "keySchemaIds goes only with"),
        ({"deadlettertopic": "dead"}, "deadLetterTopic needs valueFormat or keyFormat"),
        ({"deadlettertopic": "a b", "valueformat": "string"}, "deadLetterTopic is 'a b'"),
        ({**CONFLUENT, "valueschemaids": '{"12": "int"'}, "valueSchemaIds is"),
        ({**CONFLUENT, "valueschemaids": "{}"}, "valueSchemaIds is"),
        ({**CONFLUENT, "valueschemaids": '{"x": "int"}'}, "'x' is no id of a schema"),
        (
            {**CONFLUENT, "valueschemaids": '{"12": "no"}'},
            "option valueSchemaIds: schema 12: it is no Avro schema",
        ),
    ],
)
def test_formats_that_cannot_be_are_refused(options: Mapping[str, str], part: str) -> None:
    assert part in refused(options)


def test_the_framing_goes_with_avro() -> None:
    schema = '{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}'
    ids = {"keyschemaids": "7", "valueschemaids": "12, 15"}
    avro = {"keyformat": "avro", "keyschema": '"int"', "valueformat": "avro"}
    options = read(**avro, **ids, valueschema=schema, avroframing="confluent")
    assert options.key_format == Format("avro", '"int"', (7,))
    assert options.value_format == Format("avro", schema, (12, 15))
    writers = {**CONFLUENT, "valueschemaids": '{"12": "int", "15": {"type": "long"}}'}
    assert read(**writers).value_format == Format(
        "avro", '"long"', (12, 15), ('"int"', '{"type": "long"}')
    )
    beside_text = read(**CONFLUENT, keyformat="string")
    assert beside_text.key_format == Format("string")


def test_dead_letters_are_kept_for_certain_whatever_the_rows_may_risk() -> None:
    assert read(valueformat="string").letters is None
    options = read(valueformat="string", deadlettertopic="dead", **{"kafka.acks": "1"})
    assert options.letters is not None
    sink = options.letters.sink
    assert (sink.topic, sink.acks, sink.idempotent) == ("dead", -1, True)
    assert "headers" in options.kafka_columns
    assert "headers" not in options.columns


def test_dead_letters_go_without_idempotence_where_the_brokers_do_not_let_this_user() -> None:
    given = {"kafka.enable.idempotence": "false", "kafka.acks": "0"}
    letters = read(given, valueformat="string", deadlettertopic="dead").letters
    assert letters is not None
    assert (letters.sink.acks, letters.sink.idempotent) == (-1, False)


@pytest.mark.parametrize(
    "what",
    [{"subscribe": "a,dead"}, {"assign": '{"dead": [0]}'}, {"subscribepattern": "^d"}],
)
def test_dead_letters_that_are_read_themselves_would_come_back_for_ever(
    what: Mapping[str, str],
) -> None:
    options = {"bootstrap": "one:9092", "valueformat": "string", "deadlettertopic": "dead", **what}
    with pytest.raises(BadOption, match="deadLetterTopic is dead, which is read as well"):
        SourceOptions.parse(options, streaming=True)


# ── kafka.* ────────────────────────────────────────────────────────────────────────────────────


def test_every_name_of_the_java_clients_is_known_in_one_way_only() -> None:
    groups = [
        kafka.CLIENT,
        kafka.READ,
        kafka.WRITE,
        kafka.WITHOUT_EFFECT,
        frozenset(kafka.REFUSED),
    ]
    assert sum(map(len, groups)) == len(kafka.NAMES)
    assert len(kafka.NAMES) > 120


def test_names_without_effect_are_let_through_for_reads_and_writes() -> None:
    carried = {f"kafka.{name}": "1" for name in kafka.WITHOUT_EFFECT}
    read(carried)
    write(carried)


@pytest.mark.parametrize("name", sorted(kafka.REFUSED))
def test_what_would_deceive_a_job_is_refused(name: str) -> None:
    assert refused({f"kafka.{name}": "x"}).startswith(f"option kafka.{name} is not supported: ")


# ── writes ─────────────────────────────────────────────────────────────────────────────────────


def test_a_write_is_durable_unless_told_otherwise() -> None:
    options = write()
    assert (options.acks, options.idempotent, options.topic) == (-1, True, None)
    assert options.compression is Compression.NONE
    assert options.delivery_timeout_s == 120


def test_every_option_of_a_write_finds_its_place() -> None:
    options = write(
        {
            "topic": " out ",
            "kafka.acks": "1",
            "kafka.compression.type": "ZSTD",
            "kafka.batch.size": "16384",
            "kafka.buffer.memory": "1000000",
            "kafka.delivery.timeout.ms": "5000",
        }
    )
    assert options.topic == "out"
    assert (options.acks, options.idempotent) == (1, False)
    assert options.compression is Compression.ZSTD
    assert (options.batch_bytes, options.in_flight_bytes) == (16384, 1_000_000)
    assert options.delivery_timeout_s == 5


def test_a_batch_is_never_larger_than_a_request() -> None:
    assert write({"kafka.max.request.size": "5000"}).batch_bytes == 5000


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"kafka.acks": "2"}, "one of all, -1, 1, 0"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "needs kafka.acks=all"),
        ({"kafka.compression.type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"topic": "a b"}, "names of letters"),
    ],
)
def test_a_write_that_cannot_be_meant_is_refused(options: Mapping[str, str], part: str) -> None:
    with pytest.raises(BadOption, match=part):
        write(options)


def test_idempotence_can_be_given_up() -> None:
    assert not write({"kafka.enable.idempotence": "false"}).idempotent


def test_every_option_of_the_table_is_taken_by_its_side() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
