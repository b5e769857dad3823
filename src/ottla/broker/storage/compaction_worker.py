"""The compaction process, started by the broker: `python -m` with this module.

It reads segments and writes new ones beside them. It renames nothing and removes nothing but its
own leftovers, so whatever becomes of it, the log is what it was.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import BinaryIO, Final

from ottla.broker.storage import compaction_pipe as pipe
from ottla.broker.storage.disk import RealDisk
from ottla.errors import OttlaError
from ottla.log.compaction.rewrite import Compaction

NICENESS: Final = 10
SIGN_OF_LIFE_S: Final = 1.0
PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_the_broker()
    with suppress(OSError):
        os.nice(NICENESS)
    worker = Worker(sys.stdin.buffer, sys.stdout.buffer)
    with suppress(BrokenPipeError):
        worker.serve()
    return 0


def _end_with_the_broker() -> None:
    """A broker that is killed takes its process along; elsewhere than on Linux a pipe breaks."""
    if sys.platform == "linux":
        import ctypes

        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


class Worker:
    def __init__(self, asked: BinaryIO, answers: BinaryIO) -> None:
        self._asked = asked
        self._answers = answers
        self._disk = RealDisk()
        self._told_at = 0.0

    def serve(self) -> None:
        while (message := self._next()) is not None:
            if message["kind"] == pipe.JOB:
                self._compact(message)

    def _compact(self, message: pipe.Message) -> None:
        compaction = Compaction(self._disk, pipe.decode_job(message), self._alive)
        try:
            for cleaned in compaction.run():
                self._tell(pipe.encode_cleaned(cleaned))
                if self._next() is None:
                    return
        except BrokenPipeError:
            raise
        except (OttlaError, OSError) as error:
            self._tell(pipe.encode(pipe.FAILED, error=type(error).__name__, reason=str(error)))
            return
        self._tell(
            pipe.encode(pipe.DONE, cleaned_to=compaction.cleaned_to, keys=compaction.key_count)
        )

    def _alive(self, _: int) -> None:
        if time.monotonic() - self._told_at > SIGN_OF_LIFE_S:
            self._tell(pipe.encode(pipe.ALIVE))

    def _tell(self, frame: bytes) -> None:
        self._answers.write(frame)
        self._answers.flush()
        self._told_at = time.monotonic()

    def _next(self) -> pipe.Message | None:
        length = self._asked.read(pipe.LENGTH.size)
        if len(length) < pipe.LENGTH.size:
            return None
        return pipe.decode(self._asked.read(pipe.body_bytes(length)))


if __name__ == "__main__":
    sys.exit(main())
