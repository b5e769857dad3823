"""The broker's own HTTP pages: is it alive, is it ready, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.gateway.http import HttpReply, HttpServer, json_reply
from ottla.gateway.prometheus import CONTENT_TYPE

if TYPE_CHECKING:
    from ottla.broker.services import Services

REASONS_MAX: Final = 10


def http_server(services: Services) -> HttpServer:
    pages = _Pages(services)
    return HttpServer(
        {"/healthz": pages.health, "/readyz": pages.readiness, "/metrics": pages.metrics}
    )


class _Pages:
    def __init__(self, services: Services) -> None:
        self._services = services

    def health(self) -> HttpReply:
        return json_reply(200, {"status": "alive"})

    def readiness(self) -> HttpReply:
        services = self._services
        failing = services.partitions.failing()
        reasons = [f"{store.path} is full" for store in services.stores.online() if store.is_full]
        if not failing and not reasons:
            return json_reply(200, {"status": "ready"})
        reasons += [f"{partition.name}: {partition.failure}" for partition in failing[:REASONS_MAX]]
        return json_reply(503, {"status": "storage failing", "reasons": reasons})

    def metrics(self) -> HttpReply:
        return HttpReply(200, self._services.metrics.render(), CONTENT_TYPE)
