"""`ottla …` in a process that ends with its owner: `python -m spark.kit.pipeline_child '[…]'`."""

from __future__ import annotations

import json
import sys

from ottla.cli.main import run
from spark.kit.owner import end_with_owner


def main() -> None:
    end_with_owner()
    sys.argv = ["ottla", *json.loads(sys.argv[1])]
    run()


if __name__ == "__main__":
    main()
