"""Whatever stands in the file: a pipeline, or lines that say what is wrong. Never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline
from unit.pipelines.pipeline_files import EVERYTHING, SHOP

relaxed = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=100)


def check(file: Path, overrides: dict[str, str] | None = None) -> None:
    """Read, or refused in lines that can be printed."""
    environment = {"PGPASSWORD": "x", "EMPTY": "", "BROKEN": "\udcff"}
    try:
        read_pipeline(file, environment=environment, overrides=overrides or {})
    except BadPipeline as bad:
        lines = [str(problem) for problem in bad.problems]
    else:
        return
    assert lines
    for line in lines:
        assert line.encode()
        assert "\n" not in line
        assert len(line) < 1000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any") / "p.yaml"


@relaxed
@given(data=st.binary(max_size=300))
def test_any_bytes(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    check(file)


@relaxed
@given(text=st.text(max_size=300))
@example("%YAML 1.0\n--- {}\n")
@example("%YAML 1." + "9" * 5000 + "\n--- {}\n")
@example('a: "\\UFFFFFFFF"')
@example("? a\n: b\n? [c]\n")
@example("\ufeffversion: 1")
@example("version: 1\x85name: 2\u2028sources: {}")
def test_any_text(file: Path, text: str) -> None:
    file.write_text(text, errors="ignore", newline="")
    check(file)


# Pieces of which files are made, put together as no person would.
WORDS = st.sampled_from(
    ["version", "name", "sources", "views", "sinks", "tests", "topic", "topics", "files", "jdbc",
     "delta", "rate", "format", "schema", "watermark", "column", "delay", "bad_records", "options",
     "from", "key", "mode", "upsert", "append", "current_table", "given", "expect", "sql", "file",
     "python", "read", "table", "json", "avro", "csv", "trigger", "restarts", "max", "backoff",
     "kafka", "spark", "1", "-1", "true", "null", "orders", "id string", "2 minutes", "${X}",
     "${PGPASSWORD}", "${BROKEN}", "${EMPTY}", "$${", "a.b", "..", "/", "/dev/null", "", " ", "\t",
     "<<", "99999999999999999999", "0000-00-00", "9999-12-31T23:59:59Z", "0001-01-01", "{}"]
)  # fmt: skip
VALUES = st.recursive(
    WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=15,
)
SECTIONS = st.dictionaries(WORDS, VALUES, max_size=8)


def as_yaml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_yaml(k)}: {as_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    quoted = str(value).replace("'", "''")
    return f"'{quoted}'" if quoted != "null" else "null"


@relaxed
@given(document=SECTIONS)
def test_any_structure(file: Path, document: dict[str, object]) -> None:
    file.write_text(as_yaml({"version": "1", "name": "p", **document}))
    check(file)


@relaxed
@given(data=st.data(), text=st.sampled_from([SHOP, EVERYTHING]))
def test_a_good_file_with_a_piece_gone_or_doubled(
    file: Path, data: st.DataObject, text: str
) -> None:
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 40))
    put = data.draw(st.sampled_from(["", text[start : start + length] * 2, "\n", "  ", "{", "'"]))
    file.write_text(text[:start] + put + text[start + length :])
    check(file)


@relaxed
@given(path=st.lists(WORDS, max_size=5).map(".".join), value=st.text(max_size=30) | WORDS)
def test_any_override(file: Path, path: str, value: str) -> None:
    file.write_text(SHOP)
    check(file, {path: value})
