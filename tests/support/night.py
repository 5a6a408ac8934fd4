"""A small night for tests of the dashboard: one user's tasks in every state that a page shows."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from overnight_server.control.cancel import cancel
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.domain.results import (
    Deferred,
    Died,
    Raised,
    Result,
    Returned,
    StoppedByBudget,
)
from overnight_server.intake.new_graph import Edge, NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.maintenance.promote import promote
from overnight_server.outcome.heartbeat import heartbeat
from overnight_server.store.db import ADMIN, DISPATCHER, Db
from tests.support.deployment import LEASE, LOOSE, Deployment
from tests.support.graphs import begin, dag_of

MINUTE = timedelta(minutes=1)
#: Text that would be markup, if a page did not escape it.
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'"
TYPES = ("code", "translate", "survey", "echo")
NAMES = ("plan", "migrate", "port", "review", "deploy", "drop")
TITLES = (
    "Plan the migration",
    "Migrate the invoices table",
    "Port the payment webhooks",
    "Review the whole change",
    "Deploy to staging",
    "Drop the old tables",
)


@dataclass
class Night:
    """The tasks of the night, by what they are for."""

    deployment: Deployment
    user: UserId
    dag: DagId
    tasks: dict[str, TaskId] = field(default_factory=dict)

    def id(self, name: str) -> str:
        """Return the id of a task as users see it."""
        return show_task(self.tasks[name])


@contextmanager
def connected(url: str) -> Iterator[Deployment]:
    """Connect to a database with the roles that a deployment has."""
    with ExitStack() as stack:

        def connect(role: str) -> Db:
            db = Db.connect(url, role=role, application_name="night", pool_size=3)
            stack.callback(db.close)
            return db

        yield Deployment(connect("overnight_owner"), connect(DISPATCHER), connect(ADMIN))


def play_night(deployment: Deployment, user: UserId) -> Night:
    """Submit and run the tasks of one night; the clock of the database moves with them."""
    deployment.move_clock_to_hour(8)
    deployment.agent(slots=4, types=TYPES)
    drafts = [
        NewTask(title, "code", name=name, locks=["repo:billing"] if name == "port" else ())
        for name, title in zip(NAMES, TITLES, strict=True)
    ]
    edges = [Edge(0, 1), Edge(1, 2), Edge(1, 3), Edge(2, 4), Edge(3, 4), Edge(4, 5)]
    made = submit_graph(
        deployment.app, user, drafts, LOOSE, edges=edges, title="Ship billing v2", budget_usd=15
    )
    ids = [one.task_id for one in made]
    night = Night(deployment, user, dag_of(deployment, ids[0]))
    night.tasks = dict(zip(NAMES, ids, strict=True))
    _work(night, "plan", 9, Returned(summary="A plan of six steps.", cost_usd=0.31))
    _work(night, "migrate", 41, Died())
    promote(deployment.dispatcher)
    _work(night, "migrate", 38, Returned(summary="4,112 rows migrated.", cost_usd=0.85))
    _fail_chapters(night)
    _single(night, "marked", MARKUP, payload={"text": MARKUP}, tags=["night"])
    _work(night, "marked", 3, Raised("error", MARKUP, cost_usd=0.02))
    _single(night, "asks", "Translate chapter 6", type="translate", max_cost_usd=2.0)
    _work(night, "asks", 63, StoppedByBudget(cost_usd=2.0))
    _single(night, "limited", "Look into Tarn", type="survey")
    _work(night, "limited", 4, Deferred(3600.0))
    night.tasks["cancelled"] = deployment.task(user, title="An old idea", type="survey")
    cancel(deployment.app, user, night.tasks["cancelled"], actor=f"user:{user}")
    [port] = begin(deployment, ids[2])
    _single(night, "locked", "Regenerate the API client", locks=["repo:billing"])
    night.tasks["waiting"] = deployment.task(
        user, title="Label 400 feedback notes", type="research"
    )
    deployment.move_clock(12 * MINUTE)
    _report(deployment, port)
    deployment.agent(slots=4, types=TYPES)
    return night


def _fail_chapters(night: Night) -> None:
    for chapter in (4, 5):
        name = f"chapter {chapter}"
        _single(night, name, f"Translate {name}", type="translate", tags=["handbook"])
        message = f"the chapter has {21 + chapter}1200 tokens, the model takes 200000"
        failure = Raised("context_overflow", message, cost_usd=0.43, retryable=False)
        _work(night, name, 9, failure)


def _single(night: Night, key: str, title: str, **fields: Any) -> None:
    wanted: dict[str, Any] = {"type": "code", **fields}
    night.tasks[key] = night.deployment.task(night.user, title=title, **wanted)


def _work(night: Night, name: str, minutes: int, result: Result) -> None:
    """Run a task for some minutes, and settle it."""
    [run] = begin(night.deployment, night.tasks[name])
    night.deployment.move_clock(minutes * MINUTE)
    night.deployment.settle(run, result)
    night.deployment.move_clock(2 * MINUTE)


def _report(deployment: Deployment, run: Run) -> None:
    """Report progress of a run, whose lease is long."""
    progress = {"percent": 65, "message": "reading 61 changed files"}
    heartbeat(deployment.dispatcher, run.claim, lease=LEASE * 1000, progress=progress)
