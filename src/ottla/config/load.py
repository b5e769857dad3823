"""Where values come from: flag > --set > OTTLA_* environment > file > default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.config.broker import BROKER_SETTINGS, BrokerConfig
from ottla.config.kafka_files import is_of_kafka, without_foreign
from ottla.config.properties import parse_properties
from ottla.config.setting import unknown
from ottla.errors import InvalidConfig

ALIASES: Final = {"log.dir": "log.dirs", "broker.id": "node.id"}
ENVIRONMENT_PREFIX: Final = "OTTLA_"

# Names in the environment that are read elsewhere and are no settings of the broker.
RESERVED: Final = frozenset(
    {
        "OTTLA_BOOTSTRAP",
        "OTTLA_CLASS_ARCHIVE",
        "OTTLA_CLIENT_CONFIG",
        "OTTLA_DEBUG",
        "OTTLA_HTTP",
        "OTTLA_SPARK_NURSERY",
        "OTTLA_STANDBY",
    }
)
RESERVED_PREFIXES: Final = ("OTTLA_TEST_", "OTTLA_BENCH_")


class Source(Enum):
    FLAG = "flag"
    SET = "--set"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class Origin(NamedTuple):
    """Where a value came from, with the flag, variable or file that gave it."""

    source: Source
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source.value} {self.detail}".rstrip()


Origins: TypeAlias = dict[str, Origin]


class _Given(NamedTuple):
    name: str
    text: str
    origin: Origin


def load(
    file: str | None = None,
    sets: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> tuple[BrokerConfig, Origins]:
    """The broker's configuration and where each value came from; InvalidConfig on any mistake.

    `flags` maps a setting's name to its text; `sets` are `name=value` texts.
    """
    given = [
        *(_from_file(file) if file else ()),
        *_from_environment(env or {}),
        *(_from_set(text) for text in sets),
        *(_Given(name, text, Origin(Source.FLAG)) for name, text in (flags or {}).items()),
    ]
    texts: dict[str, str] = {}
    origins: Origins = dict.fromkeys(BROKER_SETTINGS, Origin(Source.DEFAULT))
    for name, text, origin in given:
        name = ALIASES.get(name, name)
        if name not in BROKER_SETTINGS and not is_of_kafka(name):
            error = unknown(name, [*BROKER_SETTINGS, *ALIASES])
            raise InvalidConfig(f"{error} (from {origin}; `ottla settings list` shows all)")
        texts[name] = text
        origins[name] = origin
    try:
        return BrokerConfig.parse(without_foreign(texts, BROKER_SETTINGS)), origins
    except InvalidConfig as error:
        raise _with_origin(error, origins) from None


def wants_json_log(
    file: str | None, sets: Iterable[str], env: Mapping[str, str], flags: Mapping[str, str]
) -> bool:
    """Whether log.format is json, as far as can be seen when something else is wrong."""
    texts: dict[str, str] = {}
    if file:
        with suppress(InvalidConfig):
            texts |= {name: text for name, text, _ in _from_file(file)}
    variable = f"{ENVIRONMENT_PREFIX}LOG_FORMAT"
    texts |= {"log.format": env[variable]} if variable in env else {}
    texts |= dict(text.split("=", 1) for text in sets if "=" in text) | dict(flags)
    return texts.get("log.format", "").strip() == "json"


def idle_names(origins: Origins) -> list[str]:
    """What was given and makes no difference: most of it from files that were made for Kafka."""
    used = {name for name, known in BROKER_SETTINGS.items() if known.has_effect}
    given = {name for name, origin in origins.items() if origin.source is not Source.DEFAULT}
    return sorted(given - used)


def _with_origin(error: InvalidConfig, origins: Origins) -> InvalidConfig:
    name = str(error).partition(" ")[0]
    origin = origins.get(name)
    if origin is None or origin.source is Source.DEFAULT:
        return error
    return InvalidConfig(f"{error} (from {origin})")


def _from_set(text: str) -> _Given:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidConfig(f"--set {text} has no value; write --set name=value.")
    return _Given(name.strip(), value, Origin(Source.SET))


def _from_environment(env: Mapping[str, str]) -> Iterable[_Given]:
    name_by_variable = {
        ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name
        for name in (*BROKER_SETTINGS, *ALIASES)
    }
    for variable, text in env.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _is_reserved(variable, text):
            continue
        if variable not in name_by_variable:
            error = unknown(variable, name_by_variable, "setting in the environment:")
            raise InvalidConfig(f"{error} (`ottla settings list` shows all)")
        yield _Given(name_by_variable[variable], text, Origin(Source.ENVIRONMENT, variable))


def _is_reserved(variable: str, text: str) -> bool:
    """Kubernetes, too, writes OTTLA_* into a pod when a service is called ottla."""
    is_from_kubernetes = (
        text.startswith(("tcp://", "udp://", "sctp://"))
        or "_SERVICE_HOST" in variable
        or "_SERVICE_PORT" in variable
        or variable.startswith("OTTLA_PORT_")
    )
    return is_from_kubernetes or variable in RESERVED or variable.startswith(RESERVED_PREFIXES)


def _from_file(path: str) -> list[_Given]:
    try:
        with open(path, encoding="utf-8") as stream:
            content = stream.read()
    except OSError as error:
        raise InvalidConfig(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidConfig(f"Cannot read {path}: it is not UTF-8 text.") from None
    pairs = _parse_toml(content, path) if path.endswith(".toml") else parse_properties(content)
    origin = Origin(Source.FILE, path)
    return [_Given(name, text, origin) for name, text in pairs.items()]


def _parse_toml(content: str, path: str) -> dict[str, str]:
    import tomllib

    try:
        tables = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not TOML: {error}.") from None
    return dict(_flat(tables, ""))


def _flat(tables: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, str]]:
    """TOML reads num.partitions as a table num with the key partitions; this undoes it."""
    for key, value in tables.items():
        name = prefix + key
        if isinstance(value, Mapping):
            yield from _flat(value, name + ".")
        elif isinstance(value, list):
            yield name, ",".join(map(_text, value))
        else:
            yield name, _text(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
