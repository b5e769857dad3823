"""What `ottla start` does, and the quick way to understand its command line.

Typer's reading of arguments brings pydantic with it, which costs more CPU (0.25 s measured) than
the whole start of a broker. So plain command lines are read here, by the same table of options
that Typer gets; help, completion and mistakes still go through Typer. For the same reason nothing
here may import rich, FastAPI or confluent_kafka.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from socket import gethostname
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cli.failures import FAILED, WRONG_USAGE, CommandFailed, WrongUsage
from ottla.config import idle_names, load, wants_json_log
from ottla.config.workers import WORKERS_DIRECTORY, worker_config, worker_directory, worker_id
from ottla.errors import InvalidConfig, OttlaError

if TYPE_CHECKING:
    from ottla.broker.ready import ReadyInfo
    from ottla.config import BrokerConfig

logger = logging.getLogger(__name__)

# The options that are settings of their own.
SETTING_BY_OPTION: Final = {
    "--data-dir": "log.dirs",
    "--listen": "listeners",
    "--advertise": "advertised.listeners",
    "--http": "http.listener",
    "--node-id": "node.id",
    "--log-level": "log.level",
    "--log-format": "log.format",
}


class Invocation(NamedTuple):
    """A command line of `ottla start`, understood."""

    config_file: str | None
    sets: tuple[str, ...]
    flags: dict[str, str]
    ready_fd: int | None
    die_with_parent: bool
    # What is not formatted yet becomes this cluster's: for programs that start several nodes.
    cluster_id: str | None = None
    # How many brokers of this host, or `auto`.
    workers: str | None = None
    # Which of them this process is.
    worker: int | None = None


def parse(arguments: Sequence[str]) -> Invocation | None:
    """The invocation, or None if Typer has to look at it: for help, or because it is wrong."""
    files: list[str] = []
    sets: list[str] = []
    flags: dict[str, str] = {}
    ready_fd: int | None = None
    worker: int | None = None
    texts: dict[str, str] = {}
    die_with_parent = False
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-"):
            files.append(argument)
            continue
        option, equals, value = argument.partition("=")
        if option == "--die-with-parent" and not equals:
            die_with_parent = True
            continue
        given = value if equals else next(remaining, None)
        if given is None:
            return None
        if option in SETTING_BY_OPTION:
            setting = SETTING_BY_OPTION[option]
            if option == "--data-dir" and setting in flags:
                given = f"{flags[setting]},{given}"
            flags[setting] = given
        elif option == "--set":
            sets.append(given)
        elif option == "--ready-fd" and given.isdecimal():
            ready_fd = int(given)
        elif option == "--worker" and given.isdecimal():
            worker = int(given)
        elif option in ("--cluster-id", "--workers"):
            texts[option] = given
        else:
            return None
    if len(files) > 1:
        return None
    file = files[0] if files else None
    return Invocation(
        file,
        tuple(sets),
        flags,
        ready_fd,
        die_with_parent,
        texts.get("--cluster-id"),
        texts.get("--workers"),
        worker,
    )


def serve(invocation: Invocation) -> int:
    """Runs a broker until it is told to stop; the exit code."""
    file, sets, flags = invocation.config_file, invocation.sets, invocation.flags
    if not wants_json_log(file, sets, os.environ, flags):
        return _serve(invocation)
    try:
        return _serve(invocation)
    except Exception as error:
        return _fail_in_json(error)


def _fail_in_json(error: Exception) -> int:
    """The last line, too, is for the program that reads the log."""
    from ottla.broker import logs

    logs.configure("info", "json")
    if isinstance(error, CommandFailed | InvalidConfig):
        logger.error("%s", error)
        return WRONG_USAGE if isinstance(error, InvalidConfig) else error.exit_code
    logger.critical("this is a bug; please report it", exc_info=error)
    return FAILED


def _serve(invocation: Invocation) -> int:
    config, origins = load(invocation.config_file, invocation.sets, os.environ, invocation.flags)
    if sys.platform == "win32":
        raise CommandFailed(
            "The broker runs on Linux and macOS; on Windows use the other commands."
        )
    if invocation.die_with_parent:
        from ottla.cli.parent import end_with_parent

        end_with_parent()
    from ottla.broker import logs

    logs.configure(config.log_level, config.log_format)
    idle = idle_names(origins)
    if idle and invocation.worker is None:
        logger.warning("%s", without_effect(idle))
    _check_directories(config.log_dirs)
    if invocation.worker is not None:
        return _serve_one(invocation, worker_config(config, invocation.worker, gethostname()))
    workers = worker_count(invocation.workers)
    _check_left_out(config, workers)
    if workers is None:
        return _serve_one(invocation, config)
    from ottla.cli.supervisor.workers import run_workers

    return run_workers(invocation, config, workers)


def worker_count(text: str | None) -> int | None:
    """What --workers asks for; None where it was not given."""
    if text is None:
        return None
    if text == "auto":
        return cores()
    if not text.isdecimal():
        raise WrongUsage(f"--workers {text} is no number; give how many, or auto: one per core.")
    return int(text)


def cores() -> int:
    """Those that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_left_out(config: BrokerConfig, workers: int | None) -> None:
    """Whoever leaves out a worker that has data takes its partitions offline."""
    for path in config.log_dirs:
        last = max(_workers_in(path), default=1)
        if last > (workers or 1):
            raise CommandFailed(
                f"{path} has data of worker {last}, which is node "
                f"{worker_id(config.node_id, last)}: start with --workers {last}; or have other "
                f"nodes take over what it has, and then remove {worker_directory(path, last)}."
            )


def _workers_in(path: str) -> list[int]:
    try:
        names = os.listdir(os.path.join(path, WORKERS_DIRECTORY))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(name) for name in names if name.isdecimal()]


def _serve_one(invocation: Invocation, config: BrokerConfig) -> int:
    from ottla.broker.process import run

    if invocation.cluster_id is not None:
        _format(config, invocation.cluster_id)

    def announce(info: ReadyInfo) -> None:
        if invocation.ready_fd is not None:
            report_ready(invocation.ready_fd, info.kafka, info.http, info.data_dir)
        elif config.log_format == "json":
            http = f", health and metrics on {info.http}" if info.http else ""
            logger.info("ready on %s%s, data in %s", info.kafka, http, info.data_dir)
        else:
            _greet(info)

    try:
        return run(config, on_ready=announce)
    except (OSError, OttlaError) as error:
        if "OTTLA_DEBUG" in os.environ:
            raise
        raise CommandFailed(str(error)) from error


def _format(config: BrokerConfig, cluster_id: str) -> None:
    from ottla.cli.formatting import check_id, format_directory

    check_id(cluster_id)
    # The others become this node's by its start.
    path = config.metadata_log_dir or config.log_dirs[0]
    format_directory(path, cluster_id, config.node_id, ignore_formatted=True)


def without_effect(names: Sequence[str]) -> str:
    """One line for all settings that a Kafka would have used."""
    return f"without effect on this broker: {', '.join(names)}"


def _check_directories(paths: Sequence[str]) -> None:
    """The usual slips; of several directories one that can be used is enough."""
    slips = [slip for slip in map(_slip, paths) if slip is not None]
    if len(slips) == len(paths):
        raise CommandFailed(f"{slips[0]}; choose a directory with --data-dir DIR.")


def _slip(path: str) -> str | None:
    """Why the data cannot be there, in words."""
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{path} cannot hold data: {above} is a file"
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{path} cannot hold data: {above} may not be written by this user"
    return None


def _greet(info: ReadyInfo) -> None:
    """The few lines that a person sees."""
    # After `make run` alone the command is not on the path.
    command = "ottla" if shutil.which("ottla") else os.path.relpath(sys.argv[0])
    there = "" if info.kafka == "127.0.0.1:9092" else f" -b {info.kafka}"
    recovered = "" if info.was_clean else ", after checking what an unclean stop left"
    what = "Ottla listens" if info.serves_clients else "A controller of Ottla listens"
    lines = [
        f"{what} on {info.kafka} (ready in {info.seconds:.2f} s{recovered}).",
        f"Data is in {info.data_dir}.",
    ]
    if info.http:
        lines.append(f"Health and metrics: http://{info.http}/metrics")
    if info.serves_clients:
        lines += [
            "Try:",
            f"  echo hello | {command} produce{there} greetings",
            f"  {command} consume{there} greetings --from-beginning",
        ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def report_ready(ready_fd: int, bootstrap: str, http: str | None, data_dir: str) -> None:
    """One line of JSON for a program that waits for it."""
    import json

    line = {"bootstrap": bootstrap, "http": http, "data_dir": data_dir, "pid": os.getpid()}
    try:
        os.write(ready_fd, json.dumps(line).encode() + b"\n")
        os.close(ready_fd)
    except OSError as error:
        raise WrongUsage(f"--ready-fd {ready_fd} cannot be written: {error.strerror}.") from None
