"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from ottla.broker import logs


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(logs.ROOT).setLevel(logging.NOTSET)


def test_text_lines_name_level_and_place() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    logging.getLogger("ottla.broker.main").info("ready on %s", "here")
    assert stream.getvalue().endswith(" info    broker.main: ready on here\n")


def test_json_lines_are_objects_with_the_traceback_inside() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    try:
        int("oh")
    except ValueError:
        logging.getLogger("ottla.x").exception("two\nlines")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "ottla.x", "two\nlines")
    assert "ValueError: invalid literal" in entry["error"]
    assert entry["time"].endswith("Z")


def test_level_changes_at_run_time() -> None:
    stream = io.StringIO()
    logs.configure("warning", "text", stream)
    logger = logging.getLogger("ottla.x")
    logger.info("unheard")
    logs.set_level("debug")
    logger.debug("heard")
    assert "unheard" not in stream.getvalue()
    assert stream.getvalue().endswith("x: heard\n")


def test_configuring_again_does_not_double_the_lines() -> None:
    logs.configure("info", "text", io.StringIO())
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    logging.getLogger("ottla.x").info("once")
    assert stream.getvalue().count("once") == 1


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="xml"):
        logs.configure("info", "xml")
