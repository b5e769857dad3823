"""The schema that editors use says what the checks say."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ottla.pipelines.language.document import NULLS, Items, Node, Scalar, parse
from ottla.pipelines.language.json_schema import json_schema, schema_text
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline
from unit.pipelines.pipeline_files import EVERYTHING, SECRETS, SHOP, shop_with, write

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples").rglob("*.y*ml")) if (ROOT / "examples").exists() else []
VALIDATOR = Draft202012Validator(json_schema())


def as_json(node: Node) -> Any:
    """What an editor makes of YAML (1.2): numbers, booleans and null where they are not quoted."""
    if isinstance(node, Items):
        return [as_json(each) for each in node.nodes]
    if not isinstance(node, Scalar):
        return {key.text: as_json(value) for key, value in node.entries}
    if not node.is_plain:
        return node.text
    if node.text in NULLS:
        return None
    if re.fullmatch("true|True|TRUE|false|False|FALSE", node.text):
        return node.text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]+", node.text):
        return int(node.text)
    return node.text


def complaints(text: str) -> list[str]:
    document = as_json(parse(text, Path("p.yaml"), []))
    return [error.message for error in VALIDATOR.iter_errors(document)]


def is_read(directory: Path, text: str) -> bool:
    (directory / "three.sql").write_text("SELECT 1")
    try:
        read_pipeline(write(directory, text), environment=SECRETS)
    except BadPipeline:
        return False
    return True


def test_it_is_a_schema_and_shipped_as_it_is_made() -> None:
    Draft202012Validator.check_schema(json_schema())
    shipped = resources.files("ottla.pipelines.language") / "pipeline.schema.json"
    assert shipped.read_text() == schema_text(), "run `make docs`"
    assert json.loads(shipped.read_text()) == json_schema()


@pytest.mark.parametrize("text", [SHOP, EVERYTHING], ids=["shop", "everything"])
def test_whole_files_are_valid(text: str) -> None:
    assert complaints(text) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_examples_are_valid(file: Path) -> None:
    text = file.read_text()
    if text.startswith("version:") or "\nversion:" in text:
        assert complaints(text) == []


# A line of EVERYTHING and what somebody might have typed instead.
TYPOS = [
    ("version: 1", "version: 2"),
    ("version: 1\n", ""),
    ("name: every.thing-1", "nam: every.thing-1"),
    ("name: every.thing-1", "name: every thing"),
    ("bootstrap: a:9092, b:9092", "bootstrap: localhost"),
    ("trigger: 10 seconds", "trigger: 10s"),
    ("max: 3", "max: three"),
    ("max: 3", "max: -1"),
    ("backoff: 2 seconds", "backof: 2 seconds"),
    ("topics: [clicks, clicks.old]", "topics: []"),
    ("topics: [clicks, clicks.old]", "topics: [clicks, 'a b']"),
    ("topics: [clicks, clicks.old]", "topcs: [clicks]"),
    ("start: 2026-01-31T12:00:00Z", "start: first"),
    ("format: avro\n", "format: arvo\n"),
    ("format: avro\n", "format: bytes\n"),
    ("format: json, schema", "format: json, schma"),
    ("headers: true", "headers: maybe"),
    ("deduplicate: [id]", "deduplicate: {id: 1}"),
    ("bad_records: drop", "bad_records: ignore"),
    ("bad_records: drop", "bad_records: {topc: x}"),
    ("bad_records: drop", "bad_record: drop"),
    ("max_files_per_batch: 10", "max_files_per_batch: 0"),
    ("max_files_per_batch: 10", "read: table, max_files_per_batch: 10"),
    ("format: csv, schema", "format: csv, shema"),
    ("table: customers, ", ""),
    ("rate: 100", "rate: fast"),
    ("one: SELECT * FROM clicks", "one:"),
    ("one: SELECT", "1st: SELECT"),
    ('sql: "SELECT', 'sqll: "SELECT'),
    ("delay: 1 hour", "delay: 1 fortnight"),
    ("file: three.sql", "file: three.sql, python: a:b"),
    ("shop.views:four", "shop.views"),
    ("mode: update", "mode: upsert"),
    ("files: out/, format: parquet", "files: out/"),
    ("partition_by: day", "partition_by: []"),
    ("keys: id, sequence_by", "sequence_by"),
    ("keys: id, sequence_by", "key: id, sequence_by"),
    ("mode: upsert, keys: id", "mode: upsert"),
    ("mode: upsert, keys: id", "mode: append, keys: id"),
    ("mode: upsert, keys: id", "sequence_by: id"),
    ("mode: upsert, keys: id", "mode: upsert, keys: id, tombstone_life: long"),
    ("given: {clicks: clicks.jsonl, ticks: []}", "gven: {clicks: clicks.jsonl}"),
    ("spark.sql.ansi.enabled: true", "spark.sql.ansi.enabled: [true]"),
]


@pytest.mark.parametrize(("right", "wrong"), TYPOS)
def test_a_typo_is_refused_by_the_schema_and_by_the_checks(
    right: str, wrong: str, tmp_path: Path
) -> None:
    assert right in EVERYTHING
    text = EVERYTHING.replace(right, wrong, 1)
    assert complaints(text)
    assert not is_read(tmp_path, text)


# Other ways to write what is right.
ALTERNATIVES = [
    ("trigger: 10 seconds", "trigger: ${EVERY:-10} seconds"),
    ("trigger: 10 seconds", "trigger: 1 hour 30 minutes"),
    ("max: 3", 'max: "3"'),
    ("max: 3", 'max: "${MAX:-3}"'),
    ("headers: true", 'headers: "${HEADERS:-true}"'),
    ("headers: true", 'headers: "false"'),
    ("headers: true", "headers: True"),
    ("format: avro\n", "format: ${FORMAT:-avro}\n"),
    ("bad_records: drop", "bad_records: ${BAD:-fail}"),
    ("bad_records: drop", "bad_records: {topic: 12}"),
    ("start: 2026-01-31T12:00:00Z", "start: latest"),
    ("start: 2026-01-31T12:00:00Z", "start: 2026-01-31"),
    ("name: every.thing-1", "name: ${NAME:-x}"),
    ("bootstrap: a:9092, b:9092", "bootstrap: ${HOST:-a}:9092"),
    ("topics: [clicks, clicks.old]", "topic: clicks"),
    ("topics: [clicks, clicks.old]", "topics: clicks"),
    ("deduplicate: [id]", "deduplicate: id"),
    ("mode: upsert, keys: id", 'mode: "${MODE:-upsert}", keys: id'),
    ("user: u, password", "user: 12, password"),
    ("rate: 100", 'rate: "${RATE:-5}"'),
    ("delay: 1 hour", 'delay: "${DELAY:-1 hour}"'),
    ("from: one", 'from: "${FROM:-one}"'),
    ("keys: id, sequence_by: at, apply_as_deletes: gone", "keys: [id], tombstone_life: 2 days"),
]


@pytest.mark.parametrize(("one", "other"), ALTERNATIVES)
def test_what_the_checks_accept_the_schema_accepts(one: str, other: str, tmp_path: Path) -> None:
    assert one in EVERYTHING
    text = EVERYTHING.replace(one, other, 1)
    assert complaints(text) == []
    assert is_read(tmp_path, text)


def test_a_small_file_is_valid_in_both() -> None:
    assert complaints(shop_with()) == []
