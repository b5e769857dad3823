"""What the totals of a demo must be: counted from the sent bytes alone, in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

# As in the example's pipeline.yaml.
WATERMARK_DELAY: Final = timedelta(minutes=2)


# A minute and a shop.
Key = tuple[datetime, str]


class Total(NamedTuple):
    orders: int
    amount: Decimal


class Truth:
    """The orders of each minute and shop, those that are broken, those that are too late."""

    def __init__(self) -> None:
        self._totals: dict[Key, Total] = defaultdict(lambda: Total(0, Decimal()))
        self._newest: datetime | None = None
        self.sent = 0
        self.broken = 0
        self.too_late = 0

    def add(self, value: bytes, *, too_late: bool) -> None:
        self.sent += 1
        try:
            order = json.loads(value, parse_float=Decimal, parse_int=Decimal)
            amount, at = order["amount"], datetime.fromisoformat(order["at"])
        except json.JSONDecodeError:
            self.broken += 1
            return
        if not isinstance(amount, Decimal):
            self.broken += 1
        elif too_late:
            self.too_late += 1
        else:
            key = at.replace(second=0, microsecond=0), order["shop"]
            before = self._totals[key]
            self._totals[key] = Total(before.orders + 1, before.amount + amount)
            self._newest = max(at, self._newest or at)

    def closed(self) -> dict[Key, Total]:
        """Of the minutes for which, by the watermark, no more orders can come."""
        if self._newest is None:
            return {}
        watermark = self._newest - WATERMARK_DELAY
        return {
            (minute, shop): total
            for (minute, shop), total in self._totals.items()
            if minute + timedelta(minutes=1) <= watermark
        }


def differences(truth: Truth, totals: Mapping[Key, Total], dead: int) -> list[str]:
    """What is wrong with the totals and dead letters; nothing, if all is well."""
    closed = truth.closed()
    wrong = [
        f"{minute:%H:%M} {shop}: {totals.get((minute, shop))} instead of {total}"
        for (minute, shop), total in sorted(closed.items())
        if totals.get((minute, shop)) != total
    ]
    wrong += [
        f"{minute:%H:%M} {shop}: {total}, which nobody ordered or not yet"
        for (minute, shop), total in sorted(totals.items())
        if (minute, shop) not in closed
    ]
    if dead != truth.broken:
        wrong.append(f"{dead} dead letters for {truth.broken} broken orders")
    return wrong
