"""What a command gets, what its exit means, and how its events and streams are read."""

import json
import os
import threading
from typing import Any

import pytest

from overnight.handlers.control_exceptions import Fail, Retry, Stopped
from overnight.handlers.outcome import storable
from overnight.models.validation import Feedback
from overnight.testing import MemoryContext
from overnight_server.domain.execution import EffectiveLimits, Execution
from overnight_worker.program_in_sandbox import sandbox_limits
from overnight_worker.runners.command import own_environment, prompt_of
from overnight_worker.runners.command_events import CommandEvents, lines_of
from overnight_worker.runners.command_output import TAIL_BYTES, CommandOutput
from overnight_worker.runners.exit_codes import CommandFailed, check_end
from overnight_worker.sandbox import SandboxEnd


class RecordedContext:
    """Keeps what a command reports."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def progress(self, fraction: float | None, message: str | None, **data: object) -> None:
        self.calls.append(("progress", (fraction, message, data)))

    def cost_soon(self, usd: float, *, input_tokens: int, output_tokens: int) -> None:
        self.calls.append(("cost", (usd, input_tokens, output_tokens)))

    def artifact(self, name: str, content: str | None = None, *, json: object = None) -> None:
        self.calls.append(("artifact", (name, content if json is None else json)))

    def log(self, message: str, **fields: object) -> None:
        self.calls.append(("log", (message, fields)))

    def write_log(self, stream: str, data: bytes) -> None:
        self.calls.append((stream, data))


def read(reader: Any, *pieces: bytes) -> None:
    """Let a reader read what is written to a pipe in pieces."""
    source, target = os.pipe()
    thread = threading.Thread(target=reader.read, args=(source,))
    thread.start()
    for piece in pieces:
        os.write(target, piece)
    os.close(target)
    thread.join()
    os.close(source)


def events_of(*pieces: bytes) -> tuple[CommandEvents, RecordedContext]:
    context = RecordedContext()
    events = CommandEvents(context)  # type: ignore[arg-type]
    read(events, *pieces)
    return events, context


def test_events_reach_the_context() -> None:
    events, context = events_of(
        b'{"event": "progress", "fraction": 0.5, "message": "half", "page": 3}\n'
        b'{"event": "cost", "usd": 0.5, "input_tokens": 9}\n',
        b'{"event": "artifact", "name": "a", "text": "t"}\n{"event": "arti',
        b'fact", "name": "b", "json": [1]}\n{"event": "log", "message": "hi", "n": 1}\n',
        b'{"event": "result", "output": 1}\n{"event": "result", "output": {"a": 2}}',
    )

    assert context.calls == [
        ("progress", (0.5, "half", {"page": 3})),
        ("cost", (0.5, 9, 0)),
        ("artifact", ("a", "t")),
        ("artifact", ("b", [1])),
        ("log", ("hi", {"n": 1})),
    ]
    assert (events.has_result, events.result) == (True, {"a": 2})


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[1]",
        b'{"event": "dance"}',
        b'{"event": []}',
        b'{"event": "cost"}',
        b'{"event": "cost", "usd": "much"}',
        b'{"event": "artifact", "name": "a"}',
        b'{"event": "resu',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_a_line_that_is_no_event_is_logged(line: bytes) -> None:
    events, context = events_of(line + b'\n{"event": "result", "output": 1}\n')

    assert [kind for kind, _ in context.calls] == ["log"]
    assert events.result == 1


class StoppedContext(RecordedContext):
    """The context of a run that was cancelled."""

    def artifact(self, *_: Any, **__: Any) -> None:
        raise Stopped("cancelled")


def test_the_events_of_a_run_that_is_stopped_are_read_to_their_end() -> None:
    context = StoppedContext()
    events = CommandEvents(context)  # type: ignore[arg-type]

    read(
        events,
        b'{"event": "artifact", "name": "a", "text": "t"}\n{"event": "result", "output": 1}\n',
    )

    assert context.calls == [
        ("log", ("an event came too late", {"error": "the run is stopped: cancelled"}))
    ]
    assert events.result == 1


def test_a_line_that_is_too_long_is_left_out() -> None:
    source, target = os.pipe()
    os.write(target, b"ok\n" + b"x" * 30 + b"\nfine\n" + b"y" * 25)
    os.close(target)
    refused: list[int] = []

    lines = list(lines_of(source, on_too_long=lambda: refused.append(1), longest=20))

    os.close(source)
    assert lines == [b"ok", b"fine"]
    assert len(refused) == 2


def test_without_a_result_event_there_is_no_result() -> None:
    events, _ = events_of(b"")

    assert (events.has_result, events.result) == (False, None)


def test_a_stream_is_logged_whole_and_its_end_is_kept() -> None:
    context = RecordedContext()
    output = CommandOutput("stdout", context)  # type: ignore[arg-type]

    read(output, b"one\ntw", b"o\n\xff\n", b"last")

    assert {stream for stream, _ in context.calls} == {"stdout"}
    assert b"".join(data for _, data in context.calls) == b"one\ntwo\n\xff\nlast"
    assert output.text == "one\ntwo\n\ufffd\nlast"
    assert output.last_line == "last"


def test_what_postgres_cannot_store_of_a_stream_is_replaced() -> None:
    """A command that printed a NUL has succeeded all the same."""
    output = CommandOutput("stdout", RecordedContext())  # type: ignore[arg-type]

    read(output, b"a\0b\n\xed\xa0\x80 end\0")

    assert storable({"text": output.text, "summary": output.last_line})
    assert output.text.startswith("a\ufffdb\n")


def test_only_the_end_of_a_long_stream_is_kept() -> None:
    output = CommandOutput("stdout", RecordedContext())  # type: ignore[arg-type]

    read(output, *[b"x" * 50_000 + b"\n"] * 40, b"end\n")

    assert len(output.text) <= TAIL_BYTES
    assert output.last_line == "end"


@pytest.mark.parametrize(
    ("end", "expected", "error_class"),
    [
        (SandboxEnd("exit", 3), CommandFailed, "error"),
        (SandboxEnd("exit", 64), Fail, "bad_command"),
        (SandboxEnd("exit", 65), Fail, "bad_command"),
        (SandboxEnd("exit", 66), Fail, "bad_command"),
        (SandboxEnd("exit", 69), CommandFailed, "rate_limit"),
        (SandboxEnd("exit", 75), Retry, "error"),
        (SandboxEnd("exit", 77), Fail, "auth_failure"),
        (SandboxEnd("exit", 126), Fail, "bad_command"),
        (SandboxEnd("exit", 127), Fail, "bad_command"),
        (SandboxEnd("signal", signal=11), CommandFailed, "crash"),
        (SandboxEnd("oom", detail="too much"), CommandFailed, "out_of_memory"),
        (SandboxEnd("workspace_full", detail="full"), CommandFailed, "error"),
        (SandboxEnd("failed", detail="no"), Retry, "no_sandbox"),
    ],
)
def test_the_end_of_a_command_has_a_class(
    end: SandboxEnd, expected: type[Exception], error_class: str
) -> None:
    with pytest.raises(expected) as raised:
        check_end(end, stop_reason=None, last_line="", has_result=False)

    assert getattr(raised.value, "error_class", None) == error_class


def test_the_last_line_of_stderr_is_in_the_message() -> None:
    with pytest.raises(CommandFailed, match="exit code 2: no such file"):
        check_end(
            SandboxEnd("exit", 2), stop_reason=None, last_line="no such file", has_result=False
        )
    with pytest.raises(CommandFailed, match="ended by SIGKILL"):
        check_end(SandboxEnd("signal", signal=9), stop_reason=None, last_line="", has_result=False)
    with pytest.raises(CommandFailed, match="more processor time than twice its time limit"):
        check_end(SandboxEnd("signal", signal=24), stop_reason=None, last_line="", has_result=False)


def test_a_file_may_fill_the_workspace_and_a_process_use_two_processors() -> None:
    limits = sandbox_limits(EffectiveLimits(memory_mb=512, workspace_mb=5000), 60)

    assert (limits.memory_mb, limits.workspace_mb, limits.file_mb) == (512, 5000, 5000)
    assert limits.cpu_seconds == 120


def test_a_command_that_was_asked_to_stop_has_succeeded_only_with_a_result() -> None:
    check_end(SandboxEnd("exit", 0), stop_reason=None, last_line="", has_result=False)
    check_end(SandboxEnd("stopped", 0), stop_reason="shutdown", last_line="", has_result=True)
    for code, has_result in ((143, True), (0, False)):
        with pytest.raises(Stopped, match="shutdown"):
            check_end(
                SandboxEnd("stopped", code),
                stop_reason="shutdown",
                last_line="",
                has_result=has_result,
            )


def told(feedback: Feedback | None) -> MemoryContext:
    return MemoryContext(prompt="Fix it.", attempt=2, feedback=feedback)


REJECTION = Feedback(attempt=1, validator="regex", message="regex: no", output='say "ok"\nnow')


def test_a_command_finds_feedback_in_a_variable_and_its_prompt_unchanged() -> None:
    context: Any = told(REJECTION)

    variables = own_environment(context)

    assert json.loads(variables["OVERNIGHT_FEEDBACK"]) == {
        "attempt": 1,
        "validator": "regex",
        "message": "regex: no",
        "output": 'say "ok"\nnow',
    }
    assert prompt_of(Execution(argv=("true",)), context) == "Fix it."
    without: Any = told(None)
    assert own_environment(without) == {"OVERNIGHT_TASK_ID": context.task_id}


def test_the_prompt_of_an_agent_ends_with_its_feedback_as_data() -> None:
    context: Any = told(REJECTION)
    agent = Execution(argv=("true",), agent="claude")

    assert prompt_of(agent, context) == (
        "Fix it.\n\nThe output of an earlier attempt was rejected: regex: no\n"
        'That output was, as a JSON text: "say \\"ok\\"\\nnow"\n'
    )
    without: Any = told(None)
    assert prompt_of(agent, without) == "Fix it."
