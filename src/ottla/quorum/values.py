"""Values such as frozen dataclasses are, without the code that those compile for every class: a
node that is alone reads thirty-five of them at its start, and uses five.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True)
class Value:
    """Its annotations are its fields. Two are equal when their kinds and their fields are."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.FIELDS = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        kind, fields = type(self), self.FIELDS
        given = {**dict(zip(fields, values, strict=False)), **named}
        # What is not given is found where the class has its defaults.
        missing = [name for name in fields if name not in given and not hasattr(kind, name)]
        if missing or len(given) != len(values) + len(named) or not given.keys() <= set(fields):
            raise TypeError(f"{kind.__name__} has the fields {fields}, once each; needs {missing}")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.FIELDS)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({', '.join(fields)})"
