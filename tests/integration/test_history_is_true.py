"""The history of a task agrees with what explain said at the time.

Random deployments are played with a clock that stands still between the steps. After each step the
explanation of every open task is noted; afterwards each task's history must name the same narrowest
reason for that instant (M2), and its segments must tile its life (M1).
"""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from overnight.errors import TaskAlreadyCompleted
from overnight.models.nights import TaskLife
from overnight_server.control.cancel import cancel
from overnight_server.control.pauses import EVERYTHING, PauseSubject, pause, resume
from overnight_server.control.users import Overrides, override_limits
from overnight_server.control.windows import set_window
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import Raised, Returned, StoppedByBudget
from overnight_server.domain.windows import NightWindow
from overnight_server.explain.explain import explain
from overnight_server.insight.task_life import task_life
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.promote import promote
from overnight_server.outcome.presence import leave
from tests.integration.test_task_life import assert_tiled
from tests.support.deployment import CLAIM_SETTINGS, LIVENESS, LOOSE, Deployment

pytestmark = pytest.mark.usefixtures("template")

BEGIN = datetime(2026, 11, 16, 20, 0, tzinfo=UTC)
STEPS = 14
KEYS = ("repo:web", "repo:api")
NIGHT = NightWindow("UTC", time(22), time(5))


@dataclass
class Note:
    """What explain said about a task at an instant: its first reason, or none."""

    user: UserId
    task: TaskId
    at: datetime
    codes: list[str]


@dataclass
class Play:
    """A random deployment that is played in steps."""

    deployment: Deployment
    chance: random.Random
    at: datetime = BEGIN
    users: list[UserId] = field(default_factory=list)
    tasks: dict[TaskId, UserId] = field(default_factory=dict)
    runs: dict[TaskId, Any] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)

    def play(self) -> None:
        """Make the users, then take the steps."""
        self.deployment.set_clock(self.at)
        for _ in range(2):
            limits = {"max_concurrent_agents": self.chance.choice((1, 2, 3))}
            if self.chance.random() < 0.4:
                limits |= {"monthly_agent_hours_limit": 2, "max_task_duration_minutes": 60}
            self.users.append(self.deployment.user(**limits))
        if self.chance.random() < 0.5:
            set_window(self.deployment.app, self.users[0], NIGHT)
        acts = (
            *(self.submit,) * 4,
            *(self.start,) * 5,
            *(self.end,) * 4,
            *(self.pause, self.resume, self.join, self.join, self.leave),
            *(self.cancel, self.limit, self.promote),
        )
        for _ in range(STEPS):
            for act in self.chance.choices(acts, k=4):
                act()
            self.move(timedelta(seconds=2))
            self.note()
            self.move(timedelta(minutes=self.chance.choice((1, 7, 25, 70))))
            self.promote()

    def move(self, by: timedelta) -> None:
        """Move the clock; workers that are alive say so."""
        self.at += by
        self.deployment.set_clock(self.at)
        for name in self.workers:
            self.deployment.run(
                "UPDATE agents SET last_heartbeat_at = clock() WHERE id = :name", name=name
            )

    def submit(self) -> None:
        """Submit one task, or two of which one depends on the other."""
        user = self.chance.choice(self.users)
        number = self.chance.choice((1, 1, 2))
        tasks = [
            NewTask(
                title=f"task {len(self.tasks) + place}",
                type="echo",
                locks=(self.chance.choice(KEYS),) if self.chance.random() < 0.3 else (),
                required_capabilities=("gpu",) if self.chance.random() < 0.1 else (),
                timeout_seconds=self.chance.choice((600, 3000)),
            )
            for place in range(number)
        ]
        edges = [Edge(0, 1)] if number == 2 else []
        for one in submit_graph(self.deployment.app, user, tasks, LOOSE, edges=edges):
            self.tasks[one.task_id] = user

    def start(self) -> None:
        """Let one pass of the gate start what it may."""
        for claimed in self.deployment.claim().claims:
            run = self.deployment.start(claimed)
            if run is not None:
                self.runs[claimed.claim.task_id] = run

    def end(self) -> None:
        """End a run in some way."""
        if not self.runs:
            return
        task = self.chance.choice(sorted(self.runs))
        result = self.chance.choice(
            (
                Returned(),
                Returned(),
                Raised("error", "no luck"),
                Raised("error", "no luck", retryable=False),
                StoppedByBudget(),
            )
        )
        self.deployment.settle(self.runs.pop(task), result)

    def pause(self) -> None:
        """Pause a user, the pool or everything."""
        targets = (PauseSubject(self.users[0]), PauseSubject(pool="default"), EVERYTHING)
        target = self.chance.choice(targets)
        if target.pool is None or self.workers:
            pause(self.deployment.dispatcher, target, actor="test")

    def resume(self) -> None:
        """End every pause."""
        for target in (PauseSubject(self.users[0]), EVERYTHING):
            resume(self.deployment.dispatcher, target, actor="test")
        if self.workers:
            resume(self.deployment.dispatcher, PauseSubject(pool="default"), actor="test")

    def join(self) -> None:
        """Let a worker join, or join again with other slots."""
        name = self.chance.choice(("host-a:1:x", "host-b:1:x"))
        self.deployment.agent(self.chance.choice((1, 2)), agent_id=name)
        self.workers.add(name)

    def leave(self) -> None:
        """Let a worker leave."""
        for name in sorted(self.workers)[:1]:
            leave(self.deployment.dispatcher, name)
            self.workers.discard(name)

    def cancel(self) -> None:
        """Cancel a task that may have ended already."""
        if self.tasks:
            task = self.chance.choice(sorted(self.tasks))
            with suppress(TaskAlreadyCompleted):
                cancel(self.deployment.app, self.tasks[task], task, actor="test")

    def limit(self) -> None:
        """Change how many tasks a user may run at once."""
        user = self.chance.choice(self.users)
        number = self.chance.choice((0, 1, 3))
        override_limits(self.deployment.owner, user, Overrides(concurrency=number))

    def promote(self) -> None:
        """Make retries ready whose time has come."""
        promote(self.deployment.dispatcher)

    def note(self) -> None:
        """Note what explain says about every open task."""
        for task, user in self.tasks.items():
            told = explain(self.deployment.app, user, task, CLAIM_SETTINGS)
            if told.state in {"completed", "cancelled", "dead_lettered"}:
                continue
            codes = [reason.code for reason in told.reasons]
            self.notes.append(Note(user, task, self.at, codes))

    def lives(self) -> dict[TaskId, TaskLife]:
        """Return the history of every task, checked for gaps."""
        found = {}
        for task, user in self.tasks.items():
            found[task] = task_life(self.deployment.app, user, task, liveness=LIVENESS)
            assert_tiled(found[task])
        return found


def compare(play: Play) -> Counter[str]:
    """Assert that each note agrees with the history; return how many notes had which code."""
    lives = play.lives()
    wrong = []
    for note in play.notes:
        [segment] = [one for one in lives[note.task].segments if one.since <= note.at < one.until]
        # Without a reason the next pass starts it: until then it waits for its turn.
        narrowest = note.codes[0] if note.codes else "behind"
        if segment.code != narrowest:
            wrong.append(f"{note.at:%H:%M:%S} {segment.code} instead of {note.codes}")
    assert not wrong, "\n".join(wrong)
    return Counter(note.codes[0] if note.codes else "behind" for note in play.notes)


@pytest.mark.parametrize("seed", range(4))
def test_the_history_names_what_explain_said_at_the_time(deployment: Deployment, seed: int) -> None:
    play = Play(deployment, random.Random(seed))
    play.play()

    assert compare(play).total() > 0


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 120))
def test_the_history_names_what_explain_said_a_thousand_times(
    deployment: Deployment, seed: int
) -> None:
    play = Play(deployment, random.Random(seed))
    play.play()

    assert compare(play).total() >= 30
