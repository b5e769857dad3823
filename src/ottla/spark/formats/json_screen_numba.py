"""Which JSON values Arrow's parser will surely take, by a kernel that numba compiles.

`screen` walks over the bytes of each value, along the type that is wanted (as tables, made by
`json_screen_tables.py`). Positions are addresses, since numba would count an array in and out of
every function that it is given to; every read is held against the end of its value.

A position of -1 says that the value is held back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, register_jitable

from ottla.spark.kernels import BYTES, READ_INT32S, kernel

# What a value is to be. Of ANY nothing is wanted: such a field is passed over.
ANY, OBJECT, LIST, STRING, BOOLEAN, INTEGER, FLOAT, DECIMAL, DATE, TIME, LOCAL_TIME, BASE64 = range(
    12
)
# A type in its table: what it is, and two numbers. OBJECT: its first field, how many it has; LIST:
# the type of an item; INTEGER: bits; DECIMAL: digits before and after the point at most.
KIND, FIRST, SECOND, TYPE_FIELDS = range(4)
# The first two types of the table.
ANYTHING, WHOLE = range(2)
# A field in its table: where its name begins among all names, how long it is, and its type.
NAME, NAME_BYTES, FIELD_TYPE, FIELD_FIELDS = range(4)

# What is remembered of each object and list that is open, and of how many at most.
_BRACKET, _TYPE, _CURSOR, _SEEN, _LEVEL_FIELDS = range(5)
_LEVELS_MAX = 64
# Whether a field was there is kept in one number.
_SEEN_MAX = 62
# With so many digits before the point and in the exponent a number is surely not too large.
_FLOAT_DIGITS_MAX, _EXPONENT_DIGITS_MAX = 200, 2

_QUOTE, _COMMA, _COLON, _BACKSLASH, _ZERO, _NINE = 34, 44, 58, 92, 48, 57
_MINUS, _PLUS, _POINT, _SPACE, _SLASH, _EQUALS = 45, 43, 46, 32, 47, 61
_BRACE, _SQUARE = 123, 91
# One of these in each byte of a word.
_ONES, _HIGHEST = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
# From an opening bracket to its closing one, both { and [.
_CLOSING = 2


def _load_byte(_: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


def _load_number(_: Any, address: Any, index: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return types.int64(types.int64, types.int64), generate


def _store_number(_: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[2], builder.gep(pointer, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _load_word(_: Any, address: Any) -> Any:
    """Eight bytes, the first one lowest."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.int64), generate


def _count_zeros(_: Any, word: Any) -> Any:
    """How many of the lowest bits are 0."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


# Any, since they are called without the first argument.
_word: Any = intrinsic(_load_word)
_low_zeros: Any = intrinsic(_count_zeros)
_byte: Any = intrinsic(_load_byte)
_number: Any = intrinsic(_load_number)
_put: Any = intrinsic(_store_number)


@register_jitable
def _skip_space(at: int, end: int) -> int:
    while at < end:
        byte = _byte(at)
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        at += 1
    return at


@register_jitable
def _is_digit(byte: int) -> bool:
    return _ZERO <= byte <= _NINE


@register_jitable
def _skip_digits(at: int, end: int) -> int:
    while at < end and _is_digit(_byte(at)):
        at += 1
    return at


@register_jitable
def _hex(at: int, end: int) -> int:
    """The number of four digits, or -1."""
    if end - at < 4:
        return -1
    value = 0
    for step in range(4):
        byte = _byte(at + step)
        if _is_digit(byte):
            value = value * 16 + byte - _ZERO
        elif 97 <= (byte | 32) <= 102:
            value = value * 16 + (byte | 32) - 87
        else:
            return -1
    return value


@register_jitable
def _skip_escape(at: int, end: int) -> int:
    """After what a backslash begins; half a surrogate pair is held back."""
    if end - at < 2:
        return -1
    byte = _byte(at + 1)
    if byte != 117:
        # " \\ / b f n r t
        return at + 2 if byte in (_QUOTE, _BACKSLASH, _SLASH, 98, 102, 110, 114, 116) else -1
    code = _hex(at + 2, end)
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return -1
    if code < 0xD800 or code > 0xDFFF:
        return at + 6
    if end - at < 12 or _byte(at + 6) != _BACKSLASH or _byte(at + 7) != 117:
        return -1
    return at + 12 if 0xDC00 <= _hex(at + 8, end) <= 0xDFFF else -1


@register_jitable
def _skip_utf8(at: int, end: int) -> int:
    """After a character of several bytes."""
    byte = _byte(at)
    if byte < 0xC2 or byte > 0xF4:
        return -1
    size = 2 if byte < 0xE0 else (3 if byte < 0xF0 else 4)
    if end - at < size:
        return -1
    second = _byte(at + 1)
    least = 0xA0 if byte == 0xE0 else (0x90 if byte == 0xF0 else 0x80)
    most = 0x9F if byte == 0xED else (0x8F if byte == 0xF4 else 0xBF)
    if second < least or second > most:
        return -1
    for step in range(2, size):
        if _byte(at + step) & 0xC0 != 0x80:
            return -1
    return at + size


@register_jitable
def _skip_letters(at: int, end: int) -> int:
    """On to what is more than a letter in a string: ", \\, what is not ASCII or below the space.

    Eight bytes at once: in the difference a byte's highest bit is set where it was too small. That
    can be wrong only after a byte for which it is right, and the first one counts.
    """
    while end - at >= 8:
        word = _word(at)
        quotes, escapes = word ^ _QUOTES, word ^ _BACKSLASHES
        small = (word - _SPACES) & ~word
        special = small | ((quotes - _ONES) & ~quotes) | ((escapes - _ONES) & ~escapes) | word
        special &= _HIGHEST
        if special != 0:
            first: int = at + (_low_zeros(special) >> 3)
            return first
        at += 8
    return at


@register_jitable
def _skip_string(at: int, end: int) -> tuple[int, bool]:
    """After the quote that ends it, and whether it has no escapes."""
    is_plain = True
    at = _skip_letters(at + 1, end)
    while at < end:
        byte = _byte(at)
        if byte == _QUOTE:
            return at + 1, is_plain
        if byte == _BACKSLASH:
            is_plain = False
            at = _skip_escape(at, end)
        elif byte >= 0x80:
            at = _skip_utf8(at, end)
        elif byte >= _SPACE:
            at = _skip_letters(at + 1, end)
        else:
            return -1, False
        if at < 0:
            return -1, False
    return -1, False


@register_jitable
def _has_word(at: int, end: int, first: int, second: int, third: int, fourth: int) -> bool:
    return (
        end - at >= 4
        and _byte(at) == first
        and _byte(at + 1) == second
        and _byte(at + 2) == third
        and _byte(at + 3) == fourth
    )


@register_jitable
def _fits_integer(begin: int, end: int, bits: int, is_negative: bool) -> bool:
    """Whether the digits are a number of so many bits."""
    digits = end - begin
    if digits > 19 or (digits == 19 and bits < 64):
        return False
    value = 0
    for at in range(begin, min(end, begin + 18)):
        value = value * 10 + _byte(at) - _ZERO
    if digits < 19:
        return bits == 64 or value < (1 << (bits - 1)) + (1 if is_negative else 0)
    last = _byte(end - 1) - _ZERO
    most = 922_337_203_685_477_580
    return value < most or (value == most and last <= (8 if is_negative else 7))


@register_jitable
def _skip_number(at: int, end: int, kind: int, first: int, second: int) -> int:
    is_negative = _byte(at) == _MINUS
    begin = at + 1 if is_negative else at
    at = _skip_digits(begin, end)
    if at == begin or (at - begin > 1 and _byte(begin) == _ZERO):
        return -1
    whole = 0 if _byte(begin) == _ZERO else at - begin
    whole_end = at
    fraction = digits_after = 0
    if at < end and _byte(at) == _POINT:
        at = _skip_digits(at + 1, end)
        fraction = digits_after = at - whole_end - 1
        if fraction == 0:
            return -1
        while kind == DECIMAL and fraction > 0 and _byte(whole_end + fraction) == _ZERO:
            fraction -= 1
    exponent = 0
    if at < end and (_byte(at) | 32) == 101:
        at += 1
        if at < end and (_byte(at) == _MINUS or _byte(at) == _PLUS):
            at += 1
        digits = at
        at = _skip_digits(at, end)
        exponent = at - digits
        if exponent == 0:
            return -1
    if kind in (ANY, FLOAT):
        fits = whole <= _FLOAT_DIGITS_MAX and exponent <= _EXPONENT_DIGITS_MAX
        return at if fits else -1
    if exponent > 0:
        return -1
    if kind == DECIMAL:
        # The parser counts zeros at the end too.
        fits = whole + digits_after <= first + second
        return at if fits and whole <= first and fraction <= second else -1
    if at > whole_end or kind != INTEGER:
        return -1
    return at if _fits_integer(begin, whole_end, first, is_negative) else -1


@register_jitable
def _two(at: int) -> int:
    """The number of two digits, or one that is larger than any."""
    tens, ones = _byte(at), _byte(at + 1)
    if not (_is_digit(tens) and _is_digit(ones)):
        return 1000
    value: int = (tens - _ZERO) * 10 + ones - _ZERO
    return value


@register_jitable
def _is_date(at: int) -> bool:
    """Of ten bytes: YYYY-MM-DD, a day that there is."""
    century, year, month, day = _two(at), _two(at + 2), _two(at + 5), _two(at + 8)
    if _byte(at + 4) != _MINUS or _byte(at + 7) != _MINUS or century > 99 or year > 99:
        return False
    if month < 1 or month > 12 or day < 1:
        return False
    if month == 2:
        leap = (century % 4 == 0) if year == 0 else (year % 4 == 0)
        return day <= (29 if leap else 28)
    return day <= (30 if month == 4 or month == 6 or month == 9 or month == 11 else 31)


@register_jitable
def _is_time(at: int, end: int, kind: int) -> bool:
    """A date, a date and hh, or hh:mm[:ss[.ffffff]] with or without a zone."""
    if end - at < 10 or not _is_date(at):
        return False
    at += 10
    if at == end:
        return True
    if kind == DATE or end - at < 3 or (_byte(at) != 84 and _byte(at) != _SPACE):
        return False
    if _two(at + 1) > 23:
        return False
    if end - at == 3:
        return True
    if end - at < 6 or _byte(at + 3) != _COLON or _two(at + 4) > 59:
        return False
    at += 6
    if end - at >= 3 and _byte(at) == _COLON:
        if _two(at + 1) > 59:
            return False
        at += 3
        if at < end and _byte(at) == _POINT:
            digits = at + 1
            at = _skip_digits(digits, end)
            if at == digits or at - digits > 6:
                return False
    if at == end:
        return True
    return kind == TIME and _is_zone(at, end)


@register_jitable
def _is_zone(at: int, end: int) -> bool:
    """Z, +hh:mm, +hhmm or +hh."""
    if _byte(at) == 90:
        return at + 1 == end
    if _byte(at) != _PLUS and _byte(at) != _MINUS:
        return False
    if end - at == 6:
        return _byte(at + 3) == _COLON and _two(at + 1) <= 18 and _two(at + 4) <= 59
    if end - at == 5:
        return _two(at + 1) <= 18 and _two(at + 3) <= 59
    return end - at == 3 and _two(at + 1) <= 18


@register_jitable
def _is_base64(at: int, end: int) -> bool:
    if (end - at) % 4 != 0:
        return False
    for step in range(2):
        if step < end - at and _byte(end - 1) == _EQUALS:
            end -= 1
    while at < end:
        byte = _byte(at)
        is_letter = 97 <= (byte | 32) <= 122
        if not (is_letter or _is_digit(byte) or byte in (_PLUS, _SLASH)):
            return False
        at += 1
    return True


@register_jitable
def _skip_scalar(at: int, end: int, kind: int, first: int, second: int) -> int:
    """After a string, a number, true, false or null, if it is of that type."""
    byte = _byte(at)
    if byte == _QUOTE:
        stop, is_plain = _skip_string(at, end)
        if stop < 0 or kind in (ANY, STRING):
            return stop
        if is_plain and kind in (DATE, TIME, LOCAL_TIME):
            return stop if _is_time(at + 1, stop - 1, kind) else -1
        return stop if is_plain and kind == BASE64 and _is_base64(at + 1, stop - 1) else -1
    if byte == _MINUS or _is_digit(byte):
        return _skip_number(at, end, kind, first, second)
    if _has_word(at, end, 110, 117, 108, 108):
        return at + 4
    if kind != ANY and kind != BOOLEAN:
        return -1
    if _has_word(at, end, 116, 114, 117, 101):
        return at + 4
    if byte == 102 and _has_word(at + 1, end, 97, 108, 115, 101):
        return at + 5
    return -1


@register_jitable
def _is_name(at: int, size: int, name: int, name_size: int) -> bool:
    if size != name_size:
        return False
    step = 0
    while step < size and _byte(at + step) == _byte(name + step):
        step += 1
    return step == size


@register_jitable
def _find_field(at: int, size: int, kind: int, level: int, fields: int, names: int) -> int:
    """The type of the field of that name; ANYTHING for others, -1 when it comes again."""
    first, count = _number(kind, FIRST), _number(kind, SECOND)
    # Mostly they come in the same order: the search begins after the last one.
    index = _number(level, _CURSOR)
    for _ in range(count):
        if index >= count:
            index = 0
        field = fields + (first + index) * FIELD_FIELDS * 8
        if _is_name(at, size, names + _number(field, NAME), _number(field, NAME_BYTES)):
            seen = _number(level, _SEEN)
            bit = 1 << min(index, _SEEN_MAX)
            if seen & bit and index < _SEEN_MAX:
                return -1
            _put(level, _SEEN, seen | bit)
            _put(level, _CURSOR, index + 1)
            found: int = _number(field, FIELD_TYPE)
            return found
        index += 1
    return ANYTHING


@register_jitable
def _read_name(
    at: int, end: int, level: int, kinds: int, fields: int, names: int
) -> tuple[int, int]:
    """After `"name":`, and the type of what follows."""
    if _byte(at) != _QUOTE:
        return -1, ANYTHING
    stop, is_plain = _skip_string(at, end)
    if stop < 0 or not is_plain:
        return -1, ANYTHING
    begin = at + 1
    at = _skip_space(stop, end)
    if at >= end or _byte(at) != _COLON:
        return -1, ANYTHING
    at = _skip_space(at + 1, end)
    kind = kinds + _number(level, _TYPE) * TYPE_FIELDS * 8
    if _number(kind, KIND) == ANY:
        return at, ANYTHING
    wanted = _find_field(begin, stop - 1 - begin, kind, level, fields, names)
    return (at if wanted >= 0 else -1), wanted


@register_jitable
def _leave(at: int, end: int, levels: int, depth: int) -> tuple[int, int]:
    """From after a value to the next one, out of all objects and lists that end here."""
    while depth > 0:
        at = _skip_space(at, end)
        if at >= end:
            return -1, depth
        byte = _byte(at)
        if byte == _COMMA:
            return _skip_space(at + 1, end), depth
        if byte != _number(levels + (depth - 1) * _LEVEL_FIELDS * 8, _BRACKET) + _CLOSING:
            return -1, depth
        at += 1
        depth -= 1
    return at, depth


@register_jitable
def _is_good(at: int, end: int, kinds: int, fields: int, names: int, levels: int) -> bool:
    wanted = WHOLE
    depth = 0
    at = _skip_space(at, end)
    while at < end:
        # A value begins here, of the type `wanted`.
        kind = kinds + wanted * TYPE_FIELDS * 8
        byte = _byte(at)
        is_inside = False
        if byte in (_BRACE, _SQUARE):
            found = _number(kind, KIND)
            if found != ANY and found != (OBJECT if byte == _BRACE else LIST):
                return False
            at = _skip_space(at + 1, end)
            if at < end and _byte(at) == byte + _CLOSING:
                at += 1
            elif depth == _LEVELS_MAX:
                return False
            else:
                level = levels + depth * _LEVEL_FIELDS * 8
                _put(level, _BRACKET, byte)
                _put(level, _TYPE, wanted)
                _put(level, _CURSOR, 0)
                _put(level, _SEEN, 0)
                depth += 1
                is_inside = True
        elif depth == 0:
            return False
        else:
            at = _skip_scalar(at, end, _number(kind, KIND), _number(kind, FIRST),
                              _number(kind, SECOND))  # fmt: skip
        if not is_inside and at >= 0:
            at, depth = _leave(at, end, levels, depth)
        if at < 0:
            return False
        if depth == 0:
            return _skip_space(at, end) == end
        if at >= end:
            return False
        level = levels + (depth - 1) * _LEVEL_FIELDS * 8
        if _number(level, _BRACKET) == _BRACE:
            at, wanted = _read_name(at, end, level, kinds, fields, names)
            if at < 0:
                return False
        else:
            wanted = _number(level, _TYPE)
            kind = kinds + wanted * TYPE_FIELDS * 8
            if _number(kind, KIND) != ANY:
                wanted = _number(kind, FIRST)
    return False


@kernel(f"void(int64, {READ_INT32S}, int64, int64, int64, {BYTES})")
def screen(data: int, offsets: Any, kinds: int, fields: int, names: int, good: Any) -> None:
    """1 in `good` for each value that will be taken."""
    memory = np.zeros(_LEVELS_MAX * _LEVEL_FIELDS, np.int64)
    levels = memory.ctypes.data
    for row in range(len(offsets) - 1):
        at, end = data + offsets[row], data + offsets[row + 1]
        good[row] = _is_good(at, end, kinds, fields, names, levels)
