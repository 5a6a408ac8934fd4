"""The record of the handlers: runs that started, ended, started twice or never ended."""

import json

from overnight_server.domain.ids import TaskId, new_task_id, show_task
from tests.chaos.handler_record import HandlerRecord
from tests.support.recorded_actions import RecordedAction

PID = 7


def test_an_ended_run_is_recorded_with_duration_and_result() -> None:
    task = new_task_id()

    truth = HandlerRecord.of([_line("start", task, at=2.0), _line("end", task, at=2.5, ok=True)])

    assert truth.recorded_actions() == [RecordedAction(task, 1, "suffix", seconds=0.5, ok=True)]


def test_a_killed_run_is_recorded_as_started() -> None:
    task = new_task_id()

    assert HandlerRecord.of([_line("start", task)]).recorded_actions() == [
        RecordedAction(task, 1, "suffix")
    ]


def test_a_run_that_started_twice_is_recorded_twice() -> None:
    task = new_task_id()

    truth = HandlerRecord.of(
        [_line("start", task), _line("start", task, pid=8), _line("end", task, pid=8, ok=True)]
    )

    assert [deed.epoch for deed in truth.recorded_actions()] == [1, 1]


def test_an_end_without_a_start_is_not_a_success() -> None:
    task = new_task_id()

    assert HandlerRecord.of([_line("end", task, ok=True)]).recorded_actions() == [
        RecordedAction(task, 1, "suffix")
    ]


def _line(what: str, task: TaskId, **more: object) -> str:
    key = f"{show_task(task)}:1"
    return json.dumps(
        {"what": what, "key": key, "pid": PID, "token_suffix": "suffix", "at": 0.0, **more}
    )
