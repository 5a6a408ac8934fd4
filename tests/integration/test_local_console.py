"""The output of all processes reaches the terminal and one log file per process."""

import errno
import io
import os
import threading
from pathlib import Path

import pytest

from overnight_server.local import console as console_module
from overnight_server.local.console import Console, wants_colour
from overnight_server.local.logfile import LogFile, tail


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


class PausedTerminal(Terminal):
    """A terminal whose reader has gone for coffee."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = threading.Event()

    def write(self, text: str) -> int:
        self.resumed.wait(20)
        return super().write(text)


def test_each_process_has_its_prefix_and_colour_on_a_terminal() -> None:
    terminal = Terminal()
    console = Console(terminal, coloured=True)
    for name in ("api", "worker", "api"):
        console.service_line(name, "hello")
    console.close()

    first, second, third = terminal.getvalue().splitlines()

    assert first == third == "\x1b[36mapi         | \x1b[0mhello"
    assert second == "\x1b[33mworker      | \x1b[0mhello"


def test_output_into_a_pipe_is_plain() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.service_line("api", "hello")
    console.message("ready")
    console.close()

    assert stream.getvalue() == "api         | hello\nready\n"


@pytest.mark.parametrize(
    ("variable", "value"), [("NO_COLOR", "1"), ("NO_COLOR", ""), ("TERM", "dumb")]
)
def test_no_colour_is_printed_when_the_user_declines_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal())

    monkeypatch.setenv(variable, value)

    assert not wants_colour(Terminal())


def test_a_quiet_console_prints_messages_but_no_service_lines() -> None:
    stream = io.StringIO()
    console = Console(stream, quiet=True)
    console.service_line("api", "chatter")
    console.message("ready")
    console.close()

    assert stream.getvalue() == "ready\n"


def test_a_paused_terminal_does_not_block_the_supervisor() -> None:
    terminal = PausedTerminal()
    console = Console(terminal, coloured=False)

    for number in range(20_000):  # more than the backlog takes
        console.service_line("api", str(number))
    terminal.resumed.set()
    console.close()

    assert "api         | 0\n" in terminal.getvalue()


def test_a_closed_terminal_raises_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8", buffering=1) as broken:
        console = Console(broken)
        console.service_line("api", "hello")
        console.close()
        with pytest.raises(BrokenPipeError):
            os.write(writer, b"the terminal is closed")


def test_a_log_file_at_its_limit_is_rotated(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "api.log", limit=50)
    for number in range(10):
        log.append(f"line number {number}")
    log.close()

    kept = (tmp_path / "api.log.1").read_text() + (tmp_path / "api.log").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["api.log", "api.log.1"]
    assert kept.splitlines()[-2:] == ["line number 8", "line number 9"]
    assert all(path.stat().st_size < 100 for path in tmp_path.iterdir())


def test_a_log_file_is_appended_after_a_restart(tmp_path: Path) -> None:
    for line in ("yesterday", "today"):
        log = LogFile(tmp_path / "api.log")
        log.append(line)
        log.close()

    assert tail(tmp_path / "api.log", 5) == "yesterday\ntoday"
    assert tail(tmp_path / "api.log", 1) == "today"
    assert tail(tmp_path / "none.log", 1) == ""


def test_a_log_file_that_cannot_be_opened_loses_lines_and_says_so_later(tmp_path: Path) -> None:
    reasons: list[str | None] = []
    log = LogFile(tmp_path / "logs" / "api.log", report=reasons.append)
    log.append("lost")
    log.append("lost too")
    (tmp_path / "logs").mkdir()
    log.append("kept")
    log.close()

    assert reasons == ["No such file or directory", None]
    assert (tmp_path / "logs" / "api.log").read_text() == (
        "\n(2 writes to this file were lost)\nkept\n"
    )


class FullDisk(io.StringIO):
    """A file that keeps what was written and cannot store it at first."""

    refused = 0

    def flush(self) -> None:
        if self.getvalue() and self.refused < 3:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_repeats_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "NO_ROOM_PAUSE", 0)
    stream = FullDisk()
    console = Console(stream)
    console.message("one message")
    console.close()

    assert stream.refused == 3
    assert stream.getvalue() == "one message\n"
