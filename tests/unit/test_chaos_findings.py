"""A chaos run reports log lines and exits that no injected fault explains, and no others."""

import signal

import pytest

from tests.chaos.leaks import exits
from tests.chaos.logs import log_errors
from tests.chaos.report import Report
from tests.chaos.stack import Exit

AT = "2026-11-17T02:34:05.609Z"
UNCAUGHT = """\
Traceback (most recent call last):
  File "app/overnight_server/dispatch/loop.py", line 61, in dispatch
    done = fill(db)
KeyError: 'pool'
"""
IN_A_LINE = (
    f'{AT} CRITICAL logger=celery.worker msg="Unrecoverable error" exception="Traceback (most'
    r" recent call last):\n  File \"redis.py\", line 1, in read\nredis.exceptions.ConnectionError:"
    r" Connection refused\n\nDuring handling of the above exception, another exception occurred:"
    r"\n\nTraceback (most recent call last):\n  File \"app/x.py\", line 2, in x\nKeyError: 'pool'"
    '"'
)
TIMED_OUT = (
    f'{AT} CRITICAL logger=celery.worker.request msg="no ack" exception="Traceback (most recent'
    r" call last):\n  File \"redis.py\", line 1\nredis.exceptions.TimeoutError: Timeout reading"
    ' from socket"'
)


@pytest.mark.parametrize(
    "log",
    [
        UNCAUGHT,
        IN_A_LINE,
        f'{AT} ERROR queue=sweep_failed sweep=reap error="division by zero"',
        f"{AT} ERROR queue=request_failed method=POST path=/v1/tasks error=boom",
        f"{AT} ERROR logger=multiprocessing msg=\"Process 'F-1' pid:7 exited with 'exitcode 3'\"",
    ],
)
def test_an_error_without_a_matching_fault_is_unexplained(log: str) -> None:
    [error] = log_errors(log)

    assert not error.is_explained


@pytest.mark.parametrize(
    "log",
    [
        f'{AT} ERROR queue=sweep_failed sweep=reap error="server closed the connection"',
        TIMED_OUT,
        f"{AT} ERROR msg=\"Process 'F-1' pid:7 exited with 'signal 9 (SIGKILL)'\"",
    ],
)
def test_a_lost_server_or_killed_child_explains_an_error(log: str) -> None:
    [error] = log_errors(log)

    assert error.is_explained


def test_a_line_without_an_error_is_ignored() -> None:
    assert not list(log_errors(f"{AT} INFO queue=task_settled error=\n{AT} WARN queue=run_lost\n"))


def test_an_exit_without_a_signal_is_reported() -> None:
    ends = [
        Exit("worker", 1, None),
        Exit("api", 0, None),
        Exit("beat", 1, signal.SIGTERM),
        Exit("beat", 0, signal.SIGTERM),
        Exit("worker-2", 137, signal.SIGKILL),
    ]

    assert exits(ends) == {
        "processes that ended without a signal": ["worker: 1", "api: 0", "beat: 1 after SIGTERM"]
    }


def test_a_count_below_its_minimum_fails_the_run() -> None:
    report = Report(1, 30, work={"graphs": 2}, faults={"kill": 9})

    report.require({"graphs": 2, "kill": 10, "flood": 1})

    assert report.findings == {"counts below the minimum": ["kill: 9, not 10", "flood: 0, not 1"]}
