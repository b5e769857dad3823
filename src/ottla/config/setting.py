"""What a setting is: its name, type, default, rule and one sentence.

Settings are the fields of a Settings class; Kafka's name is the field's name with dots:

    class BrokerConfig(Settings):
        num_partitions: int = setting(1, "Partitions of a new topic.", at_least(1))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias, dataclass_transform

from ottla.errors import InvalidConfig

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

# To mypy these are plain types; the words themselves tell how Kafka types the setting.
Long: TypeAlias = int
Short: TypeAlias = int
Names: TypeAlias = tuple[str, ...]


class Kind(IntEnum):
    """The type of a value, by the number that DescribeConfigs gives it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_KIND_BY_ANNOTATION: Final = {
    "bool": Kind.BOOLEAN,
    "str": Kind.STRING,
    "int": Kind.INT,
    "Short": Kind.SHORT,
    "Long": Kind.LONG,
    "float": Kind.DOUBLE,
    "Names": Kind.LIST,
}
_EXPECTED: Final = {
    Kind.BOOLEAN: "true or false",
    Kind.STRING: "text",
    Kind.INT: "a whole number",
    Kind.SHORT: "a whole number",
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
    Kind.LIST: "names separated by commas",
}
_WIDTH_BITS: Final = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}


class Check(NamedTuple):
    """A rule for a value, and its words: `expected` completes "must be …"."""

    holds: Callable[[Any], bool]
    expected: str


def at_least(least: float) -> Check:
    return Check(lambda value: bool(value >= least), f"{least} or more")


def between(least: float, most: float) -> Check:
    return Check(lambda value: bool(least <= value <= most), f"between {least} and {most}")


def one_of(*choices: str) -> Check:
    return Check(lambda value: value in choices, f"one of {', '.join(choices)}")


def some_of(*choices: str) -> Check:
    return Check(
        lambda values: bool(values) and all(value in choices for value in values),
        f"one or more of {', '.join(choices)}",
    )


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default, times `factor`."""

    name: str
    factor: int = 1


_FACTOR_BY_UNIT: Final = {"hours": 3_600_000, "minutes": 60_000}


def _synonym(name: str) -> Synonym:
    return Synonym(name, _FACTOR_BY_UNIT.get(name.rpartition(".")[2], 1))


class Setting(NamedTuple):
    """One setting. `synonyms` is set on topic settings only: the first that has a value counts."""

    name: str
    field_name: str
    kind: Kind
    default: Any
    doc: str
    check: Check | None
    is_nullable: bool
    is_dynamic: bool
    has_effect: bool
    synonyms: tuple[Synonym, ...]

    @property
    def type_name(self) -> str:
        return self.kind.name.lower()

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        return self.check.expected if self.check else _EXPECTED[self.kind]

    def parse(self, text: str) -> Any:
        """The value that `text` means; InvalidConfig says which setting wants what."""
        text = text.strip()
        if not text and self.is_nullable:
            return None
        try:
            value = _PARSERS[self.kind](text)
        except ValueError:
            raise self._invalid(text, _EXPECTED[self.kind]) from None
        bits = _WIDTH_BITS.get(self.kind)
        if bits and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise self._invalid(text, f"a whole number of {bits} bits")
        if self.check and not self.check.holds(value):
            raise self._invalid(text, self.check.expected)
        return value

    def format(self, value: Any) -> str | None:
        """`value` as Kafka writes it; None only where the setting has no value."""
        if value is None:
            return None
        if self.kind is Kind.BOOLEAN:
            return "true" if value else "false"
        if self.kind is Kind.LIST:
            return ",".join(value)
        return str(value)

    def _invalid(self, text: str, expected: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name} is {text!r}, but must be {expected}.")


def _parse_boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _parse_integer(text: str) -> int:
    if "_" in text:  # Python would take it, Kafka's tools would not.
        raise ValueError(text)
    return int(text)


def _parse_number(text: str) -> float:
    value = float(text)
    if value != value or "_" in text:
        raise ValueError(text)
    return value


def _parse_list(text: str) -> Names:
    return tuple(part.strip() for part in text.split(",")) if text else ()


_PARSERS: Final[Mapping[Kind, Callable[[str], Any]]] = {
    Kind.BOOLEAN: _parse_boolean,
    Kind.STRING: str,
    Kind.INT: _parse_integer,
    Kind.SHORT: _parse_integer,
    Kind.LONG: _parse_integer,
    Kind.DOUBLE: _parse_number,
    Kind.LIST: _parse_list,
}


class _Declared(NamedTuple):
    """A setting before it has its name and type, which its class gives it."""

    default: Any
    doc: str
    check: Check | None
    is_dynamic: bool
    has_effect: bool
    synonyms: tuple[Synonym, ...]


def setting(
    default: Any,
    doc: str,
    check: Check | None = None,
    *,
    dynamic: bool = False,
    has_effect: bool = True,
    broker: str | tuple[str, ...] = (),
) -> Any:
    """Declares a setting as a field of a Settings class."""
    names = (broker,) if isinstance(broker, str) else broker
    synonyms = tuple(_synonym(name) for name in names)
    return _Declared(default, doc, check, dynamic, has_effect, synonyms)


def default_of(topic_setting: Setting) -> Any:
    """Declares the broker's default of a topic setting: the same default, rule and effect."""
    idle = "" if topic_setting.has_effect else " Accepted, but without effect, as that is."
    return setting(
        topic_setting.default,
        f"Default of the topic setting {topic_setting.name}.{idle}",
        topic_setting.check,
        dynamic=True,
        has_effect=topic_setting.has_effect,
    )


def _named(field: str, annotation: str, declared: _Declared) -> Setting:
    return Setting(
        name=field.replace("_", "."),
        field_name=field,
        kind=_KIND_BY_ANNOTATION[annotation.removesuffix(" | None")],
        default=declared.default,
        doc=declared.doc,
        check=declared.check,
        is_nullable=annotation.endswith(" | None"),
        is_dynamic=declared.is_dynamic,
        has_effect=declared.has_effect,
        synonyms=declared.synonyms,
    )


_NOTHING: Final[frozenset[str]] = frozenset()


# A dataclass of 90 fields costs 15 ms of every start, mostly for methods that nobody calls.
@dataclass_transform(kw_only_default=True, frozen_default=True)
class SettingsType(type):
    """Turns declared settings into slots, and keeps all, inherited ones too, in SETTINGS."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> SettingsType:
        annotations = namespace.get("__annotations__", {})
        settings = [
            _named(field, annotations[field], value)
            for field, value in namespace.items()
            if isinstance(value, _Declared)
        ]
        for known in settings:
            del namespace[known.field_name]
        namespace["__slots__"] = tuple(known.field_name for known in settings)
        inherited = [known for base in bases for known in getattr(base, "SETTINGS", {}).values()]
        settings = [*inherited, *settings]
        namespace["SETTINGS"] = {known.name: known for known in settings}
        namespace["_DEFAULTS"] = {known.field_name: known.default for known in settings}
        return super().__new__(mcs, name, bases, namespace)


class _Given:
    """Which fields somebody has set; no setting itself."""

    __slots__ = ("_given",)
    _given: frozenset[str]


class Settings(_Given, metaclass=SettingsType):
    """An unchangeable set of values, one for each declared setting."""

    SETTINGS: ClassVar[dict[str, Setting]]
    _DEFAULTS: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        merged = {**self._DEFAULTS, **values}
        if len(merged) != len(self._DEFAULTS):
            raise TypeError(f"no such setting: {', '.join(merged.keys() - self._DEFAULTS.keys())}")
        for field, value in merged.items():
            object.__setattr__(self, field, value)
        object.__setattr__(self, "_given", _NOTHING)

    def replace(self, **changes: Any) -> Self:
        """The same values but for `changes`, given by field name."""
        replaced = type(self)(**{**self.values(), **changes})
        object.__setattr__(replaced, "_given", self._given.union(changes))
        return replaced

    def is_given(self, name: str) -> bool:
        """Whether somebody has set it with `replace`, be it to what is its default."""
        return self.SETTINGS[name].field_name in self._given

    def values(self) -> dict[str, Any]:
        """Values by field name."""
        return {field: getattr(self, field) for field in self._DEFAULTS}

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; use replace().")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.values() == other.values()

    def __hash__(self) -> int:
        return hash(tuple(self.values().values()))

    def __repr__(self) -> str:
        changed = (
            f"{field}={value!r}"
            for field, value in self.values().items()
            if value != self._DEFAULTS[field]
        )
        return f"{type(self).__name__}({', '.join(changed)})"


def unknown(name: str, known: Iterable[str], what: str = "setting") -> InvalidConfig:
    """The error for a name that is not known, with the nearest that is."""
    import difflib

    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return InvalidConfig(f"Unknown {what} {name}.{hint}")


def parse_all(settings: Mapping[str, Setting], texts: Mapping[str, str]) -> dict[str, Any]:
    """Field names and values for texts by Kafka's names."""
    values = {}
    for name, text in texts.items():
        known = settings.get(name)
        if known is None:
            raise unknown(name, settings)
        values[known.field_name] = known.parse(text)
    return values
