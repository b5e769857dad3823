"""The options of a write, checked as a whole before anything is asked of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.settings import ClientSettings
from ottla.spark.options.both_sides import (
    INT_MAX,
    check_topic,
    checked,
    client_settings,
    kafka_long,
)
from ottla.spark.options.values import BadOption, as_bool, as_choice
from ottla.wire.compression import Compression

BATCH_BYTES: Final = 1_000_000
REQUEST_BYTES_MAX: Final = 1024 * 1024
BUFFER_BYTES: Final = 32 * 1024 * 1024
DELIVERY_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True)
class SinkOptions:
    """What a write is to do; picklable."""

    client: ClientSettings
    topic: str | None = None
    compression: Compression = Compression.NONE
    acks: int = -1
    idempotent: bool = True
    batch_bytes: int = BATCH_BYTES
    in_flight_bytes: int = BUFFER_BYTES
    delivery_timeout_s: float = DELIVERY_TIMEOUT_MS / 1000

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        kafka = checked(options)
        acks, idempotent = _acks(kafka)
        codec = as_choice(
            "kafka.compression.type",
            kafka.get("compression.type", "none"),
            (one.name.lower() for one in Compression),
        )
        request_bytes = kafka_long(kafka, "max.request.size", REQUEST_BYTES_MAX, INT_MAX)
        return cls(
            client=client_settings(kafka),
            topic=_topic(options),
            compression=Compression[codec.upper()],
            acks=acks,
            idempotent=idempotent,
            batch_bytes=min(kafka_long(kafka, "batch.size", BATCH_BYTES, INT_MAX), request_bytes),
            in_flight_bytes=kafka_long(kafka, "buffer.memory", BUFFER_BYTES),
            delivery_timeout_s=kafka_long(
                kafka, "delivery.timeout.ms", DELIVERY_TIMEOUT_MS, INT_MAX
            )
            / 1000,
        )


def _topic(options: Mapping[str, str]) -> str | None:
    text = options.get("topic")
    if text is None:
        return None
    check_topic("topic", text.strip())
    return text.strip()


def _acks(kafka: Mapping[str, str]) -> tuple[int, bool]:
    """Idempotence needs acks=all: as in Java, less turns it off, unless it was asked for."""
    text = as_choice("kafka.acks", kafka.get("acks", "all"), ("all", "-1", "1", "0"))
    acks = -1 if text == "all" else int(text)
    asked = kafka.get("enable.idempotence")
    idempotent = True if asked is None else as_bool("kafka.enable.idempotence", asked)
    if acks != -1 and idempotent:
        if asked is not None:
            raise BadOption(f"kafka.enable.idempotence needs kafka.acks=all, but that is {text}")
        return acks, False
    return acks, idempotent
