"""Runs franz-go's own kgo test suite, unmodified, against Ottla (or any Kafka cluster).

    python tests/compat/run.py                      starts a broker of its own
    python tests/compat/run.py --bootstrap H:P      uses a running cluster
    python tests/compat/run.py --nodes 3            starts three, with all topics on each of them
    python tests/compat/run.py --only TestGroupETL  runs the tests that match

The suite comes from its Go module, is built once into .cache/compat, and is bounded in time. Tests
that Ottla cannot pass yet are in skip.toml, each with its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.2"
MODULE_SUM = "h1:EdwIHGzD/4mgCpl/sNS0C74JYn6cL/r2KYS+8UC96Ww="
BUILD_TIMEOUT_S = 600
SKIP_FILE = Path(__file__).parent / "skip.toml"
CACHE = Path(__file__).parents[2] / ".cache" / "compat"
RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)")
OUTPUT_TAIL_LINES = 60


@dataclass
class Outcome:
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def main() -> int:
    arguments = parse_arguments()
    if shutil.which("go") is None:
        print("go not found; to run this suite: install Go 1.26 or newer", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    try:
        binary = build()
        skips = read_skips(list_tests(binary))
    except (subprocess.SubprocessError, ValueError) as error:
        output = getattr(error, "stderr", None) or getattr(error, "output", None) or ""
        print(f"{error}\n{output}", file=sys.stderr)
        return 1
    for test, reason in skips.items():
        print(f"skipped: {test}: {reason}")
    with broker(arguments.bootstrap, arguments.nodes) as bootstrap:
        print(f"kgo {VERSION} against {bootstrap}, {arguments.records} records", flush=True)
        outcome, is_complete = run(binary, bootstrap, skips, arguments)
    outcome.skipped.extend(skips)
    for test in outcome.failed:
        print(f"failed: {test}")
    if not is_complete:
        print(f"the suite did not end by itself; its output is in {CACHE / 'kgo.log'}")
    print(
        f"{len(outcome.passed)} passed, {len(outcome.failed)} failed,"
        f" {len(outcome.skipped)} skipped"
    )
    return 0 if is_complete and outcome.passed and not outcome.failed else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default=os.environ.get("OTTLA_TEST_BOOTSTRAP"))
    parser.add_argument("--records", default=os.environ.get("KGO_TEST_RECORDS", "20000"))
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--timeout-s", type=int, default=480)
    parser.add_argument("--only", help="a pattern of go test -run")
    return parser.parse_args()


def build() -> Path:
    """The suite's test binary, built from a copy of the module as the registry gives it."""
    target = CACHE / f"franz-go-{VERSION}"
    binary = target / "kgo.test"
    if binary.exists():
        return binary
    CACHE.mkdir(parents=True, exist_ok=True)
    found = json.loads(
        go("mod", "download", "-json", f"{MODULE}@{VERSION}", directory=CACHE, GOWORK="off")
    )
    if found.get("Sum") != MODULE_SUM:
        raise ValueError(f"{MODULE}@{VERSION} is {found.get('Sum')}, not {MODULE_SUM}")
    shutil.rmtree(target, ignore_errors=True)
    # The module cache is read-only; its permissions are not copied.
    shutil.copytree(found["Dir"], target, copy_function=shutil.copyfile)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    print("building the suite ...", flush=True)
    go("test", "-c", "-o", str(binary), "./pkg/kgo", directory=target, GOWORK="off")
    return binary


def go(*arguments: str, directory: Path, **environment: str) -> str:
    return subprocess.run(
        ["go", *arguments],
        cwd=directory,
        env={**os.environ, "GOFLAGS": "-buildvcs=false", **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=True,
    ).stdout


def list_tests(binary: Path) -> list[str]:
    listed = subprocess.run(
        [str(binary), "-test.list", "."], capture_output=True, text=True, timeout=60, check=True
    )
    return listed.stdout.split()


def read_skips(tests: list[str]) -> dict[str, str]:
    skips = {}
    for entry in tomllib.loads(SKIP_FILE.read_text())["skip"]:
        pattern = re.compile(entry["test"].split("/")[0])
        if not any(pattern.search(test) for test in tests):
            raise ValueError(f"{SKIP_FILE.name}: {entry['test']} matches no test of {VERSION}")
        skips[entry["test"]] = entry["reason"]
    return skips


@contextlib.contextmanager
def broker(bootstrap: str | None, nodes: int) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    from ottla.testing import Broker, Cluster

    if nodes > 1:
        with Cluster(nodes=nodes) as cluster:
            yield cluster.bootstrap
            for number, node in cluster.nodes.items():
                if not node.is_running:
                    print(f"node {number} ended:\n{node.log_text()[-5000:]}", file=sys.stderr)
                (CACHE / f"broker-{number}.log").write_text(node.log_text())
        return
    with Broker() as started:
        yield started.bootstrap
        if not started.is_running:
            print(f"the broker ended:\n{started.log_text()[-5000:]}", file=sys.stderr)
        (CACHE / "broker.log").write_text(started.log_text())


def run(
    binary: Path, bootstrap: str, skips: dict[str, str], arguments: argparse.Namespace
) -> tuple[Outcome, bool]:
    command = [str(binary), "-test.v", f"-test.timeout={arguments.timeout_s}s"]
    if skips:
        command.append("-test.skip=" + "|".join(skips))
    if arguments.only:
        command.append(f"-test.run={arguments.only}")
    environment = {
        "KGO_LOG_LEVEL": "none",
        **os.environ,
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": str(arguments.nodes),
        "KGO_TEST_RECORDS": arguments.records,
    }
    outcome = Outcome()
    lists = {"PASS": outcome.passed, "FAIL": outcome.failed, "SKIP": outcome.skipped}
    tail: list[str] = []
    with (CACHE / "kgo.log").open("w") as log:
        # Its own -test.timeout ends the suite, with the stacks of whatever hangs.
        process = subprocess.Popen(
            command,
            cwd=binary.parent / "pkg" / "kgo",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
        )
        with process:
            for line in process.stdout:
                log.write(line)
                tail = [*tail[-OUTPUT_TAIL_LINES:], line]
                if (found := RESULT.match(line)) is not None:
                    lists[found[1]].append(found[2])
                    if found[1] == "FAIL":
                        print("".join(tail), flush=True)
    return outcome, process.returncode in (0, 1) and "panic:" not in "".join(tail)


if __name__ == "__main__":
    sys.exit(main())
