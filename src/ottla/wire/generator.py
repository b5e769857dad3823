"""Turns a declared message and a version into the source of its reader and of its writer.

The two functions are flat: structs within structs become blocks within blocks, fields that the
version lacks become constants, and fixed-width neighbours, the length of whatever follows them
included, become one `struct` call. Of version 9 of a Produce request the reader begins with

    def read(buf, pos, end):
     o0 = new(ProduceRequest)
     n = buf[pos]; pos += 1
     if n > 127: n, pos = read_uvarint(buf, pos - 1)
     if n > 0:
      n -= 1
      stop = pos + n
      o0.transactional_id = buf[pos:stop].tobytes().decode()
      pos = stop
     else:
      o0.transactional_id = None
     o0.acks, o0.timeout_ms, n, = unpack_from_hiB(buf, pos); pos += 7

Names that the source uses and does not define are in `constants`, or are the codec's own:
`read_uvarint`, `skip_tags`, `write_uvarint`, `write_tags` and the two errors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ottla.wire.schema import (
    RECORDS,
    STRING,
    UUID,
    Array,
    Field,
    Kind,
    Message,
    Scalar,
    StructType,
)

# Below this, copying records into the reply is cheaper than one more entry for writev.
RECORDS_CHUNK_BYTES_MIN: Final = 4096


class _Source:
    """What reader and writer share: lines, constants, and fixed-width values not yet written."""

    def __init__(self, kind: type[Message], version: int) -> None:
        self.kind = kind
        self.version = version
        self.flexible = version in kind.FLEXIBLE
        self.constants: dict[str, Any] = {}
        self.pending: list[tuple[str, str]] = []
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.flush()
        self.line(head)
        self._depth += 1
        yield
        self.flush()
        self._depth -= 1

    def flush(self) -> None:
        """Writes the call that the pending values are waiting for."""
        raise NotImplementedError

    def take_pending(self) -> tuple[list[str], str]:
        """The pending expressions and their struct codes, which are pending no longer."""
        expressions = [expression for expression, _ in self.pending]
        codes = "".join(code for _, code in self.pending)
        self.pending.clear()
        return expressions, codes

    def fresh_name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names - 1}"

    def struct_call(self, call: str, codes: str) -> str:
        """The name of `unpack_from` or `pack` of these codes."""
        name = f"{call}_{codes.replace('?', 'x')}"
        self.constants[name] = getattr(struct.Struct(">" + codes), call)
        return name

    def struct_class(self, kind: StructType) -> str:
        name: str = kind.__name__
        if self.constants.setdefault(name, kind) is not kind:
            raise TypeError(f"{self.kind.__name__} has two parts named {name}")
        return name

    def plain_fields(self, kind: StructType) -> list[Field]:
        return [f for f in kind.FIELDS if self.has(f) and not self.is_tagged(f)]

    def tagged_fields(self, kind: StructType) -> list[Field]:
        fields = [f for f in kind.FIELDS if self.has(f) and self.is_tagged(f)]
        return sorted(fields, key=lambda declared: declared.tag)

    def has(self, declared: Field) -> bool:
        return self.version in declared.versions

    def is_tagged(self, declared: Field) -> bool:
        return self.flexible and self.version in declared.tagged

    def is_nullable(self, declared: Field) -> bool:
        return self.version in declared.nullable

    def length_code(self, kind: Kind) -> str:
        """A compact length is pending as its first byte; mostly it has no other."""
        if self.flexible:
            return "B"
        return "h" if kind is STRING else "i"


class ReaderSource(_Source):
    """`read(buf, pos, end) -> (message, pos)`.

    A length that leads past the end needs no check of its own: slices stop there, and the next
    value, or the codec when there is none, finds `pos` past the end.
    """

    def __init__(self, kind: type[Message], version: int) -> None:
        super().__init__(kind, version)
        self.constants["new"] = object.__new__
        with self.block("def read(buf, pos, end):"):
            message = self.read_struct(kind)
            self.flush()
            self.line(f"return {message}, pos")

    def flush(self) -> None:
        if not self.pending:
            return
        targets, codes = self.take_pending()
        if codes == "B":
            self.line(f"{targets[0]} = buf[pos]; pos += 1")
            return
        unpack = self.struct_call("unpack_from", codes)
        size = struct.calcsize(">" + codes)
        self.line(f"{', '.join(targets)}, = {unpack}(buf, pos); pos += {size}")

    def read_struct(self, kind: StructType) -> str:
        """Reads a struct into a new variable, whose name is returned."""
        name = self.fresh_name("o")
        self.line(f"{name} = new({self.struct_class(kind)})")
        for declared in kind.FIELDS:
            target = f"{name}.{declared.name}"
            if self.has(declared) and not self.is_tagged(declared):
                self.read_value(target, declared.kind, self.is_nullable(declared))
            else:
                self.set_default(target, declared)
        if self.flexible:
            self.read_tags(name, self.tagged_fields(kind))
        return name

    def set_default(self, target: str, declared: Field) -> None:
        if not declared.is_made_fresh:
            self.line(f"{target} = {declared.default!r}")
        elif isinstance(declared.kind, StructType):
            name = self.fresh_name("o")
            self.line(f"{target} = {name} = new({self.struct_class(declared.kind)})")
            for part in declared.kind.FIELDS:
                self.set_default(f"{name}.{part.name}", part)
        else:
            self.line(f"{target} = []")

    def read_value(self, target: str, kind: Kind, nullable: bool) -> None:
        if isinstance(kind, StructType):
            self.read_part(target, kind, nullable)
            return
        if isinstance(kind, Scalar) and kind.code:
            self.pending.append((target, kind.code))
            return
        self.pending.append(("n", self.length_code(kind)))
        self.flush()
        if self.flexible:
            self.line("if n > 127: n, pos = read_uvarint(buf, pos - 1)")
        with self.block("if n > 0:" if self.flexible else "if n >= 0:"):
            if self.flexible:
                self.line("n -= 1")
            if isinstance(kind, Array):
                self.read_items(target, kind.item)
            else:
                self.read_bytes(target, kind)
        with self.block("else:"):
            if nullable:
                self.line(f"{target} = None")
            else:
                self.line(f"raise MalformedMessage('{target.rpartition('.')[2]} is null')")

    def read_part(self, target: str, kind: StructType, nullable: bool) -> None:
        if not nullable:
            name = self.read_struct(kind)
            self.line(f"{target} = {name}")
            return
        self.pending.append(("n", "b"))
        with self.block("if n < 0:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            name = self.read_struct(kind)
            self.line(f"{target} = {name}")

    def read_bytes(self, target: str, kind: Scalar) -> None:
        self.line("stop = pos + n")
        if kind is STRING:
            self.line(f"{target} = buf[pos:stop].tobytes().decode()")
        elif kind is RECORDS:
            self.line(f"{target} = buf[pos:stop]")
        else:
            self.line(f"{target} = buf[pos:stop].tobytes()")
        self.line("pos = stop")

    def read_items(self, target: str, item: Kind) -> None:
        if item is UUID:
            self.line("stop = pos + 16 * n")
            self.line("if stop > end: raise MalformedMessage('a list ends after the message')")
            self.line(f"{target} = [buf[at:at + 16].tobytes() for at in range(pos, stop, 16)]")
            self.line("pos = stop")
        elif isinstance(item, Scalar) and item.code:
            self.constants["unpack_from"] = struct.unpack_from
            self.line(f"{target} = list(unpack_from(f'>{{n}}{item.code}', buf, pos))")
            self.line(f"pos += {struct.calcsize(item.code)} * n")
        else:
            items = self.fresh_name("items")
            self.line(f"{target} = {items} = []")
            with self.block("for _ in range(n):"):
                if isinstance(item, StructType):
                    value = self.read_struct(item)
                else:
                    value = "item"
                    self.read_value(value, item, nullable=False)
                self.line(f"{items}.append({value})")

    def read_tags(self, owner: str, tagged: list[Field]) -> None:
        """Known tags are read, unknown ones skipped; both end where their size says."""
        self.pending.append(("n", "B"))
        self.flush()
        if not tagged:
            self.line("if n: pos = skip_tags(buf, pos - 1)")
            return
        stop = self.fresh_name("stop")
        with self.block("if n:"):
            self.line("n, pos = read_uvarint(buf, pos - 1)")
            with self.block("for _ in range(n):"):
                self.line("tag, pos = read_uvarint(buf, pos)")
                self.line("size, pos = read_uvarint(buf, pos)")
                self.line(f"{stop} = pos + size")
                for declared in tagged:
                    with self.block(f"if tag == {declared.tag}:"):
                        target = f"{owner}.{declared.name}"
                        self.read_value(target, declared.kind, self.is_nullable(declared))
                        self.flush()
                        self.line(
                            f"if pos != {stop}: raise MalformedMessage('a tag has a wrong size')"
                        )
                        self.line("continue")
                self.line(f"pos = {stop}")


class WriterSource(_Source):
    """`write(o, out, chunks) -> out`; large records become chunks, and `out` starts anew."""

    def __init__(self, kind: type[Message], version: int) -> None:
        super().__init__(kind, version)
        self.out = "out"
        with self.block("def write(o, out, chunks):"):
            self.write_struct("o", kind)
            self.flush()
            self.line("return out")

    def flush(self) -> None:
        if not self.pending:
            return
        values, codes = self.take_pending()
        self.line(self.packing(values, codes))

    def packing(self, values: list[str], codes: str) -> str:
        if codes == "B":
            return f"{self.out}.append({values[0]})"
        return f"{self.out} += {self.struct_call('pack', codes)}({', '.join(values)})"

    def write_struct(self, owner: str, kind: StructType) -> None:
        for declared in self.plain_fields(kind):
            value = f"{owner}.{declared.name}"
            self.write_value(value, declared.kind, self.is_nullable(declared))
        if self.flexible:
            self.write_tags(owner, self.tagged_fields(kind))

    def write_value(self, value: str, kind: Kind, nullable: bool) -> None:
        if isinstance(kind, StructType):
            self.write_part(value, kind, nullable)
            return
        if isinstance(kind, Scalar) and kind.code:
            self.pending.append((value, kind.code))
            return
        self.write_length(value, kind, nullable)
        if isinstance(kind, Array):
            self.write_items(kind.item)
        elif kind is RECORDS and self.out == "out":  # a tag must stay in one piece
            self.line(f"if len(v) < {RECORDS_CHUNK_BYTES_MIN}: out += v")
            self.line("else: chunks.append(out); chunks.append(v); out = bytearray()")
        else:
            self.line(f"{self.out} += v")

    def write_part(self, value: str, kind: StructType, nullable: bool) -> None:
        name = self.fresh_name("o")
        self.line(f"{name} = {value}")
        if not nullable:
            self.write_struct(name, kind)
            return
        with self.block(f"if {name} is None:"):
            self.pending.append(("-1", "b"))
        with self.block("else:"):
            self.pending.append(("1", "b"))
            self.write_struct(name, kind)

    def write_length(self, value: str, kind: Kind, nullable: bool) -> None:
        """Leaves the bytes or items to be written in `v`; they are empty for null."""
        length = "len(v) + 1" if self.flexible else "len(v)"
        null = 0 if self.flexible else -1
        empty = "()" if isinstance(kind, Array) else "b''"
        encode = "v = v.encode(); " if kind is STRING else ""
        self.line(f"v = {value}")
        if nullable:
            self.line(f"if v is None: v, n = {empty}, {null}")
            self.line(f"else: {encode}n = {length}")
        else:
            name = value.rpartition(".")[2]
            self.line(f"if v is None: raise NotEncodable('{name} may not be null')")
            self.line(f"{encode}n = {length}")
        if not self.flexible:
            self.pending.append(("n", self.length_code(kind)))
            self.flush()
            return
        values, codes = self.take_pending()
        self.line(f"if n < 128: {self.packing([*values, 'n'], codes + 'B')}")
        before = f"{self.packing(values, codes)}; " if values else ""
        self.line(f"else: {before}write_uvarint({self.out}, n)")

    def write_items(self, item: Kind) -> None:
        if item is UUID:
            self.line("data = b''.join(v)")
            self.line("if len(data) != 16 * len(v): raise NotEncodable('an id is not 16 bytes')")
            self.line(f"{self.out} += data")
        elif isinstance(item, Scalar) and item.code:
            self.constants["pack"] = struct.pack
            self.line(f"{self.out} += pack(f'>{{len(v)}}{item.code}', *v)")
        else:
            name = self.fresh_name("o")
            with self.block(f"for {name} in v:"):
                if isinstance(item, StructType):
                    self.write_struct(name, item)
                else:
                    self.write_value(name, item, nullable=False)

    def write_tags(self, owner: str, tagged: list[Field]) -> None:
        """A tagged field is written only when it differs from its default."""
        if not tagged:
            self.pending.append(("0", "B"))
            return
        tags = self.fresh_name("tags")
        self.line(f"{tags} = []")
        for declared in tagged:
            value = f"{owner}.{declared.name}"
            with self.block(f"if {self.differs(value, declared)}:"):
                data, outer = self.fresh_name("data"), self.out
                self.line(f"{data} = bytearray()")
                self.out = data
                self.write_value(value, declared.kind, self.is_nullable(declared))
                self.flush()
                self.out = outer
                self.line(f"{tags}.append(({declared.tag}, {data}))")
        self.flush()
        self.line(f"if {tags}: write_tags({self.out}, {tags})")
        self.line(f"else: {self.out}.append(0)")

    def differs(self, value: str, declared: Field) -> str:
        """The condition under which a value is not the default."""
        if not declared.is_made_fresh:
            return f"{value} {'is not' if declared.default is None else '!='} {declared.default!r}"
        if isinstance(declared.kind, StructType):
            parts = filter(self.has, declared.kind.FIELDS)
            return " or ".join(self.differs(f"{value}.{part.name}", part) for part in parts)
        return value
