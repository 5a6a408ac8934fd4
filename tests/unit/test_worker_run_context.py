"""What a run logs reaches the log of its worker, in which it cannot pass for anything else."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from overnight_server import telemetry
from overnight_server.domain.ids import show_task
from overnight_worker.run_context import MAX_WORKER_LOG, RunContext
from overnight_worker.runners.command_events import CommandEvents
from tests.support.sample_run import RUN

TEN = "2025-01-17T10:00:00Z"
TASK = show_task(RUN.claim.task_id)


@pytest.fixture
def log_lines(request: pytest.FixtureRequest) -> Iterator[Callable[[], list[str]]]:
    """Return what is in the worker's log, in the format that a test names."""
    root = logging.getLogger()
    before, stream = root.level, io.StringIO()
    log_format = getattr(request, "param", "logfmt")
    telemetry.configure(log_format, "info", "worker", stream=stream, stamp=lambda: TEN)
    yield lambda: stream.getvalue().splitlines()
    root.setLevel(before)
    telemetry._format.choose("logfmt", "", telemetry.utc_stamp)


@pytest.fixture
def context() -> RunContext:
    return RunContext(RUN, deadline=1e12)


FORGED: dict[str, Any] = {
    "queue": "dispatch_success",
    "queue_id": "task_of_another_user",
    "epoch": 9,
    "logger": "overnight",
    "level": "ERROR",
    "role": "api",
    "ts": "1999-01-01T00:00:00Z",
    "exc_info": True,
    "stack_info": True,
}


@pytest.mark.parametrize("log_lines", ["json"], indirect=True)
def test_a_field_of_a_run_takes_no_place_of_a_field_of_the_worker(
    context: RunContext, log_lines: Callable[[], list[str]]
) -> None:
    context.log("hello", **FORGED, event="x", pages=3)

    [line] = map(json.loads, log_lines())
    assert {name: line.pop(name) for name in ("ts", "level", "role", "logger", "msg")} == {
        "ts": TEN,
        "level": "INFO",
        "role": "worker",
        "logger": "overnight.handler",
        "msg": "hello",
    }
    assert (line.pop("queue_id"), line.pop("epoch"), line.pop("pages")) == (TASK, 1, 3)
    assert line == {f"{name}_": value for name, value in FORGED.items()} | {"event_": "x"}


def test_a_name_of_a_field_begins_no_line_and_no_field(
    context: RunContext, log_lines: Callable[[], list[str]]
) -> None:
    context.log("hello", **{"a\n2025 INFO queue=settled queue_id": 1, "": 2, "x" * 5000: 3})

    [line] = log_lines()
    assert " queue=" not in line
    assert len(line) < 500


def test_a_run_fills_a_bounded_part_of_the_log_of_its_worker(
    context: RunContext, log_lines: Callable[[], list[str]]
) -> None:
    for _ in range(100):
        context.log("x" * 10_000)
    context.log("short")

    lines = log_lines()
    assert sum(map(len, lines)) < 1.1 * MAX_WORKER_LOG
    assert "only in its own log from here on" in lines[-1]
    assert TASK in lines[-1]


def test_an_event_that_is_ignored_is_shown_in_part(
    context: RunContext, log_lines: Callable[[], list[str]]
) -> None:
    CommandEvents(context)._read_line(json.dumps({"event": "x" * 100_000}).encode())

    [line] = log_lines()
    assert "an event was ignored" in line
    assert len(line) < 1000


def test_costs_of_a_command_wait_for_each_other_until_one_uses_up_the_ceiling() -> None:
    sent: list[str] = []
    context = RunContext(
        replace(RUN, ceiling_usd=1.0),
        deadline=1e12,
        send_soon=lambda: sent.append("soon"),
        send_cost=lambda: sent.append("now"),
    )
    events = CommandEvents(context)

    for _ in range(10):
        events._read_line(b'{"event": "cost", "usd": 0.125, "input_tokens": 3}')

    assert sent == [*["soon"] * 7, "now", *["soon"] * 2]
    assert (context.cost_usd, context.tokens, context.usd_left) == (1.25, {"input": 30}, 0.0)
