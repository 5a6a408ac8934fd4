"""The life of one task: what it did or waited for in each moment, with cause, holder and end."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from overnight.errors import TaskNotFound
from overnight.models.nights import CauseTotal, LifeSegment, SegmentHolder, TaskLife
from overnight_server.domain.ids import TaskId, UserId, show_task
from overnight_server.domain.life import Segment, SegmentKind
from overnight_server.domain.life_words import LifeFacts, act_of, describe, label_of
from overnight_server.insight.life_facts import Life, Period, read_lives
from overnight_server.store.db import Db


def task_life(db: Db, user_id: UserId, task_id: TaskId, *, liveness: timedelta) -> TaskLife:
    """Return a task's life as segments; raise TaskNotFound if the user has no such task.

    `liveness` is how long a worker counts as alive after a heartbeat.
    """

    def work(tx: Connection) -> list[Life]:
        return read_lives(tx, user_id, [task_id], liveness=liveness)

    lives = db.atomically(work, one_instant=True, all_users=True)
    if not lives:
        raise TaskNotFound
    return life_model(lives[0])


def task_lives(
    db: Db,
    user_id: UserId,
    task_ids: Sequence[TaskId],
    span: Period,
    *,
    liveness: timedelta,
) -> dict[str, TaskLife]:
    """Return the lives of a user's tasks by the ids that users see, for a picture of one time span.

    What happened outside of the span has no exact causes.
    """
    if not task_ids:
        return {}

    def work(tx: Connection) -> list[Life]:
        return read_lives(tx, user_id, task_ids, liveness=liveness, span=span)

    lives = map(life_model, db.atomically(work, one_instant=True, all_users=True))
    return {life.id: life for life in lives}


def life_model(life: Life) -> TaskLife:
    """Return a task's life as the API returns it."""
    task = life.task
    shown = show_task(task["id"])
    is_over = task["finished_at"] is not None
    until = max(task["finished_at"] or task["now"], task["created_at"])
    facts = LifeFacts(
        shown,
        workers={run["epoch"]: run["agent"] for run in life.runs},
        outcomes={run["epoch"]: run["outcome"] for run in life.runs if run["outcome"]},
        errors={run["epoch"]: run["error_class"] for run in life.runs if run["error_class"]},
    )
    segments = [
        _segment(segment, facts, is_open=not is_over and segment.until >= until)
        for segment in life.segments
    ]
    return TaskLife(
        id=shown,
        title=task["title"],
        state=task["state"],
        created_at=task["created_at"],
        until=until,
        is_over=is_over,
        segments=segments,
        by_cause=totals((segment.kind, segment.code, segment.seconds) for segment in segments),
        made_at=task["now"],
    )


def totals(parts: Iterable[tuple[str, str, float]]) -> list[CauseTotal]:
    """Return how long each cause took, the longest first."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for kind, code, length in parts:
        seconds[kind, code] += length
    whole = sum(seconds.values())
    return [
        CauseTotal(
            kind=kind,
            code=code,
            label=label_of(kind, code),
            seconds=round(length, 6),
            share=round(length / whole, 6) if whole else 0.0,
        )
        for (kind, code), length in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def _segment(segment: Segment, facts: LifeFacts, *, is_open: bool) -> LifeSegment:
    hold = segment.hold
    is_wait = segment.kind is SegmentKind.WAITING
    worker = None if is_wait else facts.workers.get(segment.epoch)
    holder = None
    if hold is not None and hold.holder is not None:
        holder = SegmentHolder(kind=hold.holder.kind, id=hold.holder.id, title=hold.holder.title)
    elif worker is not None and segment.kind is not SegmentKind.ENDED:
        holder = SegmentHolder(kind="worker", id=worker)
    return LifeSegment(
        kind=segment.kind.value,
        code=segment.code.value,
        since=segment.since,
        until=segment.until,
        seconds=segment.length.total_seconds(),
        is_open=is_open,
        text=describe(segment, facts),
        holder=holder,
        clears_at=_clears_at(segment) if is_open else None,
        act=act_of(segment, facts.task) if is_open and is_wait else None,
        epoch=segment.epoch if not is_wait else None,
        outcome=facts.outcomes.get(segment.epoch)
        if segment.kind in {SegmentKind.RUNNING, SegmentKind.CHECKING}
        else None,
        also=[code.value for code in segment.also],
        details={} if hold is None else dict(hold.details),
    )


def _clears_at(segment: Segment) -> datetime | None:
    return None if segment.hold is None else segment.hold.clears_at
