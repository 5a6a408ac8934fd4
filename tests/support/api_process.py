"""A real API process with limits of the operating system, and requests sent byte by byte."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from overnight_server.control.keys import issue
from overnight_server.domain.ids import UserId
from overnight_server.local.ports import free_port
from tests.support import logins
from tests.support.api_user import DEAD_REDIS
from tests.support.deployment import Deployment
from tests.support.wait import wait_until

ANSWER_SECONDS = 60
MODULE = "tests.support.wrong_clock"


@dataclass
class ApiProcess:
    """A running `overnight api`."""

    deployment: Deployment
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def key(self, user: UserId | None = None) -> str:
        """Return a new key, of a new user unless one is given."""
        return issue(self.deployment.app, user or self.deployment.user(), name="test")

    def peak_memory(self) -> int:
        """Return the most memory, in bytes, that the process has had at once."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_SECONDS)

    def begin(self, path: str, size: int, key: str = "", **headers: str) -> socket.socket:
        """Send the headers of a POST request whose body has `size` bytes, and nothing of it."""
        fields = {
            "Host": "test",
            "Content-Type": "application/json",
            "Content-Length": str(size),
            **({"X-API-Key": key} if key else {}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items())]
        connection = self.connect()
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection

    def answers(self) -> bool:
        """Whether a health check on a new connection gets a response."""
        try:
            return httpx2.get(f"{self.url}/health", timeout=ANSWER_SECONDS).status_code == 200
        except httpx2.TransportError:
            return False

    def create(self, key: str) -> int:
        """Create a task on a new connection; return the status of the response."""
        return httpx2.post(
            f"{self.url}/api/v1/tasks",
            json={"title": "a task"},
            headers={"X-API-Key": key},
            timeout=ANSWER_SECONDS,
        ).status_code


def status_of(connection: socket.socket) -> int:
    """Read the status of the next response; 0 if the server has closed the connection."""
    received = b""
    try:
        while b"\r\n\r\n" not in received and (part := connection.recv(65536)):
            received += part
    except ConnectionError:
        return 0
    return int(received.split()[1]) if received else 0


@contextmanager
def api_process(
    deployment: Deployment,
    database_url: str,
    home: Path,
    *,
    open_files: int | None = None,
    clock_shift: float = 0,
    **environ: str,
) -> Iterator[ApiProcess]:
    """Run the API in a process until the context ends.

    `open_files` limits its descriptors; its clock is wrong by `clock_shift` seconds.
    """
    port, log = free_port(), home / "api.log"
    limit = "" if open_files is None else f"ulimit -n {open_files}; "
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", f"{limit}exec {sys.executable} -m {MODULE} {clock_shift} api"],
            env=_environment(database_url, home, port, environ),
            cwd=home,
            stderr=output,
        )
    try:
        api = ApiProcess(deployment, process, port, log)
        wait_until(api.answers, timeout=90, what="the API to answer")
        yield api
    finally:
        process.kill()
        process.wait()


def _environment(
    database_url: str, home: Path, port: int, environ: Mapping[str, str]
) -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "OVERNIGHT_HOME": str(home),
        "OVERNIGHT_DATABASE_URL": logins.for_api(database_url),
        "OVERNIGHT_REDIS_URL": DEAD_REDIS,
        "OVERNIGHT_API_PORT": str(port),
        **environ,
    }
