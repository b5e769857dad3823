"""A process that stands by without a Spark, and commands that it runs: for test_standby.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.pipelines.launch.standby import memory
from ottla.pipelines.launch.standby.asking import LeftAlone, hand_over, leave_one
from ottla.pipelines.launch.standby.likeness import Wish
from ottla.pipelines.launch.standby.waiting import stand_by

HERE = Path(sys.argv[0]).parent
ENDLESS_S = 120.0


def wish(setting: str) -> Wish:
    return Wish("local[1]", {"setting": setting}, (str(HERE / "some.jar"),))


def start(_: Wish, __: Callable[[], bool]) -> None:
    from ottla.spark.startup.environment import scratch

    (HERE / "waiting").write_text(f"{os.getpid()} {scratch()}")


def perform(arguments: Sequence[str]) -> Mapping[str, Any]:
    what = arguments[2]
    if what == "again":
        return {"start_again": True, "words": "once more", "variables": {"TOLD": "yes"}}
    if what == "last":
        try:
            (HERE / "begun").write_text(str(os.getpid()))
            time.sleep(ENDLESS_S)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            return {"exit_code": 130}
    seen = {
        "process": os.getpid(),
        "arguments": list(arguments),
        "columns": os.environ.get("COLUMNS"),
        "stdin": "" if sys.stdin.isatty() else sys.stdin.read(),
        "terminals": [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "width": os.get_terminal_size().columns if sys.stdout.isatty() else None,
        "line_by_line": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "path": sys.path[0],
    }
    print(json.dumps(seen))
    print("to stderr", file=sys.stderr)
    sys.stdout.flush()
    return {"exit_code": 7}


def main() -> int:
    what, setting = sys.argv[1:3]
    if what == "leave":
        command = [sys.executable, sys.argv[0], "stand-by", setting]
        return 0 if leave_one(wish(setting), command, os.environ, idle_s=float(sys.argv[3])) else 1
    if what == "stand-by":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        memory.MEMORY = HERE / "meminfo"
        stand_by(json.load(sys.stdin), start, perform)
        return 0
    try:
        outcome = hand_over(wish(setting))
    except LeftAlone as left:
        print(left, file=sys.stderr)
        return 1
    if outcome is None:
        print("cold")
    elif outcome.start_again:
        print(outcome.words, dict(outcome.variables))
    return outcome.exit_code if outcome is not None else 0


if __name__ == "__main__":
    sys.exit(main())
