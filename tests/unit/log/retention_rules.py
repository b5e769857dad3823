"""Kafka's rules of retention once more, as they are said: one segment at a time."""

from __future__ import annotations

# (where it ends, its bytes, how old its youngest record is)
Known = tuple[int, int, int]


class Rules:
    """What is `left` of a log, the oldest segment first."""

    def __init__(self, log: list[Known], committed: int) -> None:
        self.left = list(log)
        self.committed = committed

    def _may_go(self) -> bool:
        if not self.left:
            return False
        end, size, _ = self.left[0]
        is_empty_and_last = len(self.left) == 1 and size == 0
        return end <= self.committed and not is_empty_and_last

    def by_start(self, start: int) -> None:
        while self._may_go() and len(self.left) > 1 and self.left[0][0] <= start:
            self.left.pop(0)

    def by_size(self, kept_bytes: int) -> None:
        total = sum(size for _, size, _ in self.left)
        if kept_bytes < 0 or total < kept_bytes:
            return
        surplus = total - kept_bytes
        while self._may_go() and surplus - self.left[0][1] >= 0:
            surplus -= self.left.pop(0)[1]

    def by_age(self, kept_ms: int) -> None:
        while kept_ms >= 0 and self._may_go() and self.left[0][2] > kept_ms:
            self.left.pop(0)
