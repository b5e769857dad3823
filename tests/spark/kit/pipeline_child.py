"""`ottla …` in a process that ends with its owner: `python -m spark.kit.pipeline_child '[…]'`."""

from __future__ import annotations

import json
import os
import sys
import threading

from ottla.cli.main import run


def main() -> None:
    # stdin is the owner's end of a pipe, and the JVM ends with us.
    threading.Thread(target=lambda: os._exit(sys.stdin.buffer.read() != b""), daemon=True).start()
    sys.argv = ["ottla", *json.loads(sys.argv[1])]
    run()


if __name__ == "__main__":
    main()
