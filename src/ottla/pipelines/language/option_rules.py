"""Names that are handed on to others, checked while there is still a line to point at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.client.failures import BadSetting
from ottla.client.settings import ClientSettings
from ottla.pipelines.language.checker import Checker, Found
from ottla.pipelines.language.document import Scalar, Table, shown
from ottla.spark.options import kafka as kafka_options
from ottla.spark.options.catalogue import FROM_SPARK, OPTIONS, WITHOUT_EFFECT
from ottla.spark.spelling import nearest

# Options of format("ottla") that the file says with a key of its own.
_OWN_KEY: Final[Mapping[str, str]] = {
    "bootstrap": "bootstrap",
    "kafka.bootstrap.servers": "bootstrap",
    "subscribe": "topic",
    "subscribepattern": "topics",
    "assign": "topics",
    "topic": "topic",
    "startingoffsets": "start",
    "startingtimestamp": "start",
    "startingoffsetsbytimestamp": "start",
    "maxoffsetspertrigger": "max_rows_per_batch",
    "includeheaders": "headers",
    "keyformat": "key",
    "keyschema": "key",
    "keyschemaids": "key",
    "valueformat": "format",
    "valueschema": "schema",
    "valueschemaids": "schema_ids",
    "avroframing": "framing",
    "deadlettertopic": "bad_records",
}
# What would take away columns or messages that the pipeline counts on.
_NOT_HERE: Final = frozenset(
    {"columns", "endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
    | {name.lower() for name in FROM_SPARK}
)


def check_options(checker: Checker, found: Found, *, is_source: bool) -> None:
    """`options` of a topic; those of Spark's own formats only Spark knows."""
    table = found.nodes.get("options")
    if found.told_by not in ("topic", "topics") or not isinstance(table, Table):
        return
    side = "read" if is_source else "write"
    known = [one.name for one in OPTIONS + WITHOUT_EFFECT if one.side in (side, "both")]
    usable = [name for name in known if _is_usable(name)]
    lower = {name.lower() for name in known}
    for name, _ in table.entries:
        option, path = name.text.lower(), f"{found.path}.options.{shown(name.text)}"
        if option in _OWN_KEY:
            checker.note(f"{path}: the key {_OWN_KEY[option]} says this; use it", name.place)
        elif option in _NOT_HERE:
            checker.note(f"{path} is not for pipelines; remove it", name.place)
        elif option.startswith(kafka_options.PREFIX):
            _check_kafka_name(checker, name, option.removeprefix(kafka_options.PREFIX), path)
        elif option not in lower:
            near = nearest(option, usable) or "; docs/spark.md lists them"
            checker.note(f"{path} is no option of a topic{near}", name.place)


def _is_usable(name: str) -> bool:
    return name.lower() not in _OWN_KEY and name.lower() not in _NOT_HERE


def check_kafka(checker: Checker, found: Found) -> None:
    """The names below `kafka`, and as a whole what they say of the way to the brokers."""
    table = found.nodes.get("kafka")
    if isinstance(table, Table):
        for name, _ in table.entries:
            path = f"kafka.{shown(name.text)}"
            if name.text == "bootstrap.servers":
                checker.note(f"{path}: the key bootstrap says this; use it", name.place)
            else:
                _check_kafka_name(checker, name, name.text, path)
    _check_client(checker, found)


def _check_client(checker: Checker, found: Found) -> None:
    # Keys and certificates may be only where the pipeline will run.
    given = {
        name: value
        for name, value in (found["kafka"] or {}).items()
        if name in kafka_options.CLIENT and not name.startswith(("ssl.keystore", "ssl.truststore"))
    }
    if found["bootstrap"] is None:
        return
    try:
        ClientSettings.from_kafka({**given, "bootstrap.servers": found["bootstrap"]})
    except BadSetting as wrong:
        table = found.nodes.get("kafka")
        for name, _ in table.entries if isinstance(table, Table) else ():
            if str(wrong).startswith(name.text):
                checker.note(f"kafka.{wrong}", name.place)
                return
        key = "bootstrap" if str(wrong).startswith("bootstrap.servers") else "kafka"
        checker.note(str(wrong).replace("bootstrap.servers", "bootstrap"), found.place_of(key))


def _check_kafka_name(checker: Checker, name: Scalar, bare: str, path: str) -> None:
    if bare in kafka_options.REFUSED:
        checker.note(f"{path} is not supported; remove it", name.place)
    elif bare not in kafka_options.NAMES and not bare.startswith("metrics.context."):
        known = kafka_options.NAMES - kafka_options.REFUSED.keys()
        near = nearest(bare, known) or "; docs/spark.md lists them"
        checker.note(f"{path} is no setting of Kafka's clients{near}", name.place)


def check_spark(checker: Checker, found: Found) -> None:
    table = found.nodes.get("spark")
    if isinstance(table, Table):
        for name, _ in table.entries:
            if name.text == "spark.speculation" and _is_true(found, name.text):
                _check_speculation(checker, found, name)
            if not name.text.startswith("spark."):
                checker.note(
                    f"{shown(name.text)} is no setting of Spark; they begin with `spark.`",
                    name.place,
                )


def _is_true(found: Found, setting: str) -> bool:
    return str((found["spark"] or {}).get(setting)).lower() == "true"


def _check_speculation(checker: Checker, found: Found, name: Scalar) -> None:
    """Topics are written at least once: of two attempts at once both leave their messages."""
    written = [sink.path for sink in (found["sinks"] or {}).values() if sink.told_by == "topic"]
    written += [
        f"{source.path}.bad_records"
        for source in (found["sources"] or {}).values()
        if isinstance(source["bad_records"], Found)
    ]
    if written:
        checker.note(
            f"spark.speculation would run a slow task twice at once, and both would write their "
            f"messages to {written[0]}; remove it",
            name.place,
        )
