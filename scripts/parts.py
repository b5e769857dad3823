"""Runs parts of `make test` one after the other, and says in the end what became of each.

    python scripts/parts.py lint unit scenarios

Stops at the first part that fails. Tests that were left out are listed with their reasons.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MAKE: Final = os.environ.get("MAKE", "make")
# pytest's last line, and its lines about what was skipped.
TOTALS: Final = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
LEFT_OUT: Final = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)")


@dataclass
class Part:
    name: str
    outcome: str = "not run"
    seconds: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)

    def run(self) -> bool:
        """Whether it has passed; its output goes on as it comes."""
        began, self.outcome = time.monotonic(), ""
        with subprocess.Popen(
            [MAKE, "--no-print-directory", self.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                self._read(line)
        self.seconds = time.monotonic() - began
        has_passed = process.returncode == 0
        self.outcome = self.outcome or "passed" if has_passed else f"FAILED {self.outcome}".rstrip()
        return has_passed

    def _read(self, line: str) -> None:
        totals, left_out = TOTALS.match(line), LEFT_OUT.match(line)
        if totals:
            self.outcome = totals[1]
        if left_out:
            self.left_out[left_out[2].strip()] += int(left_out[1])

    def told(self) -> str:
        return f"{self.name:<12}{self.outcome:<44}{self.seconds:>6.0f} s"


def main(names: Sequence[str]) -> int:
    parts = [Part(name) for name in names]
    code = 0
    for part in parts:
        if not part.run():
            code = 1
            break
    print("\n" + "\n".join(part.told() for part in parts))
    for part in parts:
        for reason, count in part.left_out.items():
            print(f"left out of {part.name}: {count}, {reason}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
