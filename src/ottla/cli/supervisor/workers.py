"""`ottla start --workers N`: the parent of the brokers of one host."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.broker.storage.disk import RealDisk
from ottla.cli.failures import CommandFailed
from ottla.cli.formatting import format_directory, new_id
from ottla.cli.serving import SETTING_BY_OPTION, Invocation, cores, report_ready
from ottla.cli.supervisor.leftovers import await_leftovers
from ottla.cli.supervisor.stream import Objects, Prefixed, Stream
from ottla.cli.supervisor.supervisor import Crew, Member, Supervisor
from ottla.config import BrokerConfig, Listener
from ottla.config.workers import check_workers, worker_config
from ottla.log.directory import DataDirectory, IncompatibleDataDirectory

# A clean stop syncs every log, however long that takes; whoever waits for it, as systemd does,
# has a limit of its own.
STOP_S_MAX: Final = 600.0
WORD: Final = "worker"


def run_workers(invocation: Invocation, config: BrokerConfig, count: int) -> int:
    """Nothing is started before all that can be known to be wrong is told; the exit code."""
    check_workers(config, count)
    host = socket.gethostname()
    configs = {number: worker_config(config, number, host) for number in range(1, count + 1)}
    shape = Objects(WORD) if config.log_format == "json" else Prefixed(sys.stderr, WORD, "workers")
    stream = Stream(sys.stderr, shape)
    try:
        if count > cores():
            stream.tell(
                f"warning: {count} workers on {cores()} core(s): each wants one for itself, so "
                "more of them than cores make nothing faster"
            )
        places = {number: Path(each.log_dirs[0]) for number, each in configs.items()}
        await_leftovers(places, WORD, stream)
        for listener in config.client_listeners():
            _check_free(listener)
        _format(invocation.cluster_id, configs)
        return asyncio.run(_run(invocation, configs, stream))
    finally:
        stream.close()


async def _run(invocation: Invocation, configs: dict[int, BrokerConfig], stream: Stream) -> int:
    first = configs[1]
    bootstrap = ",".join(str(listener.address) for listener in first.shared())

    def greet(supervisor: Supervisor, took_s: float) -> None:
        count = len(configs)
        workers = "1 worker is" if count == 1 else f"{count} workers are"
        stream.tell(f"{workers} ready ({took_s:.1f} s), bootstrap {bootstrap}")
        for number, node in supervisor.nodes.items():
            http = f", health and metrics on {node.http}" if node.http else ""
            stream.tell(
                f"worker {number} is node {configs[number].node_id} on {node.address}{http}, "
                f"data in {', '.join(configs[number].log_dirs)}"
            )
        if invocation.ready_fd is not None:
            pages, data_dir = supervisor.nodes[1].http, ", ".join(first.log_dirs)
            report_ready(invocation.ready_fd, bootstrap, pages, data_dir)

    crew = Crew(
        [
            Member(
                number,
                str(config.client_listeners()[0].address),
                _command(invocation, number),
            )
            for number, config in configs.items()
        ],
        dict(os.environ),
        word=WORD,
        remedy=None,
        stop_s_max=STOP_S_MAX,
        # The others tell it that they stop.
        last=frozenset({1} if first.is_controller else ()),
    )
    return await Supervisor(crew, stream, greet).run()


def _command(invocation: Invocation, number: int) -> list[str]:
    """As this command was given; what is the worker's own follows from its number."""
    command = [sys.executable, "-m", "ottla", "start", "--die-with-parent"]
    command += ["--worker", str(number)]
    for text in invocation.sets:
        command += ["--set", text]
    for option, setting in SETTING_BY_OPTION.items():
        if setting in invocation.flags:
            command.append(f"{option}={invocation.flags[setting]}")
    if invocation.config_file is not None:
        command.append(invocation.config_file)
    return command


def _check_free(listener: Listener) -> None:
    """The workers share their port with each other, and would with a stranger's."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    try:
        socket.create_server((listener.host, listener.port), family=family).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandFailed(
            f"listeners={listener} cannot be served: {reason}; choose another address with "
            "--listen HOST:PORT."
        ) from None


def _format(given_id: str | None, configs: dict[int, BrokerConfig]) -> None:
    """All workers are of one cluster: worker 1's, or a new one where it decides alone."""
    first = configs[1]
    known = given_id or _cluster_of(_directories(first))
    is_alone = first.is_controller and len(first.voters()) < 2
    if known is None and not is_alone:
        # Worker 1 says what is to be done first.
        return
    cluster_id = known or new_id()
    for config in configs.values():
        path = config.metadata_log_dir or config.log_dirs[0]
        if _cluster_of(_directories(config)) is None:
            format_directory(path, cluster_id, config.node_id, ignore_formatted=True)


def _directories(config: BrokerConfig) -> Sequence[str]:
    return (*config.log_dirs, *([config.metadata_log_dir] if config.metadata_log_dir else ()))


def _cluster_of(paths: Sequence[str]) -> str | None:
    disk = RealDisk()
    for path in paths:
        try:
            identity = DataDirectory(disk, path).read_identity()
        except (OSError, IncompatibleDataDirectory):
            # Worker 1 tells of it when it starts.
            continue
        if identity is not None:
            return identity.cluster_id
    return None
