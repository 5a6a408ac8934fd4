"""Every runner meets every end: the same table for handlers, commands and HTTP agents.

One worker, one agent driver and one HTTP agent serve all cases; a case that ends one of them starts
the next one. Each run stores its key as an artifact, so that the artifact shows which run won.
"""

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.domain.retry import RetryRules, Strategy
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.promote import promote
from overnight_server.maintenance.reap import reap
from tests.support.agent_driver import FINAL, SHORT, DrivenFleet
from tests.support.live_api import serve
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    processes_with_argument,
    running_worker,
    shared_harness,
)

SOON = 30.0
NUMBERS = itertools.count(800_000_000 + os.getpid() * 100)
NOW = RetryRules(strategy=Strategy.IMMEDIATE)
# The first argument is the key of the run, the second one marks its processes.
COMMAND = """
echo '{"event": "artifact", "name": "key", "text": "'$0'"}' >&3
case THEN:$0 in
    fail:*) exit 3;;
    wait:*:1) trap '' TERM; setsid sleep $1 & sleep $1 & wait; wait;;
esac
echo '{"event": "result", "output": {"key": "'$0'"}}' >&3
"""


@dataclass(frozen=True)
class Expected:
    """How a task ends, how each of its runs ended, and which run's artifact is seen."""

    state: str
    outcomes: Sequence[str]
    attempts: int
    seen_run: int
    error_class: str | None = None


ENDS = {
    "success": Expected("completed", ["completed"], 1, 1),
    "failure": Expected("dead_lettered", ["failed"], 1, 1, "error"),
    "timeout": Expected("dead_lettered", ["timeout"], 1, 1, "timeout"),
    "cancel": Expected("cancelled", ["cancelled"], 1, 1, "cancelled"),
    "lost lease": Expected("completed", ["worker_lost", "completed"], 2, 2),
    "shutdown": Expected("completed", ["interrupted", "completed"], 1, 2),
    "kill -9": Expected("completed", ["worker_lost", "completed"], 2, 2),
}
# The agent is there, so its run is taken for one that crashed.
LOST_AT_AGENT = Expected("completed", ["crash", "completed"], 2, 2)
# The run goes on at its agent while no driver runs, and the next driver records its result.
OUTLIVES_DRIVER = Expected("completed", ["completed"], 1, 1)
EXPECTED = {
    **{(runner, end): ENDS[end] for runner in ("python", "command", "http") for end in ENDS},
    ("http", "lost lease"): LOST_AT_AGENT,
    ("http", "shutdown"): OUTLIVES_DRIVER,
    ("http", "kill -9"): OUTLIVES_DRIVER,
}
# What the first run of a task does, for each end.
BEHAVIOUR = {"success": "succeed", "failure": "fail"}
# These ends leave the task to another run.
REPEATED = ("lost lease", "shutdown", "kill -9")


class Trial(Protocol):
    """One runner: how its tasks are submitted, and the process that serves them."""

    def submit(self, then: str, number: int, **fields: Any) -> TaskId:
        """Submit a task whose first run succeeds, fails or waits."""

    def is_at_work(self, task_id: TaskId, number: int) -> bool:
        """Return whether the first run of a task waits."""

    def end_process(self, number: signal.Signals) -> None:
        """Send a signal to the process that serves the runner, and wait until it has ended."""

    def start_process(self) -> None:
        """Start the next process that serves the runner."""

    def sweep(self) -> None:
        """Bring ready tasks to the runner, as the dispatcher does."""

    def left_running(self, number: int) -> list[object]:
        """Return what of the runs of a case still runs."""


@dataclass
class WorkerTrial:
    """A runner of a Celery worker."""

    harness: WorkerHarness
    runner: str
    workers: "Workers"

    def submit(self, then: str, number: int, **fields: Any) -> TaskId:
        if self.runner == "python":
            work: dict[str, Any] = {"type": "trial", "payload": {"then": then, "number": number}}
        else:
            script = COMMAND.replace("THEN", then)
            argv = ["sh", "-c", script, "{idempotency_key}", str(number)]
            asked = {"agent": None, "argv": argv, "env": {}, "network": None}
            work = {
                "type": "command",
                "execution": {**asked, "limits": {"grace_seconds": 1}},
                "required_capabilities": ("runner:command",),
            }
        return self.harness.deployment.task(self.harness.user, retry=NOW, **work, **fields)

    def is_at_work(self, task_id: TaskId, number: int) -> bool:  # noqa: ARG002 - as the protocol
        return bool(processes_with_argument(number))

    def end_process(self, number: signal.Signals) -> None:
        self.workers.current.signal(number)
        self.workers.current.ended(within=SOON)

    def start_process(self) -> None:
        self.workers.start()

    def sweep(self) -> None:
        claims = self.harness.deployment.claim().claims
        if claims:
            self.harness.publish(*claims)

    def left_running(self, number: int) -> list[object]:
        return list(processes_with_argument(number))


@dataclass
class Workers:
    """The worker that runs now; the ones before it have ended."""

    harness: WorkerHarness
    stack: ExitStack
    started: list[Worker] = field(default_factory=list)

    @property
    def current(self) -> Worker:
        """The worker that was started last."""
        return self.started[-1]

    def start(self) -> None:
        """Start a worker."""
        self.started.append(self.stack.enter_context(running_worker(self.harness.settings)))


@dataclass
class HttpTrial:
    """HTTP agents, served by a driver."""

    fleet: DrivenFleet
    agent: ScriptedAgent
    api: str
    driver: "subprocess.Popen[bytes] | None" = None

    def submit(self, then: str, number: int, **fields: Any) -> TaskId:  # noqa: ARG002
        # A run that is continued by the next driver must end by itself, all others are stopped.
        seconds = {"succeed": 0.1, "fail": "no number", "wait": 60, "outlive": 2}[then]
        payload = {"seconds": seconds, "api": self.api, "later": {"seconds": 0.1}}
        return self.fleet.task(payload=payload, **fields)

    def is_at_work(self, task_id: TaskId, number: int) -> bool:  # noqa: ARG002
        return f"{show_task(task_id)}:1" in self.agent.journal("stored")

    def end_process(self, number: signal.Signals) -> None:
        assert self.driver is not None
        self.driver.send_signal(number)
        self.driver.wait(SOON)

    def start_process(self) -> None:
        self.driver = self.fleet.drive()

    def sweep(self) -> None:
        """The driver claims for its agents itself."""

    def left_running(self, number: int) -> list[object]:  # noqa: ARG002
        ended = self.agent.journal("end")
        return [key for key in self.agent.starts() if key not in ended]


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    changes = {**SHORT, "lease_seconds": 8, "handlers": "tests.support.trial_handler"}
    with shared_harness(postgres, template, redis, **changes) as harness:
        yield harness


@pytest.fixture(scope="module")
def trials(
    harness: WorkerHarness, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Trial]]:
    """The three runners, and the processes that serve them."""
    folder: Path = tmp_path_factory.mktemp("agents")
    fleet = DrivenFleet(harness.deployment, harness.settings, folder, harness.user)
    with ExitStack() as stack:
        stack.callback(fleet.stop)
        # Shown only if a test fails.
        stack.callback(lambda: print(fleet.log_text()))  # noqa: T201
        api = stack.enter_context(serve(harness.deployment, str(harness.settings.database_url)))
        workers = Workers(harness, stack)
        # Longer than a driver needs to start: no run is lost unless a case takes it away.
        agent = fleet.agent(stale_after=timedelta(minutes=5))
        http = HttpTrial(fleet, agent, api.url)
        http.start_process()
        workers.start()
        yield {
            "python": WorkerTrial(harness, "python", workers),
            "command": WorkerTrial(harness, "command", workers),
            "http": http,
        }
        assert workers.current.process.poll() is None


@pytest.fixture
def number() -> Iterator[int]:
    """A number that marks the processes of one case."""
    number = next(NUMBERS)
    yield number
    # Of a case that failed.
    for process in processes_with_argument(number):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def take_away(harness: WorkerHarness, task_id: TaskId) -> None:
    """Let the lease of a run expire, and the reaper find it; a heartbeat may come between."""

    def is_taken_away() -> bool:
        harness.deployment.run("UPDATE tasks SET expires_at = clock() WHERE id = :id", id=task_id)
        reap(harness.deployment.dispatcher)
        return harness.deployment.state(task_id) != "running"

    wait_until(is_taken_away, what="the reaper to take the task away")


def bring_about(harness: WorkerHarness, trial: Trial, task_id: TaskId, end: str) -> None:
    """Do from outside what ends the first run; the other ends come by themselves."""
    match end:
        case "cancel":
            cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
        case "lost lease":
            take_away(harness, task_id)
        case "shutdown":
            trial.end_process(signal.SIGTERM)
            trial.start_process()
        case "kill -9":
            trial.end_process(signal.SIGKILL)
            if isinstance(trial, WorkerTrial):
                take_away(harness, task_id)
            trial.start_process()


def ended_row(harness: WorkerHarness, trial: Trial, task_id: TaskId) -> dict[str, Any]:
    """Sweep until a task has ended; return its row."""

    def has_ended() -> bool:
        promote(harness.deployment.dispatcher)
        trial.sweep()
        return harness.deployment.state(task_id) in FINAL

    wait_until(has_ended, what=f"{show_task(task_id)} to end", timeout=SOON)
    return dict(harness.deployment.row(task_id))


def check_bill(harness: WorkerHarness, task_id: TaskId) -> None:
    """Each run is charged for its work up to its end; an interrupted one is charged nothing."""
    rows = harness.deployment.rows(
        "SELECT a.epoch, a.outcome, extract(epoch FROM a.ended_at - a.started_at) AS lasted,"
        " coalesce(sum(l.seconds), 0) AS charged FROM attempts a"
        " LEFT JOIN usage_ledger l ON l.task_id = a.task_id AND l.epoch = a.epoch"
        " WHERE a.task_id = :id GROUP BY a.epoch, a.outcome, a.ended_at, a.started_at",
        id=task_id,
    )
    for row in rows:
        if row["outcome"] == "interrupted":
            assert row["charged"] == 0, row
        else:
            # A lost run is charged up to its last heartbeat; the ledger counts milliseconds.
            assert 0 <= row["charged"] <= row["lasted"] + Decimal("0.1"), row
            assert row["charged"] > 0 or row["outcome"] in {"worker_lost", "crash"}, row


@pytest.mark.parametrize(("runner", "end"), EXPECTED, ids=lambda value: value.replace(" ", "_"))
def test_every_runner_meets_every_end(
    harness: WorkerHarness, trials: dict[str, Trial], number: int, runner: str, end: str
) -> None:
    trial, expected = trials[runner], EXPECTED[runner, end]
    then = "outlive" if expected is OUTLIVES_DRIVER else BEHAVIOUR.get(end, "wait")
    limits = {"timeout_seconds": 3} if end == "timeout" else {}
    attempts = 3 if end in REPEATED else 1

    task_id = trial.submit(then, number, max_attempts=attempts, **limits)
    trial.sweep()
    if end not in {"success", "failure", "timeout"}:
        wait_until(lambda: trial.is_at_work(task_id, number), timeout=SOON, what="the run to work")
    bring_about(harness, trial, task_id, end)
    row = ended_row(harness, trial, task_id)

    assert (row["state"], harness.outcomes(task_id), row["attempts"], row["failure_reason"]) == (
        expected.state,
        expected.outcomes,
        expected.attempts,
        expected.error_class,
    )
    wait_until(lambda: not trial.left_running(number), timeout=SOON, what="the runs to be gone")
    seen = harness.deployment.rows(
        "SELECT epoch, convert_from(content, 'UTF8') AS key FROM artifacts WHERE task_id = :id",
        id=task_id,
    )
    shown = show_task(task_id)
    assert [(one["epoch"], one["key"]) for one in seen] == [
        (expected.seen_run, f"{shown}:{expected.seen_run}")
    ]
    check_bill(harness, task_id)
