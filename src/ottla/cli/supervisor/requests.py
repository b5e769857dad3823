"""What other commands ask of the supervisor, over its socket: one line of JSON each way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ottla.cli.failures import CommandFailed
from ottla.cli.supervisor.home import Home
from ottla.cli.supervisor.node import Node, NodeEnded
from ottla.cli.supervisor.supervisor import Supervisor

LINE_BYTES_MAX: Final = 65_536
# A node that waits for a majority may wait for ever; whoever has started it need not.
START_PATIENCE_S: Final = 20.0
# More than the longest stop.
ANSWER_S_MAX: Final = 120.0


# ------------------------------------------------------------------------- the side that asks


def ask(home: Home, command: str, nodes: Sequence[int] = ()) -> dict[str, Any] | None:
    """The supervisor's answer; None when there is no supervisor."""
    connection = home.connect()
    if connection is None:
        return None
    with connection:
        connection.settimeout(ANSWER_S_MAX)
        try:
            request = {"command": command, "nodes": list(nodes)}
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as replies:
                line = replies.readline(LINE_BYTES_MAX)
        except OSError:
            line = b""
    if not line:
        raise CommandFailed("The supervisor of this cluster has ended, or does not answer.")
    answer: dict[str, Any] = json.loads(line)
    return answer


# --------------------------------------------------------------------- the side that is asked


class Requests:
    def __init__(self, supervisor: Supervisor, home: Home) -> None:
        self._supervisor = supervisor
        self._home = home
        self._under_way: set[asyncio.Task[Any]] = set()
        self._works: dict[str, Callable[[Node], Awaitable[str]]] = {
            "kill": self._kill,
            "start": self._start,
            "stop": self._stop,
        }

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_unix_server(
            self._take, sock=self._home.listen(), limit=LINE_BYTES_MAX
        )

    async def finish(self) -> None:
        """Whoever has asked is answered before all ends."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            request = json.loads(await reader.readline())
            answer = await self._answer(str(request["command"]), list(request["nodes"]))
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, KeyError, TypeError):
            # It was none of our commands, or is gone.
            pass
        finally:
            self._under_way.discard(task)
            writer.close()

    async def _answer(self, command: str, numbers: list[int]) -> dict[str, Any]:
        if command == "status":
            return {"nodes": [_facts(node) for node in self._supervisor.nodes.values()]}
        if command == "down":
            self._supervisor.begin_to_stop()
            await self._supervisor.stopped.wait()
            return {"said": ["The cluster is stopped."], "failed": []}
        work = self._works[command]
        outcomes = await asyncio.gather(*(self._do(work, number) for number in numbers))
        return {
            "said": [words for is_done, words in outcomes if is_done],
            "failed": [words for is_done, words in outcomes if not is_done],
        }

    async def _do(self, work: Callable[[Node], Awaitable[str]], number: int) -> tuple[bool, str]:
        node = self._supervisor.nodes.get(number)
        if node is None:
            last = max(self._supervisor.nodes)
            return False, f"There is no node {number}; the cluster has 1 to {last}."
        try:
            return True, await work(node)
        except CommandFailed as failure:
            return False, str(failure)

    async def _kill(self, node: Node) -> str:
        self._take_over(node)
        await node.kill()
        return f"Node {node.number} is killed."

    async def _stop(self, node: Node) -> str:
        self._take_over(node)
        await node.stop()
        return f"Node {node.number} is stopped."

    def _take_over(self, node: Node) -> None:
        self._supervisor.leave_to_people(node.number)
        if not node.is_alive:
            raise CommandFailed(f"Node {node.number} does not run: it is {node.state}.")

    async def _start(self, node: Node) -> str:
        if node.is_alive:
            raise CommandFailed(f"Node {node.number} is {node.state} already.")
        self._supervisor.leave_to_people(node.number)
        starting = asyncio.get_running_loop().create_task(node.start())
        await asyncio.wait((starting,), timeout=START_PATIENCE_S)
        if not starting.done():
            starting.add_done_callback(_look_at)
            return f"Node {node.number} is started, and waits for a majority of the nodes."
        try:
            starting.result()
        except NodeEnded:
            words = node.last_words or f"it {node.how_it_ended()}"
            raise CommandFailed(f"Node {node.number} does not start: {words}") from None
        return f"Node {node.number} is ready at {node.address}."


def _look_at(task: asyncio.Task[None]) -> None:
    """Its lines tell why it has ended."""
    if not task.cancelled():
        task.exception()


def _facts(node: Node) -> dict[str, Any]:
    return {
        "node_id": node.number,
        "pid": node.pid,
        "address": node.address,
        "state": str(node.state),
        "http": node.http,
    }
