"""Kafka's rules for the names and ids of topics."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from typing import Final

from ottla.errors import InvalidTopicName
from ottla.ports import Random

TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
# The first id means "none", the second is the metadata topic's, the third a lost directory's.
_RESERVED_IDS: Final = frozenset(bytes(15) + bytes([last]) for last in range(3))


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicName, saying what is wrong."""
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        reason = f"it has {len(name)} characters, and {TOPIC_NAME_LENGTH_MAX} are allowed"
    elif not _LEGAL.fullmatch(name):
        reason = f"'{name}' has characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise InvalidTopicName(f"Topic name is invalid: {reason}.")


def collision_key(name: str) -> str | None:
    """Two topics with the same key would share the names of their metrics."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def new_id(random: Random) -> bytes:
    """A version 4 UUID; no reserved one, and none whose text looks like a command-line option."""
    while True:
        made = bytearray(random.bytes(16))
        made[6] = made[6] & 0x0F | 0x40
        made[8] = made[8] & 0x3F | 0x80
        id = bytes(made)
        if id not in _RESERVED_IDS and not id_text(id).startswith("-"):
            return id


def id_text(id: bytes) -> str:
    """As Kafka prints ids: base64 for URLs, without padding."""
    return urlsafe_b64encode(id).rstrip(b"=").decode("ascii")
