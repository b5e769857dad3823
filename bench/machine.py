"""Where and from what the figures came."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import librdkafka

LOAD_OF_OTHERS_MAX: Final = 0.5


def load_of_others() -> float:
    """How many processes were running on average in the last minute; asked before a run."""
    return round(os.getloadavg()[0], 2)


def describe(load_before: float) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rev": revision(),
        "load_before": load_before,
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "read_ahead_kb": _read_ahead_kb(),
            "kernel": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "python": _python(),
            "uvloop": version("uvloop"),
            "librdkafka": librdkafka.version(),
        },
    }


def revision() -> str:
    """The commit, with a plus sign when the working tree differs from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head or 'none'}{'+' if _git('status', '--porcelain', 'src') else ''}"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _python() -> str:
    """Its version and whose it is: builds differ by some 15 %."""
    return f"{platform.python_version()} of {sys.base_prefix}"


def _read_ahead_kb() -> int | None:
    """Of the disk with the data; Kafka's mapped indexes feel it."""
    device = Path.cwd().stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (block / "queue", block / ".." / "queue"):
        if (queue / "read_ahead_kb").exists():
            return int((queue / "read_ahead_kb").read_text())
    return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
