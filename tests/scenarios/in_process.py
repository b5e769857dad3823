"""A broker in a thread of this process, on a disk that a test can put into trouble."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ottla.broker.main import Broker
from ottla.broker.ready import ReadyInfo
from ottla.broker.storage.disk import RealDisk
from ottla.config import BrokerConfig
from ottla.testing.disks import FaultyDisk
from ottla.testing.topics import create_topic

TIMEOUT_S = 40.0


class BrokerInside:
    """Started and stopped by `with`; `disk` is what it believes to be its disks."""

    def __init__(
        self, *directories: object, disk: FaultyDisk | None = None, **settings: object
    ) -> None:
        self.disk = disk or FaultyDisk(RealDisk())
        texts = {
            "log.dirs": ",".join(map(str, directories)),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "http.listener": "127.0.0.1:0",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }
        given = {name.replace("_", "."): value for name, value in settings.items()}
        texts |= {name: str(value) for name, value in given.items()}
        # None leaves a setting to its default.
        self._config = BrokerConfig.parse(
            {name: text for name, text in texts.items() if given.get(name, text) is not None}
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.node = Broker(self._config, self.disk)

    def __enter__(self) -> Self:
        self._thread.start()
        self.info: ReadyInfo = self.call(self.node.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disk.heal()
        try:
            self.call(self.node.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(TIMEOUT_S)
            self._loop.close()

    def call(self, work: Any) -> Any:
        """Runs a coroutine in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def given_up(self) -> str:
        """Waits until the broker cannot go on; says why."""

        async def wait() -> str:
            return await asyncio.wait_for(asyncio.shield(self.node.given_up), TIMEOUT_S)

        reason: str = self.call(wait())
        return reason

    @property
    def bootstrap(self) -> str:
        return self.info.kafka

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        create_topic(self.bootstrap, name, partitions, dict(configs or {}))

    def readiness(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://{self.info.http}/readyz", timeout=10) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
