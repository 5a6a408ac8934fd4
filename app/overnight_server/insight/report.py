"""The morning report: what happened in a night, and what needs the user.

One builder for the page, the mail, the terminal and JSON, so that they carry the same figures.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from overnight.models.account import DeadLetterGroup
from overnight.models.admin import UserApproval
from overnight.models.nights import (
    NightReport,
    PostponedTask,
    ReportAct,
    ReportFigures,
    ReportGroup,
    ReportNeed,
    ReportTask,
    UserNight,
)
from overnight_server.domain.budgets import Budget, suggested_raise
from overnight_server.domain.failure_titles import title_of_failures
from overnight_server.domain.headline import NightOutcome, headline, mood_of
from overnight_server.domain.ids import UserId, show_dag, show_task
from overnight_server.domain.life import Segment, SegmentKind, bridge, clip
from overnight_server.domain.life_words import NOTHING_QUEUED, UNKNOWN, LifeFacts, describe
from overnight_server.domain.lifecycle import State
from overnight_server.domain.reasons import (
    HOUR,
    ReasonCode,
    format_duration,
    format_rest,
    join_names,
)
from overnight_server.domain.report_text import money, when
from overnight_server.insight.budgets import read_approvals
from overnight_server.insight.dead_letters import GroupedDeadLetters, read_dead_letters_by_group
from overnight_server.insight.life_facts import Life
from overnight_server.insight.neighbours import titles_of
from overnight_server.insight.night import NightFacts, read_night
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# How many entries of each part are listed; the report says how many more there are.
MAX_NEEDS = 10
MAX_RESULTS = 200
MAX_POSTPONED = 20
MAX_TEXT = 200
SINGLE_TASKS = "Single tasks"
# Reasons of waiting tasks about which their owner, or an operator, has to do something.
_STUCK = {
    ReasonCode.HANDLER: "no worker has a handler for the type",
    ReasonCode.NO_CAPABLE_AGENT: "no worker offers what is required",
    ReasonCode.NO_WORKER: "no worker is alive",
}


def night_report(
    db: Db, user_id: UserId, day: date | None = None, *, liveness: timedelta
) -> NightReport:
    """Return the morning report of a night: the one that opened last, or that of a local day.

    Raises NightNotFound for a night that has not begun. `liveness` is how long a worker counts
    as alive after a heartbeat.
    """

    def work(tx: Connection) -> _Facts:
        return _read_facts(tx, user_id, read_night(tx, user_id, day, liveness=liveness))

    facts = db.atomically(work, one_instant=True, all_users=True)
    # What needs somebody now says nothing about a night after which others have begun.
    return _report(facts, _Needs() if facts.night.is_past else _read_needs(db, user_id, facts))


@dataclass(frozen=True)
class _Needs:
    """What needs the user now: the first of each kind, and how many there are in all."""

    listed: Sequence[ReportNeed] = ()
    number: int = 0


@dataclass(frozen=True)
class _Facts:
    """Everything that was read in one snapshot."""

    night: UserNight
    lives: Sequence[Life]
    user: Mapping[str, Any]
    until: datetime
    night_usd: float
    graphs: Mapping[UUID, str]


def _read_facts(tx: Connection, user_id: UserId, read: NightFacts) -> _Facts:
    night = read.night
    params = {"user_id": user_id, "from_at": night.opens_at, "to_at": read.until}
    usd = tx.execute(statement("night_money"), params).scalar_one()
    ids = sorted({life.task["dag_id"] for life in read.lives})
    rows = tx.execute(statement("night_graphs"), {"user_id": user_id, "ids": ids})
    graphs = {row.id: row.title for row in rows}
    return _Facts(night, read.lives, read.user, read.until, usd, graphs)


def _read_needs(db: Db, user_id: UserId, facts: _Facts) -> _Needs:
    """Return what needs the user, the most urgent first."""
    dead = read_dead_letters_by_group(db, user_id=user_id, limit=MAX_NEEDS)
    approvals, number_of_approvals = read_approvals(db, user_id=user_id, limit=MAX_NEEDS)
    is_operator = facts.user["is_admin"]
    others = [
        *(_money_need(approval, is_operator=is_operator) for approval in approvals),
        *_hours_need(facts),
        *_stuck_needs(facts),
    ]
    # Each kind is listed, however many groups of dead letters there are.
    room = max(MAX_NEEDS // 2, MAX_NEEDS - len(others))
    listed = [*_dead_needs(db, user_id, dead)[:room], *others]
    number = dead.number_of_groups + number_of_approvals + len(others) - len(approvals)
    return _Needs(listed[:MAX_NEEDS], number)


def _report(facts: _Facts, needs: _Needs) -> NightReport:
    night, user = facts.night, facts.user
    outcome = _outcome(night, needs.number)
    figures = ReportFigures(
        work_seconds=night.work_seconds,
        night_cost_usd=round(facts.night_usd, 6),
        night_budget_usd=user["night_limit_usd"],
        month_used_seconds=user["used_seconds"],
        month_limit_seconds=user["limit_seconds"],
        month_resets_at=user["resets_at"],
        max_concurrent=user["max_active"],
    )
    ended = sorted(
        (life for life in facts.lives if _ended_in_night(life, facts)),
        key=lambda life: life.task["finished_at"],
    )
    still_open = sorted(
        (_at_end(life, facts) for life in facts.lives if not _has_ended(life, facts)),
        key=_OpenTask.urgency,
    )
    left = night.tally.running + night.tally.waiting
    all_ended = night.tally.done + night.tally.dead + night.tally.cancelled
    return NightReport(
        headline=headline(outcome),
        mood=mood_of(outcome).value,
        summary=_summary(night, figures),
        night=night,
        figures=figures,
        needs=list(needs.listed),
        needs_more=needs.number - len(needs.listed),
        groups=_groups(ended[:MAX_RESULTS], facts),
        groups_more=max(0, all_ended - min(len(ended), MAX_RESULTS)),
        postponed=[_postponed(task) for task in still_open[:MAX_POSTPONED]],
        postponed_more=max(0, left - min(len(still_open), MAX_POSTPONED)),
        made_at=night.made_at,
    )


def _outcome(night: UserNight, needs: int) -> NightOutcome:
    tally = night.tally
    return NightOutcome(
        done=tally.done,
        dead=tally.dead,
        cancelled=tally.cancelled,
        running=tally.running,
        waiting=tally.waiting,
        needs=needs,
        is_over=night.is_over,
        lost_runs=sum(1 for marker in night.markers if marker.kind == "worker_lost"),
        waits=tuple(_waits(night)),
    )


def _waits(night: UserNight) -> list[tuple[str, float]]:
    """Return for how long each cause kept any slot empty, the longest first.

    A time in which it kept several slots empty counts once, as a person counts it.
    """
    spans: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for slot in night.slots:
        for piece in slot.pieces:
            if piece.is_idle and piece.code not in {NOTHING_QUEUED, UNKNOWN}:
                spans[piece.code].append((piece.since, piece.until))
    lengths = {
        code: sum((end - begin).total_seconds() for begin, end in bridge(sorted(of_code)))
        for code, of_code in spans.items()
    }
    return sorted(lengths.items(), key=lambda item: -item[1])


def _summary(night: UserNight, figures: ReportFigures) -> str:
    """Return work, money and hours in one sentence; of a past night without what is true now."""
    number = len(night.slots) if night.is_past else figures.max_concurrent
    slots = "one slot" if number == 1 else f"{number} slots"
    work = f"Worked {format_duration(figures.work_seconds)} in {slots}"
    cost = money(figures.night_cost_usd)
    if night.is_past:
        return f"{work}, for {cost}."
    budget = figures.night_budget_usd
    spent = cost if budget is None else f"{cost} of {money(budget)}"
    used = figures.month_used_seconds / HOUR
    limit = figures.month_limit_seconds
    hours = f"{used:.1f}" + ("" if limit is None else f" of {limit / HOUR:g}")
    return f"{work}, {spent} tonight, {hours} hours this month."


def _has_ended(life: Life, facts: _Facts) -> bool:
    finished_at = life.task["finished_at"]
    return finished_at is not None and finished_at <= facts.until


def _ended_in_night(life: Life, facts: _Facts) -> bool:
    return _has_ended(life, facts) and life.task["finished_at"] > facts.night.opens_at


@dataclass(frozen=True)
class _OpenTask:
    """A task that had not ended when the next night began, or now, and what it did then."""

    life: Life
    segment: Segment | None

    def urgency(self) -> tuple[bool, datetime]:
        """Order open tasks: those that ran first, then the oldest."""
        is_waiting = self.segment is None or self.segment.kind is SegmentKind.WAITING
        return is_waiting, self.life.task["created_at"]


def _at_end(life: Life, facts: _Facts) -> _OpenTask:
    """Return what a task did at the end of the time that the report is about."""
    before = [segment for segment in life.segments if segment.since < facts.until]
    return _OpenTask(life, before[-1] if before else None)


def _groups(ended: Sequence[Life], facts: _Facts) -> list[ReportGroup]:
    """Return the results by graph, the largest graph first; lone tasks are one group, the last."""
    by_graph: dict[UUID | None, list[Life]] = defaultdict(list)
    totals: dict[UUID | None, int] = defaultdict(int)
    for life in facts.lives:
        totals[_graph_of(life, facts)] += 1
    for life in ended:
        by_graph[_graph_of(life, facts)].append(life)
    ordered = sorted(by_graph, key=lambda dag_id: (dag_id is None, -len(by_graph[dag_id])))
    return [
        ReportGroup(
            dag_id=None if dag_id is None else show_dag(dag_id),
            title=SINGLE_TASKS if dag_id is None else facts.graphs[dag_id],
            done=sum(life.task["state"] == State.COMPLETED for life in by_graph[dag_id]),
            total=totals[dag_id],
            cost_usd=round(sum(float(life.task["cost_usd"]) for life in by_graph[dag_id]), 6),
            tasks=[_result(life, facts) for life in by_graph[dag_id]],
        )
        for dag_id in ordered
    ]


def _graph_of(life: Life, facts: _Facts) -> UUID | None:
    dag_id: UUID = life.task["dag_id"]
    return dag_id if dag_id in facts.graphs else None


def _result(life: Life, facts: _Facts) -> ReportTask:
    task = life.task
    is_done = task["state"] == State.COMPLETED
    text = task["result_summary"] if is_done else task["error"] or task["failure_reason"]
    runs = ((run["claimed_at"], run["ended_at"]) for run in life.runs)
    worked = clip(runs, facts.night.opens_at, facts.until)
    return ReportTask(
        id=show_task(task["id"]),
        title=task["title"],
        state=task["state"],
        text=_short(text or ""),
        work_seconds=sum((end - begin).total_seconds() for begin, end in worked),
        cost_usd=float(task["cost_usd"]),
        finished_at=task["finished_at"],
    )


def _postponed(open_task: _OpenTask) -> PostponedTask:
    life, last = open_task.life, open_task.segment
    task, shown = life.task, show_task(life.task["id"])
    workers = {run["epoch"]: run["agent"] for run in life.runs}
    return PostponedTask(
        id=shown,
        title=task["title"],
        state=task["state"] if last is None else last.state.value,
        code=ReasonCode.STATE if last is None else last.code.value,
        text="" if last is None else describe(last, LifeFacts(shown, workers, {}, {})),
        clears_at=None if last is None or last.hold is None else last.hold.clears_at,
    )


def _dead_needs(db: Db, user_id: UserId, dead: GroupedDeadLetters) -> list[ReportNeed]:
    """Return what to do about dead letters, one need for those that failed in the same way."""
    pairs = [(task, name) for name, tasks in dead.tasks.items() for task in tasks]
    params = {
        "user_id": user_id,
        "ids": [task for task, _ in pairs],
        "groups": [name for _, name in pairs],
    }
    rows = db.atomically(lambda tx: tx.execute(statement("night_dependents"), params).all())
    dependents = {row.of_group: row.number for row in rows}
    alone = [group.task_ids[0] for group in dead.groups if group.count == 1]
    titles = titles_of(db, user_id, alone)
    return [
        _dead_need(
            group, dependents.get(group.fingerprint, 0), titles.get(group.task_ids[0], "One task")
        )
        for group in dead.groups
    ]


def _dead_need(group: DeadLetterGroup, dependents: int, title: str) -> ReportNeed:
    """Return what to do about dead letters that failed in the same way."""
    is_one = group.count == 1
    them = "it" if is_one else "them"
    path = f"/dead/{group.fingerprint}"
    command = (
        f"overnight retry {group.task_ids[0]}"
        if is_one
        else f"overnight bulk retry --fingerprint {group.fingerprint}"
    )
    return ReportNeed(
        kind="dead",
        title=title_of_failures(group.failure_reason, group.count, f"“{_short(title)}”"),
        detail=_short(group.error or "no message")
        + (f"; {money(group.total_cost_usd)} spent" if group.total_cost_usd else ""),
        if_ignored=f"{_tasks(dependents)} that {_verb(dependents, 'depends', 'depend')} on {them}"
        " did not run and will not"
        if dependents
        else f"nothing else waits for {them}",
        act=ReportAct(
            label=f"Retry {_tasks(group.count)}",
            command=command,
            path=path,
            form_path=f"{path}/retry",
        ),
        task_ids=group.task_ids,
    )


def _money_need(approval: UserApproval, *, is_operator: bool) -> ReportNeed:
    """Return a task that asks for a larger budget, and who may raise it."""
    more = suggested_raise(approval.needs_usd)
    limit = "" if approval.limit_usd is None else f" of {money(approval.limit_usd)}"
    spent = f"{money(approval.spent_usd)}{limit} of the {approval.budget} budget is spent"
    is_theirs = approval.raised_by == "operator" and not is_operator
    return ReportNeed(
        kind="budget",
        title=f"“{approval.title}” asks for money",
        detail=f"{spent}; an operator set this budget and can raise it" if is_theirs else spent,
        if_ignored="it continues in the next night"
        if approval.budget == Budget.NIGHT
        else "it waits, without a slot",
        act=_look_at([approval.task_id])
        if is_theirs
        else ReportAct(
            label=f"Allow {money(more)} more",
            command=f"overnight approve {approval.task_id} --usd {more:g}",
            path=f"/tasks/{approval.task_id}",
            form_path=f"/approvals/{approval.task_id}/approve",
            form_fields={"usd": f"{more:.2f}"},
        ),
        task_ids=[approval.task_id],
    )


def _look_at(task_ids: Sequence[str]) -> ReportAct:
    """Return the act that shows why tasks wait: nothing that their owner can press helps them."""
    return ReportAct(
        label=f"Look at {_tasks(len(task_ids))}",
        command=f"overnight explain {task_ids[0]}",
        path=f"/tasks/{task_ids[0]}",
    )


def _hours_need(facts: _Facts) -> Iterator[ReportNeed]:
    """Yield the tasks that do not fit into the rest of the month's hours."""
    held = _waiting_for(facts.lives, ReasonCode.MONTHLY_HOURS)
    if not held:
        return
    user = facts.user
    left = user["limit_seconds"] - user["used_seconds"] - user["reserved_seconds"]
    shown = [show_task(life.task["id"]) for life in held]
    fits = _verb(len(held), "does not fit", "do not fit")
    yield ReportNeed(
        kind="hours",
        title=f"{_at_least(held, facts)} {fits} into the month's hours",
        detail=f"{format_rest(max(0, left))} left",
        if_ignored=f"{_verb(len(held), 'it waits', 'they wait')} until"
        f" {when(user['resets_at'], facts.night.zone)}",
        act=_look_at(shown),
        task_ids=shown,
    )


def _stuck_needs(facts: _Facts) -> Iterator[ReportNeed]:
    """Yield tasks that no worker can run; they wait for a worker, however long that takes."""
    for code, problem in _STUCK.items():
        held = _waiting_for(facts.lives, code)
        if not held:
            continue
        shown = [show_task(life.task["id"]) for life in held]
        types = sorted({life.task["type"] for life in held})
        yield ReportNeed(
            kind="worker",
            title=f"{_at_least(held, facts)} cannot start: {problem}",
            detail=f"{_verb(len(types), 'type', 'types')} {join_names(types[:3], len(types))}",
            if_ignored=f"{_verb(len(held), 'it waits', 'they wait')} until a worker can run"
            f" {_verb(len(held), 'it', 'them')}",
            act=_look_at(shown),
            task_ids=shown,
        )


def _waiting_for(lives: Iterable[Life], code: ReasonCode) -> list[Life]:
    return [
        life
        for life in lives
        if life.task["finished_at"] is None
        and life.segments
        and life.segments[-1].kind is SegmentKind.WAITING
        and life.segments[-1].code is code
    ]


def _at_least(held: Sequence[Life], facts: _Facts) -> str:
    """Return how many tasks wait for one reason; of a large night only some were read."""
    return f"{'At least ' if facts.night.is_partial else ''}{_tasks(len(held))}"


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number:,} tasks"


def _verb(number: int, one: str, many: str) -> str:
    return one if number == 1 else many


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"
