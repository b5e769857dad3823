"""`sasl.jaas.config`: one entry of JAAS, read by the rules of Java's tokenizer.

org.apache.kafka.common.security.plain.PlainLoginModule required
    username="alice" password="alice\\"s";
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.client.failures import BadSetting

_PREFIX: Final = "org.apache.kafka.common.security."
_MODULES: Final = {
    f"{_PREFIX}plain.PlainLoginModule": "PLAIN",
    f"{_PREFIX}scram.ScramLoginModule": "SCRAM",
}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+ | //[^\r\n]* | /\*.*?\*/)
  | (?P<word>[A-Za-z$_\u00a0-\uffff][A-Za-z0-9.$_\u00a0-\uffff-]*)
  | "(?P<double>(?:[^"\\\r\n]|\\.)*)"
  | '(?P<single>(?:[^'\\\r\n]|\\.)*)'
  | (?P<sign>[=;])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
}


class Login(NamedTuple):
    mechanism: str
    username: str
    password: str


class _Token(NamedTuple):
    text: str
    is_sign: bool


def parse_login(text: str, mechanism: str) -> Login:
    """The user that an entry names, for a mechanism that fits its module."""
    tokens = list(_tokens(text))
    if len(tokens) < 2 or tokens[0].is_sign or tokens[1].is_sign:
        raise BadSetting("sasl.jaas.config does not begin with a login module and `required`")
    module, flag = tokens[0].text, tokens[1].text
    family = _MODULES.get(module.removeprefix("kafkashaded."))
    if family is None or not mechanism.startswith(family):
        fitting = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        raise BadSetting(
            f"sasl.jaas.config names {module}; sasl.mechanism={mechanism} needs {_PREFIX}{fitting}"
        )
    if flag.lower() not in _FLAGS:
        raise BadSetting(f"sasl.jaas.config: {flag!r} stands where `required` should")
    options = _options(tokens[2:])
    for wanted in ("username", "password"):
        if wanted not in options:
            raise BadSetting(f"sasl.jaas.config has no {wanted}")
    if options.get("tokenauth", "false").lower() == "true":
        raise BadSetting("sasl.jaas.config: delegation tokens (tokenauth) are not supported")
    return Login(mechanism, options["username"], options["password"])


def _options(tokens: list[_Token]) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(tokens) and tokens[position] != _Token(";", True):
        name, *rest = tokens[position : position + 3]
        if len(rest) < 2 or name.is_sign or rest[0] != _Token("=", True) or rest[1].is_sign:
            raise BadSetting(f"sasl.jaas.config: no value for {name.text!r}")
        options[name.text] = rest[1].text
        position += 3
    if position == len(tokens):
        raise BadSetting("sasl.jaas.config does not end with a semicolon")
    if position + 1 != len(tokens):
        raise BadSetting("sasl.jaas.config has more than one login module")
    return options


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            # The text itself stays out of the message: it may be the password.
            raise BadSetting(
                f"sasl.jaas.config cannot be read at character {position + 1}: values that are "
                "not plain words stand in double quotes"
            )
        position = found.end()
        if found["space"] is not None:
            continue
        if found["sign"] is not None:
            yield _Token(found["sign"], True)
        elif found["word"] is not None:
            yield _Token(found["word"], False)
        else:
            quoted = found["double"] if found["double"] is not None else found["single"]
            yield _Token(_ESCAPE.sub(_unescape, quoted), False)


def _unescape(found: re.Match[str]) -> str:
    escaped = found[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _ESCAPED.get(escaped, escaped)
