"""The story of the demo: three users, forty tasks, and how each of their runs goes.

Only what the outside decides is written here: when tasks are submitted, how long a run takes, how
it ends and what it costs. What happens then (waits, retries, dead letters, hours, locks, slots) is
decided by the engine. Times are minutes after 18:00 on the evening in question, in Berlin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

from overnight.models.enums import PlanTier
from overnight_server.domain.windows import NightWindow

ZONE: Final = "Europe/Berlin"
EVENING: Final = datetime(2026, 11, 16, 18, 0, tzinfo=ZoneInfo(ZONE))
#: The users signed up then, so that in winter their billing months start on the 21st at midnight.
SIGNED_UP: Final = datetime(2026, 10, 20, 23, 0, tzinfo=UTC)
#: Where the demo stops moving the clock, which goes on from here: 07:12.
MORNING: Final = 792.0
WORKERS: Final = ("host-a:4121", "host-b:3307", "host-c:2890")
SLOTS: Final = 3
LOST_WORKER: Final = "host-b:3307"

Outcome = Literal["completed", "failed", "killed", "lost", "rate_limited", "over_budget"]


@dataclass(frozen=True)
class DemoRun:
    """How one run of a task goes."""

    minutes: float
    cost: float = 0.0
    outcome: Outcome = "completed"
    error_class: str = ""
    error: str = ""
    wait_minutes: float = 0.0
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class DemoTask:
    """One task and its runs; `after` names tasks of the same graph."""

    name: str
    title: str
    type: str
    runs: Sequence[DemoRun]
    after: Sequence[str] = ()
    condition: Literal["success", "finished"] = "success"
    locks: Sequence[str] = ()
    timeout_minutes: int = 60
    priority: int = 50
    tags: Sequence[str] = ()
    project: str | None = None
    summary: str = ""
    files: int = 0
    artifact: str | None = None
    max_cost: float | None = None
    created_by: str | None = None


@dataclass(frozen=True)
class DemoGraph:
    """What one user submits at once; without a title the tasks are single ones."""

    user: str
    minute: float
    tasks: Sequence[DemoTask]
    title: str | None = None
    budget: float | None = None


@dataclass(frozen=True)
class DemoUser:
    """One user with a plan, a night window and the hours that earlier nights have used."""

    name: str
    plan: PlanTier
    window: NightWindow | None
    hours_used: float = 0.0
    night_budget: float | None = None


@dataclass(frozen=True)
class DemoCancel:
    """A user cancels a task."""

    minute: float
    task: str


@dataclass(frozen=True)
class Night:
    """Everything that happens to the deployment from outside."""

    users: Sequence[DemoUser]
    graphs: Sequence[DemoGraph]
    cancels: Sequence[DemoCancel] = ()
    morning: float = MORNING
    tasks: Mapping[str, DemoTask] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the tasks of all graphs by their names."""
        tasks = {task.name: task for graph in self.graphs for task in graph.tasks}
        object.__setattr__(self, "tasks", tasks)


def at_minute(minute: float) -> datetime:
    """Return the instant of a minute of the demo."""
    return EVENING + timedelta(minutes=minute)


def _run(minutes: float, cost: float) -> DemoRun:
    return DemoRun(minutes, cost)


_AT_NIGHT: Final = NightWindow(ZONE, time(22), time(7))
_BILLING: Final = DemoTask(
    "", "", "code", (), locks=("repo:billing",), project="billing", tags=("billing",)
)
_SURVEY: Final = DemoTask("", "", "research", (), tags=("survey",), created_by="agent:planner")
_UPKEEP: Final = DemoTask("", "", "code", (), tags=("upkeep",), created_by="cron:nightly")
_CHAPTER: Final = DemoTask(
    "",
    "",
    "translate",
    (),
    after=("glossary",),
    tags=("handbook",),
    timeout_minutes=90,
    max_cost=2.0,
)


def _too_long(tokens: int) -> list[DemoRun]:
    text = f"the chapter has {tokens:,} tokens, the model takes 200,000"
    return [
        DemoRun(minutes, cost, "failed", "context_overflow", text)
        for minutes, cost in ((9.2, 0.44), (8.7, 0.43), (8.9, 0.43))
    ]


def _ship_billing() -> Sequence[DemoTask]:
    """Return the eleven tasks of ada's large graph; most of them share one repository."""
    billing = _BILLING
    return (
        replace(
            billing,
            name="map",
            title="Map the billing code and its seams",
            type="research",
            runs=[_run(58, 0.61)],
            locks=(),
            artifact="seams.md",
            summary="Four seams; invoice totals are computed in three places.",
        ),
        replace(
            billing,
            name="plan",
            title="Write the migration plan",
            type="synthesis",
            runs=[_run(29, 0.38)],
            after=("map",),
            locks=(),
            timeout_minutes=30,
            artifact="plan.md",
            summary="Nine steps, each of them reversible.",
        ),
        replace(
            billing,
            name="schema",
            title="Migrate the invoices table",
            runs=[_run(88, 0.94)],
            after=("plan",),
            timeout_minutes=90,
            files=4,
            summary="Two migrations, tried on a copy of 1.2 million rows.",
        ),
        replace(
            billing,
            name="endpoints",
            title="Port the invoice endpoints",
            runs=[_run(117, 1.72)],
            after=("schema",),
            timeout_minutes=120,
            files=17,
            artifact="endpoints.diff",
            summary="Eleven endpoints ported, two marked as deprecated.",
        ),
        replace(
            billing,
            name="webhooks",
            title="Port the payment webhooks",
            runs=[
                DemoRun(12.3, 0.31, "lost", lines=("Reading the old handlers",)),
                DemoRun(
                    7.1,
                    0.22,
                    "rate_limited",
                    error="429 from the provider: resets in 28 min",
                    wait_minutes=28,
                ),
                _run(52.4, 1.08),
            ],
            after=("schema",),
            files=9,
            artifact="replay.json",
            summary="Six webhooks ported; a replay of last week's 4,112 events agrees.",
        ),
        replace(
            billing,
            name="screen",
            title="Rebuild the invoice screen",
            runs=[_run(112, 1.95)],
            after=("schema",),
            locks=("path:web/invoices",),
            timeout_minutes=120,
            files=22,
            artifact="before-after.txt",
            summary="A new screen behind a flag, with fourteen snapshots.",
        ),
        replace(
            billing,
            name="totals",
            title="Property tests for invoice totals",
            type="test",
            runs=[
                DemoRun(
                    21.4,
                    0.41,
                    "failed",
                    "invalid_output",
                    "test-pass: 3 of 31 properties fail (rounding of 0.5 cent)",
                    lines=("running 31 properties", "3 failed: rounding of 0.5 cent"),
                ),
                _run(41.2, 0.52),
            ],
            after=("endpoints",),
            locks=(),
            files=6,
            summary="31 properties; a rounding error in the totals was found and repaired.",
        ),
        replace(
            billing,
            name="describe",
            title="Describe the new endpoints",
            type="synthesis",
            runs=[_run(12, 0.29)],
            after=("endpoints",),
            locks=(),
            timeout_minutes=30,
            priority=70,
            files=3,
            summary="Reference pages for eleven endpoints.",
        ),
        replace(
            billing,
            name="review",
            title="Review the whole change",
            type="review",
            runs=[_run(118, 0.86)],
            after=("webhooks", "screen", "totals"),
            locks=(),
            timeout_minutes=120,
            priority=20,
        ),
        replace(
            billing,
            name="deploy",
            title="Deploy to staging",
            type="deploy",
            runs=[_run(6, 0.02)],
            after=("review",),
            locks=("env:staging",),
            timeout_minutes=15,
        ),
        replace(
            billing,
            name="tidy",
            title="Drop the old tables",
            runs=[_run(9, 0.05)],
            after=("deploy",),
            timeout_minutes=20,
        ),
    )


def _handbook() -> Sequence[DemoTask]:
    """Return ada's translation: two of its chapters are too long, one costs too much."""
    chapters: dict[int, list[DemoRun]] = {
        1: [_run(49, 0.91)],
        2: [_run(58, 1.04)],
        3: [_run(44, 0.83)],
        4: _too_long(231_480),
        5: _too_long(218_902),
        6: [
            DemoRun(
                62.6,
                2.00,
                "over_budget",
                error="the ceiling of $2.00 is reached after 19 of 27 sections",
            ),
            _run(24.0, 0.85),
        ],
    }
    return (
        replace(
            _CHAPTER,
            name="glossary",
            title="Settle the glossary",
            runs=[_run(26, 0.34)],
            after=(),
            timeout_minutes=45,
            artifact="glossary.csv",
            summary="212 terms, eleven of them open to debate.",
        ),
        *(
            replace(
                _CHAPTER,
                name=f"chapter-{number}",
                title=f"Translate chapter {number}",
                runs=runs,
                artifact=f"chapter-{number}.md",
                summary=f"Chapter {number} in German; the glossary was kept.",
            )
            for number, runs in chapters.items()
        ),
        replace(
            _CHAPTER,
            name="bind",
            title="Assemble the handbook",
            type="synthesis",
            runs=[_run(12, 0.10)],
            after=tuple(f"chapter-{number}" for number in chapters),
            timeout_minutes=30,
        ),
    )


def _singles() -> Sequence[DemoGraph]:
    """Return ada's seven single tasks, each submitted by itself during the evening."""
    tasks = (
        (
            31.0,
            DemoTask(
                "tickets",
                "Summarise yesterday's support tickets",
                "synthesis",
                [_run(28, 0.27)],
                timeout_minutes=45,
                priority=20,
                tags=("support",),
                artifact="themes.md",
                summary="63 tickets, five themes; refunds are up by half.",
            ),
        ),
        (
            188.3,
            DemoTask(
                "investors",
                "Draft the investor update",
                "synthesis",
                [_run(38, 0.46)],
                timeout_minutes=45,
                artifact="update.md",
                summary="One page, with three questions for you in the margin.",
            ),
        ),
        (
            205.5,
            DemoTask(
                "search",
                "Profile the slow search query",
                "code",
                [_run(61, 0.88)],
                locks=("repo:web",),
                timeout_minutes=90,
                project="web",
                tags=("web",),
                files=2,
                artifact="explain.txt",
                summary="An index on (tenant, lower(title)) was missing: 1.9 s becomes 40 ms.",
            ),
        ),
        (
            197.2,
            DemoTask(
                "vectors",
                "Try the vector index on staging",
                "test",
                [
                    DemoRun(14.2, 0.12, "killed", lines=("loading 4,000,000 vectors",)),
                    DemoRun(13.6, 0.11, "killed", lines=("loading 4,000,000 vectors",)),
                ],
                tags=("web",),
            ),
        ),
        (
            122.8,
            DemoTask(
                "branches",
                "Clean up stale branches",
                "code",
                [_run(5, 0.02)],
                locks=("repo:web",),
                timeout_minutes=30,
                project="web",
            ),
        ),
        (
            712.0,
            DemoTask(
                "client",
                "Regenerate the API client",
                "code",
                [_run(11, 0.08)],
                locks=("repo:billing",),
                timeout_minutes=120,
                priority=95,
                project="billing",
                tags=("billing",),
                created_by="agent:planner",
            ),
        ),
        (
            701.5,
            DemoTask(
                "notes",
                "Label 400 feedback notes",
                "research",
                [_run(45, 0.30)],
                timeout_minutes=120,
                priority=90,
                tags=("support",),
                created_by="agent:support",
            ),
        ),
    )
    return tuple(DemoGraph("ada", minute, [task]) for minute, task in tasks)


def _survey() -> Sequence[DemoTask]:
    """Return cleo's nine tasks: six companies, one of which refuses, compared in one brief."""
    refused = DemoRun(
        3.4, 0.06, "failed", "auth_failure", "403 from docs.tarn.example: sign-in required"
    )
    companies: dict[str, list[DemoRun]] = {
        "Northwind": [_run(46, 0.48)],
        "Kestrel": [_run(57, 0.57)],
        "Lumen": [_run(33, 0.33)],
        "Oriel": [_run(40, 0.41)],
        "Tarn": [refused],
        "Vesper": [_run(53, 0.52)],
    }
    return (
        replace(
            _SURVEY,
            name="whom",
            title="Choose whom to look at",
            runs=[_run(14, 0.14)],
            timeout_minutes=20,
            summary="Six companies, with reasons.",
        ),
        *(
            replace(
                _SURVEY,
                name=name.lower(),
                title=f"Look into {name}",
                runs=runs,
                after=("whom",),
                artifact=f"{name.lower()}.md",
                summary=f"Prices, limits, and what users of {name} miss.",
            )
            for name, runs in companies.items()
        ),
        replace(
            _SURVEY,
            name="compare",
            title="Compare what they say",
            type="synthesis",
            runs=[_run(33, 0.49)],
            after=tuple(name.lower() for name in companies),
            condition="finished",
            timeout_minutes=45,
            artifact="table.csv",
            summary="Five of six compared; Tarn is missing and marked so.",
        ),
        replace(
            _SURVEY,
            name="brief",
            title="Write the two-page brief",
            type="synthesis",
            runs=[_run(24, 0.31)],
            after=("compare",),
            timeout_minutes=30,
            artifact="brief.md",
            summary="Two pages, three recommendations.",
        ),
    )


def _nightly() -> Sequence[DemoTask]:
    """Return ben's five tasks, which come every night; one fails once and succeeds then."""
    web = replace(_UPKEEP, project="web", locks=("repo:web",))
    return (
        replace(
            web,
            name="bump",
            title="Bump the dependencies",
            runs=[_run(21, 0.36)],
            timeout_minutes=30,
            files=2,
            summary="Fourteen bumped, one held back: it drops Python 3.11.",
        ),
        replace(
            web,
            name="flaky",
            title="Hunt flaky tests",
            type="test",
            runs=[_run(28, 0.66)],
            timeout_minutes=30,
            files=3,
            summary="Three found in 40 runs, two repaired, one reported.",
        ),
        replace(
            _UPKEEP,
            name="links",
            title="Check every link",
            type="research",
            runs=[_run(11, 0.07)],
            timeout_minutes=30,
            priority=70,
            summary="2,310 links, four dead, all on one page.",
        ),
        replace(
            _UPKEEP,
            name="backup",
            title="Verify last night's backup",
            type="test",
            runs=[
                DemoRun(
                    2.2,
                    0.02,
                    "failed",
                    "error",
                    "ConnectionResetError: storage closed the connection",
                    lines=("restoring 41 tables", "storage closed the connection"),
                ),
                _run(9.1, 0.05),
            ],
            timeout_minutes=30,
            priority=20,
            summary="Restored and compared: 41 tables, no difference.",
        ),
        replace(
            web,
            name="changes",
            title="Write the changelog",
            type="synthesis",
            runs=[_run(6, 0.11)],
            after=("bump", "flaky"),
            locks=(),
            timeout_minutes=20,
            files=1,
            summary="Seventeen entries, by area.",
        ),
    )


#: Ada's hours do not suffice for everything, ben's plan runs one task at a time, cleo's is large.
DEMO_NIGHT: Final = Night(
    users=(
        DemoUser("ada", PlanTier.PRO, _AT_NIGHT, hours_used=80.4, night_budget=25.0),
        DemoUser("ben", PlanTier.FREE, NightWindow(ZONE, time(23), time(6))),
        DemoUser("cleo", PlanTier.TEAM, None),
    ),
    graphs=(
        DemoGraph("ada", 110.4, _ship_billing(), "Ship billing v2"),
        DemoGraph("ada", 22.7, _handbook(), "Translate the handbook"),
        DemoGraph("cleo", 41.2, _survey(), "Competitor survey"),
        DemoGraph("ben", 240.0, _nightly(), "Nightly upkeep"),
        *_singles(),
    ),
    cancels=(DemoCancel(201.4, "branches"),),
)
