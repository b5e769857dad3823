"""A member of a group in a process of its own that reads so many messages and says when.

It says `ready` when it is loaded, begins at a line from its parent, says `reading` at the first
message and `done` at the last.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from bench.librdkafka import GroupConsumer, LoadFailed, Settings

READY: Final = "ready"
READING: Final = "reading"
DONE: Final = "done"
TIMEOUT_S: Final = 60.0

DEEP_PREFETCH: Final[Settings] = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 * 1024,
}


class GroupReaders:
    """The parent's view of one reader for each group."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def begin(self) -> None:
        for process in self._processes:
            to = _pipe(process.stdin)
            to.write("go\n")
            to.flush()

    def await_all(self, line: str) -> None:
        """Each reader gives up by itself when nothing comes."""
        for process in self._processes:
            said = _pipe(process.stdout).readline().strip()
            if said != line:
                raise LoadFailed(f"a reader said {said!r} and not {line!r}")


@contextmanager
def group_readers(bootstrap: str, topic: str, groups: int, count: int) -> Iterator[GroupReaders]:
    """One reader in each of so many groups, loaded and waiting for `begin`."""
    command = [sys.executable, "-m", "bench.group_reader", bootstrap, topic]
    processes = [
        subprocess.Popen(
            [*command, f"{topic}-{n}", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(groups)
    ]
    try:
        readers = GroupReaders(processes)
        readers.await_all(READY)
        yield readers
        for process in processes:
            process.wait(TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def main(bootstrap: str, topic: str, group: str, count: int) -> None:
    with GroupConsumer(bootstrap, group, DEEP_PREFETCH) as consumer:
        print(READY, flush=True)
        sys.stdin.readline()
        consumer.subscribe(topic)
        consumer.consume(1, TIMEOUT_S)
        print(READING, flush=True)
        consumer.consume(count - 1, TIMEOUT_S)
        print(DONE, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
