"""A real S3-compatible server (moto) in a process of its own, with one empty bucket."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from overnight_server.local.ports import free_port
from tests.support.wait import wait_until

BUCKET = "night"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run the server until the context ends; yield the variables with which to use it."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _has_bucket(address), what="the S3 server")
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        process.kill()
        process.wait()


def _has_bucket(address: str) -> bool:
    request = urllib.request.Request(f"{address}/{BUCKET}", data=b"", method="PUT")
    try:
        with _DIRECT.open(request):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
