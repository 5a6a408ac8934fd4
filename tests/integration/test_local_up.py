"""The whole deployment with one command: up, used, killed, up again with yesterday's data, down."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from overnight_server.local.home import Connection, Home
from overnight_server.local.home_lock import is_held
from overnight_server.store.db import ADMIN, Db
from overnight_server.store.models import User
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parents[2]


class Terminal:
    """Someone at a terminal, in one home."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OVERNIGHT_")}
        self.env["OVERNIGHT_HOME"] = str(path)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "overnight_server.cli.main", *words]

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=PROJECT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def connection(self) -> Connection:
        found = self.home.connection()
        assert found
        return found

    def processes(self) -> list[psutil.Process]:
        supervisor = psutil.Process(self.connection().pid)
        return [supervisor, *supervisor.children(recursive=True)]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    someone = Terminal(tmp_path / ".overnight")
    yield someone
    someone.type("down")


def users(url: str) -> set[str]:
    db = Db.connect(url, role=ADMIN)
    try:
        return set(db.atomically(lambda tx: tx.scalars(select(User.name)).all()))
    finally:
        db.close()


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.timeout(300)  # two whole starts and stops of nine processes
def test_a_detached_deployment_works_survives_kill_9_and_goes_down(terminal: Terminal) -> None:
    first = terminal.type("up", "--detach")
    assert first.returncode == 0, first.stdout + first.stderr
    connection = terminal.connection()
    assert connection.ready
    assert connection.api_url in first.stdout
    assert "--type echo" in first.stdout
    assert users(connection.database_url) >= {"local"}
    key = terminal.home.api_key()

    for again in (terminal.type("up"), terminal.type("up", "--detach")):
        assert again.returncode == 1
        assert str(connection.pid) in again.stderr
        assert connection.api_url in again.stderr

    # Beat's first tick comes a few seconds after the ready line.
    wait_until(lambda: terminal.type("doctor").returncode == 0, what="a deployment in good health")

    everyone = terminal.processes()
    os.kill(connection.pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, everyone)), timeout=30, what="every process to end")
    assert terminal.home.connection() is None

    assert terminal.type("up", "--detach").returncode == 0
    assert terminal.connection().api_url == connection.api_url
    assert terminal.home.api_key() == key
    assert users(connection.database_url) >= {"local"}

    everyone = terminal.processes()
    stopped = terminal.type("down")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert all(map(is_gone, everyone))
    assert not is_held(terminal.home.lock)
    idle = terminal.type("down")
    assert idle.returncode == 0
    assert "nothing is running here" in idle.stdout


def test_ctrl_c_while_starting_leaves_nothing_behind(terminal: Terminal, tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as output:
        up = subprocess.Popen(
            terminal.command("up"), cwd=PROJECT, env=terminal.env, stdout=output, stderr=output
        )
    wait_until(lambda: b"migrate " in (tmp_path / "said").read_bytes(), what="the migration")
    everyone = [psutil.Process(up.pid), *psutil.Process(up.pid).children(recursive=True)]

    up.send_signal(signal.SIGINT)

    assert up.wait(60) == 130
    assert all(map(is_gone, everyone))
    assert (tmp_path / "said").read_text().splitlines()[-1].endswith("Overnight has stopped.")


def test_a_deployment_that_cannot_start_says_why(terminal: Terminal, tmp_path: Path) -> None:
    terminal.env["OVERNIGHT_PG_BIN"] = str(tmp_path)

    for words in (("up",), ("up", "--detach")):
        refused = terminal.type(*words)

        assert refused.returncode == 1
        assert "OVERNIGHT_PG_BIN" in refused.stderr


def test_handlers_that_cannot_be_imported_end_the_start_at_once(terminal: Terminal) -> None:
    terminal.env["OVERNIGHT_HANDLERS"] = "no_such_module"

    refused = terminal.type("up")

    assert refused.returncode == 1
    assert refused.stderr == (
        "cannot start: OVERNIGHT_HANDLERS: cannot import 'no_such_module': ModuleNotFoundError:"
        " No module named 'no_such_module'\n"
    )
    assert "starting in" not in refused.stdout
