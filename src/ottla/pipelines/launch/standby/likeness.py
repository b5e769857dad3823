"""What must be the same in a command and in the process that stands by for it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

# What shells and terminals change from one command to the next, and Spark does not look at.
PASSING: Final = frozenset({"_", "COLUMNS", "LINES", "OLDPWD", "OTTLA_STANDBY", "PWD", "SHLVL"})
LIMITS: Final = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))
NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
CONFIGURED: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "HIVE_CONF_DIR")
# In a setting, where each process has a directory of its own.
SCRATCH: Final = "\0scratch\0"


@dataclass(frozen=True)
class Wish:
    """A Spark that a command needs, apart from what it takes over from its process."""

    master: str
    settings: Mapping[str, str]
    # Which its JVM has read.
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, master: str, settings: Mapping[str, str], scratch: Path) -> Wish:
        jars = tuple(filter(None, settings.get("spark.jars", "").split(",")))
        return cls(master, _replaced(settings, str(scratch), SCRATCH), jars)

    def settings_in(self, scratch: Path) -> dict[str, str]:
        return _replaced(self.settings, SCRATCH, str(scratch))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Wish:
        return cls(found["master"], found["settings"], tuple(found["files"]))

    def key(self) -> str:
        """One for all processes that could use the same; it tells nothing of what it is made of."""
        everything = json.dumps([self.to_json(), circumstances()], sort_keys=True)
        return hashlib.sha256(everything.encode(errors="surrogateescape")).hexdigest()


def _replaced(settings: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    return {name: value.replace(old, new) for name, value in settings.items()}


def circumstances() -> dict[str, Any]:
    """What the JVM and its Pythons inherit and nothing can change in them later."""
    variables = {name: value for name, value in os.environ.items() if name not in PASSING}
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}
    # The path is handed over, whatever it began with.
    flags = {name: value for name, value in flags.items() if isinstance(value, int)}
    flags.pop("safe_path", None)
    return {
        "variables": variables,
        "directory": [os.getcwd(), os.stat(".").st_dev, os.stat(".").st_ino],
        "code": __file__,
        "python": [sys.executable, sys.version, sys.prefix, flags, sys.warnoptions],
        "user": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in LIMITS],
        "cores": sorted(os.sched_getaffinity(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "umask": _umask(),
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES],
        "control_groups": Path("/proc/self/cgroup").read_text(),
    }


def _umask() -> str:
    """Without setting another on the way."""
    status = Path("/proc/self/status").read_text()
    return next((line for line in status.splitlines() if line.startswith("Umask:")), "")


def changed_since(began: float, files: Iterable[str]) -> str | None:
    """The first of these that was written since, or that was there then and is gone."""
    return next((file for file in files if _written_at(file) >= began), None)


def _written_at(file: str) -> float:
    """Of one that is gone its directory tells; of one in an archive the archive."""
    while True:
        try:
            return os.stat(file).st_ctime
        except (FileNotFoundError, NotADirectoryError):
            file = os.path.dirname(file)


def files_of_python() -> list[str]:
    """Of all modules that are imported: another process would read them anew."""
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({file for file in found if isinstance(file, str) and os.path.isabs(file)})


def files_of_java() -> list[str]:
    """The Spark that SPARK_HOME names now, what it is set up with, and its Java."""
    home = os.environ.get("SPARK_HOME")
    given = [os.environ.get(name) for name in CONFIGURED]
    directories = [*([f"{home}/jars", f"{home}/conf"] if home else []), *filter(None, given)]
    inside = [
        entry.path
        for directory in directories
        if os.path.isdir(directory)
        for entry in os.scandir(directory)
    ]
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    return [*directories, *inside, *([java] if os.path.isabs(java) else [])]
