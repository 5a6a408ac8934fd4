"""`overnight api --processes`: several processes serve one port, and none is left behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from overnight import Client
from overnight.errors import TaskFailed
from overnight_server.control.keys import issue
from overnight_server.local.ports import free_port
from tests.support.deployment import Deployment
from tests.support.wait import wait_until

PROCESSES = 2


class ApiProcesses:
    """A running `overnight api --processes 2`."""

    def __init__(self, database_url: str, home: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "overnight_server.cli.main", "api", "--processes"]
        self.parent = subprocess.Popen(
            [*command, str(PROCESSES)],
            env={
                "OVERNIGHT_HOME": str(home),
                "OVERNIGHT_DATABASE_URL": database_url,
                "OVERNIGHT_API_PORT": self.url.rpartition(":")[2],
            },
            cwd=home,
        )

    def serving(self) -> list[psutil.Process]:
        """Return the processes that hold the listening socket, without the parent."""
        return [child for child in psutil.Process(self.parent.pid).children() if _is_serving(child)]

    def answers(self) -> bool:
        """Whether a new connection gets a response."""
        try:
            return httpx2.get(f"{self.url}/health").status_code == 200
        except httpx2.TransportError:
            return False


def _is_serving(child: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:  # also if it has ended and its parent has not noticed yet
        return False


@pytest.fixture
def api(database_url: str, tmp_path: Path) -> Iterator[ApiProcesses]:
    api = ApiProcesses(database_url, tmp_path)
    try:
        wait_until(
            lambda: len(api.serving()) == PROCESSES and api.answers(), timeout=90, what="the API"
        )
        yield api
    finally:
        api.parent.kill()
        api.parent.wait()


def test_a_process_that_is_killed_is_replaced(api: ApiProcesses) -> None:
    first, second = api.serving()

    first.kill()

    wait_until(
        lambda: second in api.serving() and len(set(api.serving()) - {first}) == PROCESSES,
        what="another process",
    )
    wait_until(api.answers, what="a response")


def test_sigterm_stops_every_process_in_order(api: ApiProcesses) -> None:
    serving = api.serving()

    api.parent.send_signal(signal.SIGTERM)

    assert api.parent.wait(30) == 0
    assert not [child for child in serving if child.is_running()]


def test_no_process_outlives_a_killed_parent(api: ApiProcesses) -> None:
    serving = api.serving()

    api.parent.kill()

    _, alive = psutil.wait_procs(serving, timeout=30)
    assert not alive


def test_streams_and_waits_end_whichever_process_has_them(
    api: ApiProcesses, deployment: Deployment
) -> None:
    """Each process reads the event log itself; the cancel often reaches another process."""
    key = issue(deployment.app, deployment.user(), name="test")
    for _ in range(2 * PROCESSES):
        with Client(api.url, key, retries=0) as client, Client(api.url, key, retries=0) as other:
            task = client.tasks.create("to be cancelled", type="nobody")
            events = client.tasks.stream(task.id)
            first = next(events)
            other.tasks.cancel(task.id)

            assert [first.kind, *(event.kind for event in events)][-1] == "task.cancelled"
            with pytest.raises(TaskFailed, match="cancelled"):
                client.tasks.wait(task.id, timeout=20)
