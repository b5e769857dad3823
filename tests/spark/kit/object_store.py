"""An object store with S3's API (moto) on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "ottla"
KEY = "ottla-tests"
SECRET = "s3cret-of-the-store"
REGION = "us-east-1"


@dataclass(frozen=True)
class ObjectStore:
    endpoint: str
    client: Any

    def names(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """With one empty bucket."""
    # It tells every request otherwise.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        endpoint = f"http://127.0.0.1:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name=REGION,
        )
        client.create_bucket(Bucket=BUCKET)
        yield ObjectStore(endpoint, client)
    finally:
        server.stop()
