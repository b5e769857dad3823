"""What must never be printed: which values are secrets, and lines without them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

HIDDEN: Final = "***"

# Names of keys and of variables whose values are secrets: PGPASSWORD, sasl.jaas.config, apiToken …
_NAME: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|jaas|credential|"
    r"(private|api|access|account|keystore|encryption)[-_.]?key",
    re.IGNORECASE,
)
# What stands inside of other text: jdbc:…?password=x, a JAAS line's password="x", user:x@host.
_ASSIGNED: Final = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credential)[\w.-]{0,40}"
    r"(?:\s{0,9}=\s{0,9}|:(?=\S))(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s&;,\"'}\]]+)",
    re.IGNORECASE,
)
_IN_ADDRESS: Final = re.compile(r"(?<=://)(?P<user>[^/\s:@]*):(?P<value>[^/\s@]+)(?=@)")

# A shorter one (which is none) is hidden only in quotes: "a" is in every other word.
ANYWHERE_CHARS: Final = 4
# Of a secret with several lines (a private key) each line is one, if it is no mere brace.
LINE_CHARS: Final = 12


def is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None


def secrets_in(value: str) -> Iterator[str]:
    """What a secret value may look like in other people's messages: whole, or a part of it."""
    whole = value.strip()
    if whole.lower() in ("", "true", "false", HIDDEN):
        return
    yield whole
    yield from (line.strip() for line in whole.splitlines() if len(line.strip()) >= LINE_CHARS)
    yield from assigned_in(whole)


def assigned_in(text: str) -> Iterator[str]:
    """The passwords in a JDBC URL, or a login's configuration, which need not be secret itself."""
    for pattern in (_ASSIGNED, _IN_ADDRESS):
        for found in pattern.finditer(text):
            yield found["value"].strip("\"'")


def redact(text: str, secrets: Collection[str]) -> str:
    """The text with `***` for every secret, and for whatever looks like a password in it."""
    # Longest first: a secret may be part of another.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= ANYWHERE_CHARS:
            text = text.replace(secret, HIDDEN)
        else:
            text = re.sub(rf"(?<=(['\"`])){re.escape(secret)}(?=\1)", HIDDEN, text)
    text = _ASSIGNED.sub(lambda found: f"{found[0][: _start(found)]}{HIDDEN}", text)
    return _IN_ADDRESS.sub(lambda found: f"{found['user']}:{HIDDEN}", text)


def _start(found: re.Match[str]) -> int:
    return found.start("value") - found.start()
