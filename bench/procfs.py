"""What the kernel has counted for a process: CPU seconds and memory, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

MB: Final = 1_000_000


class Memory(NamedTuple):
    rss_mb: float
    anonymous_mb: float
    # Pages that several processes share count in parts.
    pss_mb: float


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads, those that ended included."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> Memory:
    """Resident and anonymous memory; file pages the kernel may take back, anonymous ones not."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) * 1024
    return Memory(sizes["Rss"] / MB, sizes["Anonymous"] / MB, sizes["Pss"] / MB)


def peak_rss_mb(pid: int) -> float:
    """The most that was ever resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / MB
    raise ValueError(f"process {pid} has no memory")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found, open_pids = [], [pid]
    while open_pids:
        parent = open_pids.pop()
        found.append(parent)
        try:
            threads = os.listdir(f"/proc/{parent}/task")
            for thread in threads:
                text = Path(f"/proc/{parent}/task/{thread}/children").read_text()
                open_pids += map(int, text.split())
        except OSError:
            continue
    return found
