"""A night of one user: what each slot of the plan did in each minute, and why it was empty."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, TextClause

from overnight.errors import NightNotFound, UserNotFound
from overnight.models.nights import (
    NightMarker,
    NightSlot,
    NightTally,
    SlotPiece,
    UserNight,
    WaitingCount,
)
from overnight_server.domain.ids import UserId, show_task
from overnight_server.domain.life import SegmentKind, clip
from overnight_server.domain.life_words import LABELS
from overnight_server.domain.night_slots import (
    SlotTime,
    WaitingTasks,
    allot,
    fill_slots,
    merge_runs,
    open_times,
)
from overnight_server.domain.windows import NightWindow, latest_night, night_bounds
from overnight_server.insight.life_facts import GRACE, Life, Period, UserPeriod, read_lives
from overnight_server.insight.task_life import totals
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.store.windows import window_of

Row = Mapping[str, Any]
# Of a night with more tasks that ended, or that are open, only some are read; the causes of idle
# slots may then be unknown. So many of the ended are listed, and the open ones that are read are
# at least as many as the plan has slots.
MAX_TASKS = 250
SOME_ENDED, SOME_OPEN = 100, 100
# Of a night with more runs the slots show only when they were busy: runs that follow each other
# closely are one.
MAX_RUNS = 600
MAX_PIECES = 400
MAX_LOST = 20
# The number of waiting tasks is given at so many evenly spaced moments.
MOMENTS = 96
LAST_DAY = timedelta(days=1)


@dataclass(frozen=True)
class NightFacts:
    """A night, and what the report needs besides."""

    night: UserNight
    lives: Sequence[Life]
    user: Row
    until: datetime


def night(db: Db, user_id: UserId, day: date | None = None, *, liveness: timedelta) -> UserNight:
    """Return a night of a user: the one that opened last, or that of a local day.

    Raises NightNotFound for a night that has not begun. `liveness` is how long a worker counts
    as alive after a heartbeat.
    """

    def work(tx: Connection) -> NightFacts:
        return read_night(tx, user_id, day, liveness=liveness)

    return db.atomically(work, one_instant=True, all_users=True).night


def read_night(
    tx: Connection, user_id: UserId, day: date | None, *, liveness: timedelta
) -> NightFacts:
    """Return a night with the lives of its tasks up to the beginning of the next night."""
    user = _one(tx, statement("night_user"), user_id=user_id)
    if user is None:
        raise UserNotFound
    now: datetime = user["now"]
    window = window_of(user)
    chosen = day or latest_night(window, now)
    opens_at, closes_at, next_opens_at = _bounds(window, chosen)
    if opens_at > now:
        raise NightNotFound(str(chosen))
    until, report_until = min(closes_at, now), min(next_opens_at, now)
    period = UserPeriod.read(
        tx,
        user_id,
        (opens_at, report_until),
        longest=timedelta(seconds=user["max_task_seconds"]),
        liveness=liveness,
    )
    ids, is_partial = _task_ids(tx, user, opens_at, report_until)
    lives = read_lives(tx, user_id, ids, liveness=liveness, period=period)
    is_partial = is_partial or period.is_partial
    waiting = WaitingTasks((life.segments for life in lives), opens_at, until)
    longest = timedelta(seconds=user["max_task_seconds"]) + GRACE
    held_runs = _runs_in(period.runs, opens_at, until)
    is_busy = len(held_runs) > MAX_RUNS
    shown = allot(
        held_runs
        if is_busy
        else _runs_in(_runs(tx, user_id, (opens_at, until), longest), opens_at, until)
    )
    open_slots = _open_slots(period, opens_at, until)
    slots = fill_slots(
        merge_runs(shown, (until - opens_at) / MAX_PIECES) if is_busy else shown,
        open_slots,
        waiting,
        is_partial=is_partial,
    )
    markers = list(_markers(tx, user_id, period, (opens_at, until), longest))
    plan_seconds = sum((end - begin).total_seconds() * count for begin, end, count in open_slots)
    work = sum(part.seconds for slot in slots for part in slot if part.run is not None)
    idle = [part for slot in slots for part in slot if part.run is None]
    held = sum(
        (end - begin).total_seconds()
        for open_at, close_at, _ in open_slots
        for begin, end in clip([run[:2] for run in held_runs], open_at, close_at)
    )
    return NightFacts(
        UserNight(
            date=chosen,
            zone="UTC" if window is None else window.zone,
            opens_at=opens_at,
            closes_at=closes_at,
            until=until,
            is_over=now >= closes_at,
            next_opens_at=next_opens_at,
            has_window=window is not None,
            tally=_tally(tx, user, (opens_at, report_until), period),
            slots=[
                NightSlot(number=number, pieces=[_piece(part, now) for part in slot])
                for number, slot in enumerate(slots, start=1)
            ],
            plan_seconds=round(plan_seconds, 6),
            work_seconds=round(work, 6),
            idle_seconds=round(sum(part.seconds for part in idle), 6),
            beyond_plan_seconds=round(max(0.0, held - work), 6),
            idle_by_cause=totals(
                (SegmentKind.WAITING.value, part.code, part.seconds) for part in idle
            ),
            waiting=list(_waiting_counts(waiting, opens_at, until)),
            markers=sorted(markers, key=lambda one: one.at),
            is_partial=is_partial,
            made_at=now,
        ),
        lives,
        user,
        report_until,
    )


def _bounds(window: NightWindow | None, day: date) -> tuple[datetime, datetime, datetime]:
    """Return when a night opens and closes and when the next one opens, in UTC."""
    try:
        opens_at, closes_at, next_opens_at = night_bounds(window, day)
    except OverflowError:
        raise NightNotFound(str(day)) from None
    return opens_at.astimezone(UTC), closes_at.astimezone(UTC), next_opens_at.astimezone(UTC)


def _task_ids(
    tx: Connection, user: Row, since: datetime, until: datetime
) -> tuple[list[UUID], bool]:
    """Return the tasks to read, and whether there are more."""
    period = {"user_id": user["user_id"], "from_at": since, "to_at": until}
    rows = tx.execute(statement("night_tasks"), {**period, "limit": MAX_TASKS + 1}).all()
    ended = [row.id for row in rows if not row.is_open]
    still_open = [row.id for row in rows if row.is_open]
    is_partial = max(len(ended), len(still_open)) > MAX_TASKS
    if len(ended) > MAX_TASKS:
        ended = ended[: min(SOME_ENDED, MAX_TASKS)]
    if len(still_open) > MAX_TASKS:
        still_open = still_open[: min(max(SOME_OPEN, user["max_active"]), MAX_TASKS)]
    return ended + still_open, is_partial


def _runs(tx: Connection, user_id: UserId, period: Period, longest: timedelta) -> list[Row]:
    """Return the newest runs of a period with their titles, as many as are shown."""
    params = {"user_id": user_id, "from_at": period[0], "to_at": period[1]}
    limits = {"longest": longest.total_seconds(), "limit": MAX_RUNS}
    rows = tx.execute(statement("night_runs"), {**params, **limits}).mappings()
    return [dict(row) for row in rows]


def _runs_in(
    runs: Iterable[Row], since: datetime, until: datetime
) -> list[tuple[datetime, datetime, Row]]:
    return [
        (begin, end, run)
        for run in runs
        for begin, end in clip([(run["claimed_at"], run["ended_at"])], since, until)
    ]


def _open_slots(
    period: UserPeriod, since: datetime, until: datetime
) -> list[tuple[datetime, datetime, int]]:
    """Return the open parts of a night with the number of slots that the plan had in each."""
    closed = [(row["since"], row["until"] or until) for row in period.lane if row["window_closed"]]
    return [
        (begin, end, row["max_active"])
        for row in period.lane
        for open_at, close_at in open_times(since, until, closed)
        for begin, end in clip([(row["since"], row["until"])], open_at, close_at)
    ]


def _tally(tx: Connection, user: Row, night_time: Period, period: UserPeriod) -> NightTally:
    """Count the tasks of a night; what is open now is counted by the lane."""
    since, until = night_time
    user_id = user["user_id"]
    ends = _one(tx, statement("night_ends"), user_id=user_id, from_at=since, to_at=until) or {}
    if until == user["now"]:
        running, left = user["active"], user["active"] + user["waiting"]
    else:
        left = (_one(tx, statement("night_left"), user_id=user_id, to_at=until) or {})["open"]
        held = (run for run in period.runs if run["claimed_at"] <= until)
        running = sum(1 for run in held if run["ended_at"] is None or run["ended_at"] > until)
        running = min(running, left)
    return NightTally(
        total=sum(ends.values()) + left, running=running, waiting=left - running, **ends
    )


def _piece(part: SlotTime[Row], now: datetime) -> SlotPiece:
    run = part.run
    shared = {"since": part.since, "until": part.until, "seconds": part.seconds}
    if run is None:
        text = f"empty: {LABELS.get(part.code, part.code)}"
        return SlotPiece(**shared, is_idle=True, code=part.code, text=text)
    if "task_id" not in run:
        return SlotPiece(**shared, is_idle=False, code="completed", text="many runs")
    is_running = run["ended_at"] is None or run["ended_at"] > now
    code = "running" if is_running else run["outcome"]
    title = run["title"]
    return SlotPiece(
        **shared,
        is_idle=False,
        code=code,
        text=f"{title}: {code.replace('_', ' ')}",
        task_id=show_task(run["task_id"]),
        title=title,
        epoch=run["epoch"],
    )


def _waiting_counts(
    waiting: WaitingTasks, since: datetime, until: datetime
) -> Iterator[WaitingCount]:
    step = (until - since) / MOMENTS
    if not step:
        return
    for number in range(MOMENTS):
        at = since + step * number
        yield WaitingCount(at=at, by_code=dict(waiting.at(at)))


def _markers(
    tx: Connection, user_id: UserId, period: UserPeriod, night_time: Period, longest: timedelta
) -> Iterator[NightMarker]:
    """Yield lost workers and pauses within the night."""
    since, until = night_time
    params = {"user_id": user_id, "from_at": since, "to_at": until}
    limits = {"longest": longest.total_seconds(), "limit": MAX_LOST}
    for lost in tx.execute(statement("night_lost"), {**params, **limits}):
        text = f"a worker was lost; “{lost.title}” was taken back"
        yield NightMarker(at=lost.ended_at, kind="worker_lost", text=text)
    for row in period.pauses:
        what = {"user": "your tasks were", "all": "everything was"}.get(
            row["scope"], f"the pool {row['target']} was"
        )
        if since <= row["since"] <= until:
            yield NightMarker(
                at=row["since"], kind="paused", text=f"{what} paused by {row['paused_by_name']}"
            )
        if row["until"] is not None and since <= row["until"] <= until:
            yield NightMarker(at=row["until"], kind="resumed", text=f"{what} resumed")


def _one(tx: Connection, query: TextClause, **params: object) -> dict[str, Any] | None:
    row = tx.execute(query, params).mappings().one_or_none()
    return None if row is None else dict(row)
