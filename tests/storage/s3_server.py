"""Moto's S3 server on a socket of its own, and stores in fresh buckets of it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from serve_app.deployment.local import free_port
from storage.objects.s3 import S3Place, S3Store, client_of

START_SECONDS = 60
SERVER = "import sys; from moto.server import main; main(sys.argv[1:])"


@contextlib.contextmanager
def s3_endpoint() -> Iterator[str]:
    """Run the server in a thread until the block ends; yields its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextlib.contextmanager
def s3_process(**environment: str) -> Iterator[str]:
    """Run the server as a process, with ``environment``, until the block ends."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        wait_for_server(endpoint)
        yield endpoint
    finally:
        process.terminate()
        process.wait(120)


def wait_for_server(endpoint: str) -> None:
    """Return once the server answers anything at all."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(endpoint, trust_env=False)
            return
        time.sleep(0.1)
    raise AssertionError("moto did not start")


def place_at(endpoint: str, **changes: Any) -> S3Place:
    """A bucket that does not exist yet, with a key that moto accepts."""
    known = {
        "bucket": f"bucket-{uuid.uuid4().hex}",
        "prefix": "ours/",
        "endpoint_url": endpoint,
        "region": "us-east-1",
        "access_key_id": "test-key",
        "secret_access_key": "test-secret",
    }
    return S3Place(**(known | changes))


def fresh_store(endpoint: str, **changes: Any) -> S3Store:
    """A store in an empty bucket of its own."""
    store = S3Store(place_at(endpoint, **changes))
    client_of(store.place).create_bucket(Bucket=store.place.bucket)
    return store


def everything_in(store: S3Store) -> list[str]:
    """All keys in the bucket, and the unfinished multipart uploads, without our prefix."""
    client = client_of(store.place)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=store.place.bucket)
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    unfinished = client.list_multipart_uploads(Bucket=store.place.bucket).get("Uploads", [])
    keys += [f"{item['Key']} (unfinished)" for item in unfinished]
    return [key.removeprefix(store.place.prefix) for key in keys]
