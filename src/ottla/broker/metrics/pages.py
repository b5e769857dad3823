"""The broker's own HTTP pages: is it alive, is it ready, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.metrics.readiness import why_not_ready
from ottla.gateway.http import HttpReply, HttpServer, json_reply
from ottla.gateway.prometheus import CONTENT_TYPE

if TYPE_CHECKING:
    from ottla.broker.services import Services


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
        unready = why_not_ready(self._services)
        if unready is None:
            return json_reply(200, {"status": "ready"})
        return json_reply(503, unready._asdict())

    def metrics(self) -> HttpReply:
        return HttpReply(200, self._services.metrics.render(), CONTENT_TYPE)
