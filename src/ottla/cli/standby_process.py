"""`python -m ottla.cli.standby_process`: stands by for a command, which then runs here."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ottla.cli import output
from ottla.cli.failures import FAILED, StartAgain
from ottla.cli.main import main as do
from ottla.cli.standby import TAKEN_UP
from ottla.pipelines.launch.standby.starting import start
from ottla.pipelines.launch.standby.waiting import stand_by


class _Again(BaseException):
    def __init__(self, wanted: StartAgain) -> None:
        super().__init__()
        self.wanted = wanted


def perform(arguments: Sequence[str]) -> Mapping[str, Any]:
    """As the command itself would end; what only a new process can go on with is told."""
    try:
        return {"exit_code": do(arguments, start_again=_start_again)}
    except _Again as again:
        ours = {name: value for name, value in os.environ.items() if name.startswith(TAKEN_UP)}
        variables = {**ours, **again.wanted.variables}
        return {"start_again": True, "words": str(again.wanted), "variables": variables}
    except SystemExit as end:
        return {"exit_code": end.code if isinstance(end.code, int) else int(end.code is not None)}
    except BaseException:
        traceback.print_exc()
        return {"exit_code": FAILED}


def _start_again(wanted: StartAgain) -> NoReturn:
    output.flush()
    raise _Again(wanted)


def main() -> None:
    stand_by(json.load(sys.stdin), start, perform)


if __name__ == "__main__":
    main()
