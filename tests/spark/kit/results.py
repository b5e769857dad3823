"""What the program of a child process found, told by lines in its output."""

from __future__ import annotations

import json
from typing import Any

MARK = "RESULT "


def say(**found: Any) -> None:
    print(MARK + json.dumps(found), flush=True)


def results(text: str) -> dict[str, Any]:
    lines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    return {name: value for line in lines for name, value in json.loads(line).items()}
