"""What the options of a read and those of a write have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ottla.client.failures import BadSetting
from ottla.client.settings import ClientSettings
from ottla.spark.options.catalogue import names_known
from ottla.spark.options.kafka import CLIENT, PREFIX, take_kafka_options
from ottla.spark.options.values import LONG_MAX, BadOption, as_bool, as_long, raise_bad_option
from ottla.spark.spelling import nearest

INT_MAX: Final = 2**31 - 1

# What a topic may be called; a mistyped one is better noticed before the first fetch.
TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """The kafka.* options without their prefix, after every name was found to be known."""
    known = names_known()
    lower = {name.lower() for name in known}
    for name in options:
        if name not in lower and not name.startswith(PREFIX):
            raise BadOption(f"option {name} is unknown{nearest(name, known)}")
    kafka = take_kafka_options(options)
    short = options.get("bootstrap")
    if short is not None:
        if kafka.get("bootstrap.servers", short) != short:
            raise BadOption(
                "options bootstrap and kafka.bootstrap.servers differ; give one of them"
            )
        kafka["bootstrap.servers"] = short
    if not kafka.get("bootstrap.servers", "").strip():
        raise BadOption(
            "option kafka.bootstrap.servers (or bootstrap) is missing, for example localhost:9092"
        )
    return kafka


def client_settings(kafka: Mapping[str, str]) -> ClientSettings:
    try:
        return ClientSettings.from_kafka({n: v for n, v in kafka.items() if n in CLIENT})
    except BadSetting as wrong:
        raise BadOption(f"option {PREFIX}{wrong}") from wrong


def check_topic(name: str, topic: str) -> None:
    if not TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise_bad_option(name, topic, "names of letters, digits and ._- with up to 249 characters")


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    return default if text is None else as_bool(name, text)


def count(options: Mapping[str, str], name: str, *, most: int = LONG_MAX) -> int | None:
    text = options.get(name.lower())
    return None if text is None else as_long(name, text, least=1, most=most)


def kafka_long(kafka: Mapping[str, str], name: str, default: int, most: int = LONG_MAX) -> int:
    text = kafka.get(name)
    return default if text is None else as_long(PREFIX + name, text, least=1, most=most)
