"""Requests that librdkafka does not speak, to whichever broker answers."""

from __future__ import annotations

from typing import TypeVar

from ottla.cli.clients import Cluster
from ottla.cli.failures import CommandFailed
from ottla.client.blocking import Blocking
from ottla.client.settings import ClientSettings
from ottla.errors import OttlaError
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)


def ask(cluster: Cluster, request: Message, kind: type[R]) -> R:
    cluster.check_reachable()
    try:
        with Blocking(ClientSettings.from_kafka(cluster.settings)) as client:
            return client.run(lambda it: it.ask_any(request, kind), cluster.timeout_s)
    except OttlaError as error:
        raise CommandFailed(str(error)) from error
