"""Writes docs/reference from the code: settings, commands, what of Kafka's protocol is spoken, the
alerts, and the keys of a pipeline file with their JSON Schema; and the tables of options in
docs/spark.md.

`make docs` runs it; a test compares the committed pages with a fresh rendering.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import yaml

from ottla.broker.counters import Metrics
from ottla.broker.metrics.gauges import register_gauges
from ottla.broker.metrics.storage_gauges import register_storage_gauges
from ottla.broker.network.router import APIS, NEVER_FLEXIBLE, Api
from ottla.cli.reference import GENERATED, render_commands, render_settings
from ottla.pipelines.language.json_schema import schema_text
from ottla.pipelines.language.reference import render_pipeline
from ottla.spark.options.reference import fill

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
SPARK = REFERENCE.parent / "spark.md"
# What Prometheus puts there: {{ $labels.instance }}, {{ $value | humanizeDuration }}.
LABEL = re.compile(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}")
SCHEMA = (
    REFERENCE.parent.parent / "src" / "ottla" / "pipelines" / "language" / "pipeline.schema.json"
)

INTRODUCTION = f"""\
{GENERATED}

# Compatibility with Kafka

Ottla speaks Kafka's wire protocol as 4.0 brokers do. This is every API that it advertises, with its
versions; what is not listed is not advertised, and clients that need it say so. Below the table
stands, API by API, what it covers and where it differs from Kafka.
"""


def render_compatibility() -> str:
    apis = sorted(APIS.values(), key=lambda api: api.key)
    rows = ["| API | key | versions | flexible from |", "|---|---:|---|---|", *map(_row, apis)]
    sections = [f"## {api.name}\n\n{_covers(api)}\n" for api in apis]
    return INTRODUCTION + "\n" + "\n".join(rows) + "\n\n" + "\n".join(sections)


def _row(api: Api) -> str:
    versions = f"{api.first}" if api.first == api.last else f"{api.first} to {api.last}"
    flexible = "never" if api.flexible == NEVER_FLEXIBLE else f"{api.flexible}"
    return f"| [{api.name}](#{api.name.lower()}) | {api.key:d} | {versions} | {flexible} |"


def _covers(api: Api) -> str:
    """The docstring of the API's handler, which says versions, KIPs and what is left out."""
    handler = importlib.import_module(f"ottla.broker.handlers.{api.module}")
    return inspect.getdoc(handler) or ""


METRICS = f"""\
{GENERATED}

# Metrics

A broker with `http.listener` serves them under `/metrics` in Prometheus' text format, read off its
state at that moment. [`docs/alerts.yml`](../alerts.yml) has alert rules for them. Times are in
seconds, and a `…_timestamp_seconds` is a time since 1970. Families with one series per topic, group
or partition are cut at 20,000 series; `ottla_metrics_series_left_out` says by how much.
"""


def render_metrics() -> str:
    metrics = Metrics()
    # Whose state they will read, nobody asks before the first scrape.
    register_gauges(metrics, MagicMock(), MagicMock())
    register_storage_gauges(metrics, MagicMock())
    rows = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for name, kind, labels, help in sorted(metrics.catalogue()):
        named = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {kind} | {named} | {help} |")
    return METRICS + "\n" + "\n".join(rows) + "\n"


ALERTS = f"""\
{GENERATED}

# Alerts

What the rules in [`docs/alerts.yml`](../alerts.yml) say, and what to do then. Name that file under
`rule_files` of a Prometheus that scrapes the brokers as `job="ottla"`.
"""


def render_alerts() -> str:
    groups = yaml.safe_load((REFERENCE.parent / "alerts.yml").read_text())["groups"]
    return ALERTS + "".join(_alert(rule) for group in groups for rule in group["rules"])


def _alert(rule: dict[str, Any]) -> str:
    told = {name: LABEL.sub(r"`\1`", text) for name, text in rule["annotations"].items()}
    return (
        f"\n## {rule['alert']}\n\n{told['summary']}. {told['description']}\n\n"
        f"**What to do**: {told['action']}\n\n"
        f"Severity {rule['labels']['severity']}, after {rule['for']} of\n\n"
        f"```promql\n{rule['expr']}\n```\n"
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": render_settings,
    "commands.md": render_commands,
    "compatibility.md": render_compatibility,
    "metrics.md": render_metrics,
    "alerts.md": render_alerts,
    "pipeline.md": lambda: f"{GENERATED}\n\n{render_pipeline()}",
}


def render(page: str) -> str:
    return PAGES[page]().rstrip() + "\n"


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (REFERENCE / page).write_text(render(page))
        print(f"docs/reference/{page}")
    SPARK.write_text(fill(SPARK.read_text()))
    print("docs/spark.md")
    SCHEMA.write_text(schema_text())
    print("src/ottla/pipelines/language/pipeline.schema.json")


if __name__ == "__main__":
    main()
