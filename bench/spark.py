"""Spark with `format("ottla")` against Spark with its own `format("kafka")`, on the same broker.

Each run is a Spark application of its own, in turn; its first read or write is the cold one, the
rest are warm. The ceiling is what Spark takes from Python when the Arrow batches need no broker.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import maven, procfs, report, spark_pipeline
from bench.librdkafka import LoadFailed
from bench.loads import Backlog
from bench.nodes import Meter, Node, OttlaNode, bootstrap, create_topic, running, topic
from bench.plots import pyplot_to_svg, save
from bench.runner import Tick
from bench.spark_job import MASTER, Job
from bench.spark_workers import workers
from bench.spread import Figures, Spread, spreads

CONNECTOR_POM: Final = Path("tests/spark/kit/connector.pom.xml")
CONNECTOR: Final = "spark-sql-kafka-0-10_2.13 4.2.0"
JOB_TIMEOUT_S: Final = 400.0
SAMPLE_S: Final = 0.2
WARM_RUNS: Final = 2
PARTITIONS: Final = 12
# Kafka's producer as people tune it for throughput; as shipped it sends 16 KB at a time.
TUNED: Final = {"kafka.batch.size": "1000000", "kafka.linger.ms": "20"}


@dataclass(frozen=True, slots=True)
class SparkCase:
    name: str
    title: str
    action: str
    message_bytes: int
    rows: int
    # For format("kafka") only: the names of a sink's tuning are the Java client's.
    kafka_options: Mapping[str, str] = field(default_factory=dict)
    has_ceiling: bool = False
    # For the pipeline: with the dead letters of the example, which the other side has not.
    has_dead_letters: bool = False
    # A master and two workers of one core each, in place of local[2].
    on_workers: bool = False


ORDERS: Final = 300_000
ORDER_BYTES: Final = 95

CASES: Final = (
    SparkCase("first-read", "first read, 1,000 rows of 100 B", "first", 100, 1000),
    SparkCase("read-100B", "read 10 M rows of 100 B", "read", 100, 10_000_000, has_ceiling=True),
    SparkCase(
        "read-100B-workers",
        "… on two workers of one core",
        "read",
        100,
        10_000_000,
        on_workers=True,
    ),
    SparkCase("read-1KB", "read 1 M rows of 1 KB", "read", 1000, 1_000_000, has_ceiling=True),
    SparkCase("write-100B", "write 10 M rows of 100 B", "write", 100, 10_000_000),
    SparkCase("write-1KB", "write 1 M rows of 1 KB", "write", 1000, 1_000_000),
    SparkCase(
        "write-100B-tuned", "… of 100 B, format(kafka) tuned", "write", 100, 10_000_000, TUNED
    ),
    SparkCase("write-1KB-tuned", "… of 1 KB, format(kafka) tuned", "write", 1000, 1_000_000, TUNED),
    SparkCase(
        "pipeline",
        "demo pipeline, 300 k orders; by hand",
        "pipeline",
        ORDER_BYTES,
        ORDERS,
        has_dead_letters=True,
    ),
    SparkCase("pipeline-drop", "… bad records dropped; by hand", "pipeline", ORDER_BYTES, ORDERS),
)
# Those that read a topic that was filled before.
READING: Final = ("read", "first")
# By case and format.
Results = dict[str, dict[str, dict[str, Spread]]]


def compare(cases: Sequence[SparkCase], rounds: int, tick: Tick) -> Results:
    jars = connector_jars()
    runs: dict[str, dict[str, list[Figures]]] = {}
    with running(OttlaNode) as node:
        for case in cases:
            if case.action in READING:
                tick(f"{case.name}: filling the topic")
                create_topic(node, case.name, PARTITIONS)
                Backlog(case.message_bytes, case.rows, partitions=PARTITIONS).produce(
                    node, case.name
                )
            elif case.action == "pipeline":
                tick(f"{case.name}: filling the topic")
                create_topic(node, case.name, PARTITIONS)
                spark_pipeline.fill(bootstrap(node), case.name, case.rows)
        for number in range(rounds):
            for case in cases:
                for format in formats_of(case):
                    tick(f"round {number + 1}, {format}: {case.name}")
                    figures = _measure(node, case, format, jars)
                    runs.setdefault(case.name, {}).setdefault(format, []).append(figures)
    return {
        case: {format: spreads(figures) for format, figures in by_format.items()}
        for case, by_format in runs.items()
    }


def steps(cases: Sequence[SparkCase], rounds: int) -> int:
    return rounds * sum(len(formats_of(case)) for case in cases) + len(cases)


def formats_of(case: SparkCase) -> tuple[str, ...]:
    return ("ottla", "kafka", "ceiling") if case.has_ceiling else ("ottla", "kafka")


def connector_jars() -> list[str]:
    home = Path(".cache/spark/bench-connector").absolute()
    jars = maven.resolve(home, CONNECTOR_POM.read_text(), "the Spark connector's")
    return sorted(map(str, jars.glob("*.jar")))


def _measure(node: Node, case: SparkCase, format: str, jars: Sequence[str]) -> Figures:
    if case.on_workers:
        with workers() as master:
            return _run(node, case, format, case.name, jars, master=master)
    if case.action in READING:
        return _run(node, case, format, case.name, jars)
    with topic(node, f"{case.name}-{format}", PARTITIONS) as name:
        if case.action == "write":
            return _run(node, case, format, name, jars)
        with topic(node, f"{case.name}-{format}-dead", PARTITIONS) as dead:
            dead_letters = dead if case.has_dead_letters else ""
            return _run(node, case, format, case.name, jars, name, dead_letters)


def _run(
    node: Node,
    case: SparkCase,
    format: str,
    name: str,
    jars: Sequence[str],
    target: str = "",
    dead_letters: str = "",
    master: str = MASTER,
) -> Figures:
    job = Job(
        master=master,
        target=target,
        dead_letters=dead_letters,
        format=format,
        action=case.action,
        bootstrap=bootstrap(node),
        topic=name,
        rows=case.rows,
        message_bytes=case.message_bytes,
        partitions=PARTITIONS,
        runs=1 + WARM_RUNS,
        jars=jars if format == "kafka" else (),
        options=dict(case.kafka_options) if format == "kafka" else {},
    )
    command = [sys.executable, "-m", "bench.spark_job", json.dumps(asdict(job))]
    with Meter(node) as meter:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with TreeMeter(process.pid) as tree:
            try:
                out, err = process.communicate(timeout=JOB_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise LoadFailed(
                    f"{case.name}, {format}: not done in {JOB_TIMEOUT_S:g} s"
                ) from None
    if process.returncode:
        raise LoadFailed(f"{case.name}, {format}: {err[-3000:]}")
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    cold, *warm = [line["seconds"] for line in lines if "seconds" in line]
    total = case.rows * (1 + WARM_RUNS)
    return {
        "session_s": next(line["session_s"] for line in lines if "session_s" in line),
        "first_s": cold,
        "cold_per_s": case.rows / cold,
        "warm_per_s": case.rows / statistics.median(warm),
        "tree_rss_mb": tree.peak_rss_mb,
        "tree_cpu_us": tree.cpu_seconds / total * 1e6,
        "broker_cpu_us": meter.cpu_seconds / total * 1e6,
    }


class TreeMeter:
    """A process and all below it: the most memory at once, and the CPU seconds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree-meter")
        self._cpu: dict[int, float] = {}
        self.peak_rss_mb = 0.0

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def __enter__(self) -> TreeMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            rss_mb = 0.0
            for pid in procfs.tree(self._pid):
                try:
                    self._cpu[pid] = procfs.cpu_seconds(pid)
                    rss_mb += procfs.memory(pid).pss_mb
                except (OSError, KeyError):
                    continue
            self.peak_rss_mb = max(self.peak_rss_mb, rss_mb)


# ---------------------------------------------------------------------------------- what is shown

COLUMNS: Final = (
    ("warm_per_s", "rows/s, warm", 0, 1.0),
    ("cold_per_s", "rows/s, cold", 0, None),
    ("session_s", "start of the session, s", 2, None),
    ("first_s", "first run in a session, s", 2, None),
    ("tree_rss_mb", "memory, MB", 0, None),
    ("tree_cpu_us", "CPU of Spark, µs/row", 2, None),
    ("broker_cpu_us", "CPU of the broker, µs/row", 2, None),
)
FORMATS: Final = {"ottla": 'format("ottla")', "kafka": 'format("kafka")', "ceiling": "no broker"}
TITLES: Final = {
    "read": "read (red: the same batches without a broker)",
    "write": "write",
    "pipeline": "orders-per-minute: the pipeline file, the query by hand",
}


def sheets(cases: Sequence[SparkCase], results: Results) -> list[report.Sheet]:
    made = []
    for name, heading, digits, goal in COLUMNS:
        rows = []
        for case in cases:
            by_format = {format: figures[name] for format, figures in results[case.name].items()}
            ratio = by_format["ottla"].median / by_format["kafka"].median
            cells = [report.Cell(case.title)]
            for format in FORMATS:
                spread = by_format.get(format)
                text = (
                    ""
                    if spread is None
                    else f"{spread.median:,.{digits}f} {_swing(spread)}".rstrip()
                )
                cells.append(report.Cell(text))
            cells.append(report.Cell(f"{ratio:.2f}", None if goal is None else ratio >= goal))
            rows.append(cells)
        made.append(report.Sheet(heading, ("", *FORMATS.values(), "ratio"), rows))
    return made


def _swing(spread: Spread) -> str:
    if spread.high == spread.low:
        return ""
    return f"±{(spread.high - spread.low) / 2 / spread.median * 100:.0f} %"


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("pyspark", "pyarrow", "numba")} | {
        "connector": CONNECTOR
    }


def keep(
    cases: Sequence[SparkCase], results: Results, about: Mapping[str, Any], home: Path
) -> list[Path]:
    """The table, the samples and the picture."""
    home.mkdir(parents=True, exist_ok=True)
    table, samples = home / "spark.md", home / "spark.json"
    table.write_text(
        report.markdown("Spark: format(ottla) against format(kafka)", about, sheets(cases, results))
        + f"\n{_settings(about)}\n\n![rows per second](spark.svg)\n"
    )
    samples.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    if not any(case.action in TITLES for case in cases):
        return [table, samples]
    return [table, samples, draw(cases, results, home / "spark.svg")]


def _settings(about: Mapping[str, Any]) -> str:
    versions = about["versions"]
    return (
        f"PySpark {versions['pyspark']} as {MASTER}, driver memory 2 GB, {versions['connector']}, "
        f"pyarrow {versions['pyarrow']}, numba {versions['numba']}; {about['rounds']} applications "
        f"of each format in turn, {WARM_RUNS} warm runs in each; one Ottla broker on the same "
        f"cores, {PARTITIONS} partitions, `write.caching`. Memory is of the driver with its JVM "
        "and all Python workers, shared pages counted once; CPU includes the start of Spark. "
        "Neither counts what runs below workers of a cluster."
    )


def draw(cases: Sequence[SparkCase], results: Results, path: Path) -> Path:
    """Rows per second, warm, of each case: side by side, the ceiling as a line."""
    from bench.peer_plots import BARS

    pyplot: Any = pyplot_to_svg()
    actions = [name for name in TITLES if any(case.action == name for case in cases)]
    figure, axes = pyplot.subplots(1, len(actions), figsize=(5.5 * len(actions), 3.6))
    for axis, action in zip(axes if len(actions) > 1 else [axes], actions, strict=True):
        chosen = [case for case in cases if case.action == action]
        for shift, format in ((-0.2, "ottla"), (0.2, "kafka")):
            values = [results[case.name][format]["warm_per_s"].median / 1e6 for case in chosen]
            places = [index + shift for index in range(len(chosen))]
            axis.bar(places, values, 0.36, label=FORMATS[format], **BARS[format])
        for index, case in enumerate(chosen):
            if case.has_ceiling:
                top = results[case.name]["ceiling"]["warm_per_s"].median / 1e6
                axis.hlines(top, index - 0.4, index + 0.4, color="#c1121f", linestyle="--")
        axis.set_xticks(range(len(chosen)), [case.title for case in chosen], fontsize=8)
        axis.set_ylabel("million rows/s, warm")
        axis.set_title(TITLES[action])
        axis.legend(fontsize=8)
    return save(figure, path)
