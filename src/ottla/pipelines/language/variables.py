"""`${NAME}` and `${NAME:-default}` in scalars, after YAML: a value cannot become structure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.pipelines.language.document import NO_TEXT, Items, Node, Scalar, Table, shown
from ottla.pipelines.language.model import Piece
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.language.secrets import is_secret_name, secrets_in

# `$${` is a literal `${`; what else begins with `${` must be a variable.
_VARIABLE: Final = re.compile(
    r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?"
)


@dataclass
class Variables:
    """Fills variables in, and notes what is missing and what was secret."""

    environment: Mapping[str, str]
    problems: list[Problem]
    secrets: set[str]

    def fill(self, node: Node) -> Node:
        """The node with all variables in values filled in; keys are taken as they are."""
        if isinstance(node, Scalar):
            return self._scalar(node)
        if isinstance(node, Items):
            return replace(node, nodes=tuple(map(self.fill, node.nodes)))
        return self.fill_table(node)

    def fill_table(self, table: Table) -> Table:
        return replace(
            table, entries=tuple((key, self.fill(value)) for key, value in table.entries)
        )

    def _scalar(self, scalar: Scalar) -> Scalar:
        if "${" not in scalar.text:
            return scalar
        text, known = "", len(self.problems)
        pieces: list[Piece] = []
        done = 0
        for found in _VARIABLE.finditer(scalar.text):
            pieces += _moved(scalar.pieces, done, found.start(), len(text))
            text += scalar.text[done : found.start()]
            pieces += [
                replace(each, offset=len(text), length=0)
                for each in _moved(scalar.pieces, found.start(), found.start() + 1, 0)
            ]
            text += self._value(found, scalar)
            done = found.end()
        pieces += _moved(scalar.pieces, done, len(scalar.text), len(text))
        return Scalar(
            text + scalar.text[done:],
            scalar.place,
            is_plain=False,
            pieces=tuple(pieces),
            is_lacking=len(self.problems) > known,
        )

    def _value(self, found: re.Match[str], scalar: Scalar) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            self._note("`${` is no variable; write ${NAME} or ${NAME:-default}, or $${", scalar)
            return ""
        value = self.environment.get(name, "")
        if not value and default is not None:
            value = default
        elif name not in self.environment:
            self._note(
                f"the variable {shown(name)} is not set; set it, or write ${{{shown(name)}:-…}} "
                "with a default",
                scalar,
            )
        if NO_TEXT.search(value):
            self._note(f"the variable {shown(name)} holds bytes that are no text", scalar)
            return ""
        if is_secret_name(name):
            self.secrets.update(secrets_in(value))
        return value

    def _note(self, text: str, scalar: Scalar) -> None:
        self.problems.append(Problem(text, scalar.place))


def _moved(pieces: tuple[Piece, ...], start: int, end: int, to: int) -> list[Piece]:
    """What stands between two offsets of the old text, as pieces of the new one."""
    moved = []
    for piece in pieces:
        first = max(start, piece.offset)
        last = min(end, piece.offset + piece.length)
        if first < last:
            place = replace(piece.place, column=piece.place.column + first - piece.offset)
            moved.append(Piece(to + first - start, last - first, place))
    return moved
