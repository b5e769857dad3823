"""The broker that all scenarios of a pytest worker share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ottla.testing.broker import Setting

HOUR_MS = 3_600_000


@pytest.fixture(scope="session")
def ottla_broker_settings() -> Mapping[str, Setting]:
    """Messages of long ago stay, also where the tests take longer than retention's first round."""
    return {"log.retention.check.interval.ms": HOUR_MS}
