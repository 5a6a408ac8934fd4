"""What the command runner does when the worker itself has no room for a command."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overnight_server.domain.execution import Execution
from overnight_server.process_tree import descendants
from overnight_worker.input_files import write_input_files
from overnight_worker.run_context import RunContext
from overnight_worker.run_directory import workspace
from overnight_worker.runners.command import CommandRunner
from overnight_worker.runners.runner import PreparedRun
from overnight_worker.sandbox import SandboxKind
from tests.support.sample_run import RUN

SECONDS = 60
NO_THREAD = "can't start new thread"


class Connection:
    """The connection of a run that is recorded nowhere; keeps how the run ended."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.ended = threading.Event()
        self.output: object = None
        self.raised: BaseException | None = None

    def note_id(self, external_id: str, *, sandbox: str) -> None:
        """Record nothing."""

    def end(self, output: object = None, raised: BaseException | None = None) -> None:
        """Keep how the run ended."""
        self.output, self.raised = output, raised
        self.ended.set()


@pytest.fixture
def prepared() -> Iterator[PreparedRun]:
    execution = Execution(argv=("sleep", "300")).stored()
    run = replace(RUN, execution=execution)
    context = RunContext(run, deadline=time.monotonic() + SECONDS)
    with workspace() as directory:
        files = write_input_files(directory, context)
        yield PreparedRun(run, context, directory, {}, 1.0, None, files)


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let the next threads start, and refuse those after them as the kernel does at a limit."""
    start = threading.Thread.start
    left = iter(range(after))

    def start_or_refuse(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError(NO_THREAD)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_a_command_that_nobody_can_watch_is_ended(
    prepared: PreparedRun, sandbox_kind: SandboxKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = Connection(prepared.context)
    before, files_before = descendants(os.getpid()), open_files()
    refuse_threads(monkeypatch, after=0)

    with pytest.raises(RuntimeError, match=NO_THREAD):
        CommandRunner(sandbox_kind).spawn(prepared, connection)

    assert descendants(os.getpid()) == before
    assert open_files() == files_before


@pytest.mark.parametrize("readers", [0, 1])
def test_a_command_whose_output_nobody_can_read_is_ended_and_the_run_told(
    prepared: PreparedRun, sandbox_kind: SandboxKind, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    connection: Any = Connection(prepared.context)
    before, files_before = descendants(os.getpid()), open_files()
    refuse_threads(monkeypatch, after=1 + readers)

    runner = CommandRunner(sandbox_kind)
    external_id = runner.spawn(prepared, connection)

    assert connection.ended.wait(SECONDS), "the run waits for ever"
    assert str(connection.raised) == NO_THREAD
    runner.terminate(external_id, 0.0)
    assert descendants(os.getpid()) == before
    assert open_files() == files_before
