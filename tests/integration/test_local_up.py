"""`overnight up` and `down`: start, use, kill, start again with the same data, stop."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select, text

from overnight_server.local.home_lock import is_held
from overnight_server.store.db import ADMIN, Db
from overnight_server.store.models import UserRow
from tests.support.terminal import Terminal
from tests.support.wait import wait_until

PROJECT = Path(__file__).parents[2]
PROCFILE = {line.partition(":")[0] for line in (PROJECT / "Procfile").read_text().splitlines()}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    someone = Terminal(tmp_path / ".overnight")
    yield someone
    someone.type("down")


def users(url: str) -> set[str]:
    db = Db.connect(url, role=ADMIN)
    try:
        return set(db.atomically(lambda tx: tx.scalars(select(UserRow.name)).all()))
    finally:
        db.close()


def worker_types(url: str) -> set[str]:
    db = Db.connect(url, role=ADMIN)
    try:
        types = text("SELECT unnest(types) FROM agents")
        return set(db.atomically(lambda tx: tx.scalars(types).all()))
    finally:
        db.close()


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.timeout(300)  # two whole starts and stops of nine processes
def test_a_detached_stack_runs_survives_kill_9_and_stops(terminal: Terminal) -> None:
    first = terminal.type("up", "--detach")
    assert first.returncode == 0, first.stdout + first.stderr
    connection = terminal.connection()
    assert connection.ready
    assert re.fullmatch(
        r"\nOvernight is ready\.\n\n"
        rf"  Open     {connection.api_url}/sign-in/\S{{43}}\n"
        rf"  API      {connection.api_url}\n"
        rf"  Flower   {connection.flower_url}  \(user overnight, password in .*credentials.json\)\n"
        r"  Worker   pool default, 2 tasks at once \(OVERNIGHT_CONCURRENCY\)\n"
        r"  Logs     .*/\.overnight/logs\n\n"
        r"Add a task:  \S*overnight add .* --wait\n"
        r"Stop:        \S*overnight down\n",
        first.stdout,
    )
    assert users(connection.database_url) >= {"local"}
    assert {"echo", "crash"} <= worker_types(connection.database_url)
    key = terminal.home.api_key()

    for again in (terminal.type("up"), terminal.type("up", "--detach")):
        assert again.returncode == 1
        assert str(connection.pid) in again.stderr
        assert connection.api_url in again.stderr

    # Beat's first tick comes a few seconds after the ready line.
    wait_until(lambda: terminal.type("doctor").returncode == 0, what="all checks to pass")

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
    assert "not running" in idle.stdout


def test_each_process_has_only_its_own_secrets_in_its_environment(terminal: Terminal) -> None:
    secrets = {
        "OVERNIGHT_FLOWER_PASSWORD": ("flower-secret", {"flower"}),
        "OVERNIGHT_JWT_SECRET": ("j" * 32, {"api"}),
        "SECRET_HANDLER": ("handler-secret", {"worker"}),
    }
    terminal.env |= {name: value for name, (value, _) in secrets.items()} | {
        "OVERNIGHT_JWT_ALGORITHMS": "HS256",
        "OVERNIGHT_JWT_ISSUER": "issuer",
        "OVERNIGHT_JWT_AUDIENCE": "audience",
    }
    started = terminal.type("up", "--detach")
    assert started.returncode == 0, started.stdout + started.stderr

    others = terminal.processes()[1:]
    environments = {
        process.pid: (_role(process), "\n".join(process.environ().values())) for process in others
    }

    roles = {role for role, _ in environments.values()}
    assert {*PROCFILE, "server"} <= roles
    for value, processes in secrets.values():
        holders = {role for role, environment in environments.values() if value in environment}
        assert holders == processes
    for role, environment in environments.values():
        has_database = "postgresql" in environment
        assert has_database == (role not in {"flower", "server"}), role


def _role(process: psutil.Process) -> str:
    """Return the name of a process in the Procfile, or `server` for guards and servers."""
    arguments = process.cmdline()
    # Maintenance is a Celery worker with a queue of its own.
    found = [name for name in arguments if name in PROCFILE]
    return found[-1] if found else "server"


def test_ctrl_c_during_the_start_leaves_no_process(terminal: Terminal, tmp_path: Path) -> None:
    with (tmp_path / "screen").open("wb") as output:
        up = subprocess.Popen(
            terminal.command("up"), cwd=PROJECT, env=terminal.env, stdout=output, stderr=output
        )
    wait_until(lambda: b"schema" in (tmp_path / "screen").read_bytes(), what="the migration")
    everyone = [psutil.Process(up.pid), *psutil.Process(up.pid).children(recursive=True)]

    up.send_signal(signal.SIGINT)

    assert up.wait(60) == 130
    assert all(map(is_gone, everyone))
    assert (tmp_path / "screen").read_text().splitlines()[-1].endswith("Overnight has stopped.")


def test_the_first_screen_shows_only_what_concerns_the_user(
    terminal: Terminal, tmp_path: Path
) -> None:
    screen = tmp_path / "screen"
    with screen.open("wb") as output:
        up = subprocess.Popen(
            terminal.command("up"), cwd=PROJECT, env=terminal.env, stdout=output, stderr=output
        )
    wait_until(lambda: b"Stop:        Ctrl-C" in screen.read_bytes(), timeout=90, what="ready")
    lines = screen.read_text().partition("\nStop:")[0].splitlines()
    up.send_signal(signal.SIGINT)

    assert up.wait(60) == 0
    assert lines[:3] == [
        f"Starting Overnight in {terminal.home.path} …",
        "Updating the database schema …",
        "Starting api, dispatcher, maintenance, worker, beat, agent-driver, notifier, flower …",
    ]
    assert not [line for line in lines if " | " in line], "no line of a service"
    assert "database system is ready" in (terminal.home.logs / "postgres.log").read_text()
    after = screen.read_text().partition("Ctrl-C\n")[2]
    assert not re.search(r"^(postgres|redis|flower) ", after, flags=re.MULTILINE)
    assert after.endswith("\nOvernight has stopped.\n")


def test_a_stack_that_cannot_start_names_the_reason(terminal: Terminal, tmp_path: Path) -> None:
    terminal.env["OVERNIGHT_PG_BIN"] = str(tmp_path)

    for arguments in (("up",), ("up", "--detach")):
        refused = terminal.type(*arguments)

        assert refused.returncode == 1
        assert "OVERNIGHT_PG_BIN" in refused.stderr


@pytest.mark.timeout(300)  # two whole starts and stops of nine processes
def test_handlers_are_remembered_and_loaded_again_when_they_change(
    terminal: Terminal, tmp_path: Path
) -> None:
    module = tmp_path / "my_handlers.py"

    def write(version: str) -> None:
        module.write_text(
            "from overnight import handler\n\n"
            f'@handler("greet")\ndef greet(ctx):\n    return "{version}"\n'
        )

    def greet() -> str:
        return terminal.type("add", "greet", "--type", "greet", "--wait", cwd=tmp_path).stdout

    def loaded() -> int:
        return (terminal.home.logs / "worker.log").read_text().count("queue=handlers_loaded")

    write("first")
    up = ("up", "--detach", "--handlers", "my_handlers", "--reload")
    started = terminal.type(*up, cwd=tmp_path)
    assert started.returncode == 0, started.stdout + started.stderr
    assert "first" in greet()

    module.write_text("this is not Python")
    supervisor = terminal.home.logs / "supervisor.log"
    wait_until(lambda: "keeps its handlers" in supervisor.read_text(), what="the refusal")
    assert "first" in greet()
    write("second version")
    wait_until(lambda: loaded() == 2, what="the worker to load its handlers again")
    assert "second version" in greet()
    assert "service_failed" not in supervisor.read_text()

    terminal.type("down")
    again = terminal.type("up", "--detach", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "second version" in greet()


def test_handlers_that_cannot_be_imported_fail_the_start_at_once(terminal: Terminal) -> None:
    terminal.env["OVERNIGHT_HANDLERS"] = "no_such_module"

    refused = terminal.type("up")

    assert refused.returncode == 1
    assert refused.stderr == (
        "Cannot start: OVERNIGHT_HANDLERS: cannot import 'no_such_module': ModuleNotFoundError:"
        " No module named 'no_such_module'\n"
    )
    assert "Starting" not in refused.stdout
