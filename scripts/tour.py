"""A tour of one broker in half a minute: topics, messages, a group, a crash, and what is left."""

from __future__ import annotations

import shlex
import subprocess
import sys

from ottla.testing import Broker

TIMEOUT_S = 60


class Tour:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def say(self, text: str) -> None:
        print(f"\n\033[1m# {text}\033[0m" if sys.stdout.isatty() else f"\n# {text}", flush=True)

    def ottla(self, arguments: str, lines: str = "") -> None:
        """Shows a command and runs it."""
        print(f"$ ottla {arguments}", flush=True)
        command = [sys.executable, "-m", "ottla", *shlex.split(arguments)]
        command += ["--bootstrap", self._broker.bootstrap]
        subprocess.run(command, input=lines, text=True, timeout=TIMEOUT_S, check=True)


def main() -> None:
    with Broker() as broker:
        tour = Tour(broker)
        tour.say(f"A broker listens on {broker.bootstrap}; any Kafka client could connect now.")
        tour.ottla("topics create orders --partitions 3")
        tour.say("1,000 messages with keys go in.")
        orders = "".join(f"customer-{n % 7}:order {n}\n" for n in range(1000))
        tour.ottla("produce orders --key-separator :", orders)
        tour.ottla("consume orders --group billing --from-beginning --max 5")
        tour.say("The group has read five of them; the rest is its lag.")
        tour.ottla("groups describe billing")
        tour.say("The broker is killed (SIGKILL) and started again with the same data.")
        broker.kill()
        broker.restart()
        tour.ottla("groups describe billing")
        tour.say("Nothing acknowledged is gone, and the group goes on where it was.")
        tour.ottla("consume orders --group billing --max 5")
        tour.ottla("topics describe orders")


if __name__ == "__main__":
    main()
