"""The small language in which Kafka's messages are declared.

A message is a class with one attribute per field, for all versions at once:

    class PartitionProduceData(Struct):
        index: int = field(INT32)
        records: Buffer | None = field(RECORDS, nullable="0+")

    class ProduceRequest(Message, api_key=0, versions="3-12", flexible="9+"):
        transactional_id: str | None = field(STRING, "3+", nullable="3+", default=None)
        topic_data: list[TopicProduceData] = field(Array(TopicProduceData))

A field that a version does not carry keeps its default. Only the codec knows about versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, dataclass_transform

Buffer: TypeAlias = bytes | bytearray | memoryview

VERSION_MAX: Final = 0x7FFF
NO_UUID: Final = bytes(16)


# Plain named tuples rather than data classes: every start of the broker builds all of this.
class Versions(NamedTuple):
    """An inclusive range of versions; `first > last` is the empty one."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @staticmethod
    @cache
    def parse(text: str) -> Versions:
        """`"3+"`, `"0-12"`, `"4"` or `"none"`."""
        if text == "none":
            return NEVER
        if text.endswith("+"):
            return Versions(int(text[:-1]), VERSION_MAX)
        first, _, last = text.partition("-")
        return Versions(int(first), int(last or first))


NEVER: Final = Versions(1, 0)


class Scalar(NamedTuple):
    """A type without parts. `code` is its `struct` code where its width is fixed."""

    name: str
    code: str
    zero: Any


BOOL: Final = Scalar("bool", "?", False)
INT8: Final = Scalar("int8", "b", 0)
INT16: Final = Scalar("int16", "h", 0)
UINT16: Final = Scalar("uint16", "H", 0)
INT32: Final = Scalar("int32", "i", 0)
UINT32: Final = Scalar("uint32", "I", 0)
INT64: Final = Scalar("int64", "q", 0)
FLOAT64: Final = Scalar("float64", "d", 0.0)
UUID: Final = Scalar("uuid", "16s", NO_UUID)
STRING: Final = Scalar("string", "", "")
BYTES: Final = Scalar("bytes", "", b"")
RECORDS: Final = Scalar("records", "", None)


class Array(NamedTuple):
    """A list of `item`."""

    item: Kind


class Field(NamedTuple):
    """One declared field: where it is on the wire, and in which versions."""

    kind: Kind
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    name: str = ""

    @property
    def is_made_fresh(self) -> bool:
        """Whether the default is an empty list or a new struct, which no two owners may share."""
        return self.default is ...


def field(
    kind: Kind,
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: Any = ...,
    tag: int = -1,
    tagged: str = "none",
) -> Any:
    """Declares a field. Without `default` it is the zero of its type."""
    if default is ... and isinstance(kind, Scalar):
        default = kind.zero
    parse = Versions.parse
    return Field(kind, parse(versions), parse(nullable), parse(tagged), tag, default)


def _constructor(fields: tuple[Field, ...]) -> Callable[..., None]:
    """Builds `__init__` as source: twice as fast as a loop over the fields."""
    scope: dict[str, Any] = {"_unset": ...}
    parameters, body = [], []
    for declared in fields:
        name, kind = declared.name, declared.kind
        if not declared.is_made_fresh:
            scope[f"_default_{name}"] = declared.default
            parameters.append(f"{name}=_default_{name}")
            body.append(f" self.{name} = {name}")
            continue
        scope[f"_new_{name}"] = kind
        fresh = "[]" if isinstance(kind, Array) else f"_new_{name}()"
        parameters.append(f"{name}=_unset")
        body.append(f" self.{name} = {fresh} if {name} is _unset else {name}")
    source = f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(body or [" pass"])
    exec(source, scope)
    constructor: Callable[..., None] = scope["__init__"]
    return constructor


@dataclass_transform()
class StructType(type):
    """Turns declared fields into slots and a constructor."""

    FIELDS: tuple[Field, ...]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructType:
        fields = tuple(
            value._replace(name=key) for key, value in namespace.items() if isinstance(value, Field)
        )
        for declared in fields:
            del namespace[declared.name]
        namespace["__slots__"] = tuple(declared.name for declared in fields)
        namespace["FIELDS"] = fields
        return super().__new__(mcs, name, bases, namespace, **options)


class Struct(metaclass=StructType):
    """A part of a message."""

    __slots__: ClassVar[tuple[str, ...]]
    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, *values: Any, **named: Any) -> None:
        # Generated at a class's first use: most classes of a process are never built by hand.
        kind = type(self)
        kind.__init__ = _constructor(kind.FIELDS)  # type: ignore[method-assign]
        kind.__init__(self, *values, **named)

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


class Message(Struct):
    """A request, a response or a record: a whole that has versions.

    `api_key` is the API's number on requests and responses, the record type on metadata records
    and -1 where Kafka gives none.
    """

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]

    def __init_subclass__(cls, *, versions: str, flexible: str, api_key: int = -1) -> None:
        cls.API_KEY = api_key
        cls.VERSIONS = Versions.parse(versions)
        cls.FLEXIBLE = Versions.parse(flexible)


Kind: TypeAlias = Scalar | Array | StructType
