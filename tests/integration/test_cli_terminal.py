"""The user's commands as processes of their own: interrupted, piped, and on a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight_server.cli.terminal.failures import Code
from tests.support.stub_service import ALPHA, BETA, KEY, Service, stub_service, task
from tests.support.wait import wait_until


@pytest.fixture
def service() -> Iterator[Service]:
    with stub_service() as served:
        yield served


@pytest.fixture(autouse=True)
def connected(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that points to this server only."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERNIGHT_URL", service.url)
    monkeypatch.setenv("OVERNIGHT_API_KEY", KEY)


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Run a command as its own process, as a shell would: able to hear Ctrl-C.

    A test run in the background is deaf to it, and its children would inherit that.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "overnight_server.cli.main", *arguments],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        **options,
    )


def test_an_interrupted_wait_exits_130_and_says_that_the_task_continues(service: Service) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(state="running")))
    waiting = start("wait", ALPHA, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: service.asked, what="the first look at the task")

    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=30)

    assert waiting.returncode == Code.INTERRUPTED
    assert out == b""
    assert b"still in progress" in err
    assert b"Traceback" not in err


def test_an_interrupted_wait_for_a_batch_lists_unfinished_graphs(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task(ALPHA)), (201, task(BETA)))
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(ALPHA, state="completed")))
    service.on(f"GET /api/v1/tasks/{BETA}", (200, task(BETA, state="running")))
    Path("night.yaml").write_text("- title: a\n- title: b\n", encoding="utf-8")
    waiting = start("batch", "night.yaml", "--wait", stderr=subprocess.PIPE)
    wait_until(
        lambda: any(path.endswith(BETA) for _, path, _ in service.asked),
        what="the first look at the second task",
    )

    waiting.send_signal(signal.SIGINT)
    stderr = waiting.communicate(timeout=30)[1].decode()

    assert waiting.returncode == Code.INTERRUPTED
    assert stderr == (
        f"{BETA} is still in progress; continue waiting with `overnight wait {BETA}`.\n"
    )


def test_a_closed_pipe_causes_no_error_message(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, [task() for _ in range(50)]))
    reading, writing = os.pipe()
    listing = start("list", stdout=writing, stderr=subprocess.PIPE)
    os.close(reading)
    os.close(writing)

    _, err = listing.communicate(timeout=30)

    assert err == b""


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Run a command with a terminal for all its streams and return its output."""
    ours, theirs = pty.openpty()
    drawing = start(
        *arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **environment},
    )
    os.close(theirs)
    drawn = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert drawing.wait(timeout=30) == 0
    return drawn.decode()


def without_escapes(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65_536)
    except OSError:  # the other side is closed
        return b""


def test_ctrl_c_at_a_confirmation_changes_nothing(service: Service) -> None:
    would = {"action": "cancel", "total": 1, "applies": 1, "sample": [ALPHA]}
    service.on("POST /api/v1/tasks/bulk", (200, would))
    ours, theirs = pty.openpty()
    asking = start(
        "bulk", "cancel", "--everything", stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL
    )
    os.close(theirs)
    drawn = b""
    while b"Cancel 1?" not in drawn:
        drawn += _read(ours)

    asking.send_signal(signal.SIGINT)
    drawn = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)

    assert asking.wait(timeout=30) == Code.INTERRUPTED
    assert b"declined" not in drawn


def test_a_terminal_gets_colours_unless_no_color_is_set(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, [task(state="completed")]))

    coloured, plain = on_a_terminal("list"), on_a_terminal("list", NO_COLOR="1")

    assert "─" in coloured
    assert "\x1b[32mcompleted" in coloured
    assert "\x1b[32m" not in plain
    assert ALPHA[-8:] in plain


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_a_list_on_a_terminal_has_one_line_per_task(service: Service, columns: str) -> None:
    dead = task(
        state="dead_lettered",
        title="fetch the page of the client",
        started_at="2026-11-16T03:00:05Z",
        completed_at="2026-11-16T03:01:09Z",
        error="ValueError: page 7 does not exist: the server of the client answered 404",
    )
    service.on("GET /api/v1/tasks", (200, [dead, dead]))

    drawn = without_escapes(on_a_terminal("list", COLUMNS=columns))

    header, _rule, *rows = [line.rstrip() for line in drawn.splitlines() if line.strip()]
    assert len(rows) == 2
    assert all(len(line) <= int(columns) for line in rows)
    shown = {"40": "TITLE", "80": "ENDED", "120": "DURATION"}[columns]
    assert shown in header.split()


def test_a_long_field_is_wrapped_beside_its_name(service: Service) -> None:
    words = "a title of many words " * 6
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(title=words.strip())))

    drawn = on_a_terminal("get", ALPHA, COLUMNS="60")

    lines = drawn.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("title"))
    assert lines[first + 1].startswith("          ")
    assert all(len(line) <= 60 for line in lines)


def test_a_terminal_shows_the_states_of_a_waited_task(service: Service) -> None:
    """Once a second, so not every state has to be seen."""
    states = ("ready", "claimed", "running", "running", "completed")
    service.on(f"GET /api/v1/tasks/{ALPHA}", *((200, task(state=state)) for state in states))

    drawn = without_escapes(on_a_terminal("wait", ALPHA))

    seen = list(dict.fromkeys(re.findall(rf"{ALPHA} (\w+)", drawn)))
    assert (seen[0], seen[-1]) == ("ready", "completed")
    assert "running" in seen


def test_the_display_of_a_wait_never_counts_an_attempt_after_the_end(service: Service) -> None:
    running, ended = task(state="running"), task(state="completed", attempts=1)
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, running), (200, running), (200, ended))

    drawn = on_a_terminal("wait", ALPHA)

    assert f"{ALPHA} running, attempt 1 of 3" in drawn
    assert f"{ALPHA} completed, attempt 1 of 3" in drawn
    assert "attempt 2" not in drawn


def test_the_display_of_a_wait_shows_the_progress_of_the_run(service: Service) -> None:
    running = task(state="running", progress={"fraction": 0.4, "message": "page [4]"})
    ended = task(state="completed", attempts=1, progress={"fraction": 0.4})
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, running), (200, running), (200, ended))

    drawn = on_a_terminal("wait", ALPHA)

    assert "running, attempt 1 of 3, 40 %, page [4]" in drawn
    assert "completed, attempt 1 of 3, 40 %" not in drawn


@pytest.mark.parametrize("arguments", [("add", "caf\udce9"), ("user", "add", "caf\udce9")])
def test_an_argument_that_is_not_utf8_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    process = start(*arguments, stderr=subprocess.PIPE)
    stderr = process.communicate(timeout=60)[1].decode()

    assert (process.returncode, stderr.count("\n")) == (Code.USAGE, 2)
    assert "'caf\\udce9' is not valid UTF-8" in stderr
