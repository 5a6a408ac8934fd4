"""Fairness report: how long each user waited, what share of the slots each got, who starves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, RowMapping, func, select

from overnight.models.admin import Fairness, StarvingUser, UserShare
from overnight_server.domain.fairness_report import TaskInterval, fairness_of_users, jain
from overnight_server.gate.claim import ClaimSettings, pool_capacity, pool_params
from overnight_server.insight.hold_history import HoldHistory
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# A report reads at most this many runs; a busier period is shortened.
MOST_STARTS = 50_000
MOST_WAITING = 10_000
MOST_STARVING = 100
# How many lanes that wait for too long are judged; a lane whose tasks no worker can run is one too.
MOST_JUDGED = 2_000
DAY = timedelta(hours=24)
STARVING_AFTER = timedelta(minutes=15)
SHORTEST_SECONDS = 1.0


def fairness(
    db: Db,
    *,
    claim_settings: ClaimSettings,
    since: timedelta = DAY,
    starving_after: timedelta = STARVING_AFTER,
) -> Fairness:
    """Return the report of the last `since`; `since_at` is later if the period was shortened.

    `jain` is Jain's index over the users' service: what each user got of an even share of the
    slots while the user had work for them. 1 means perfectly even.
    """
    facts = db.atomically(
        lambda tx: _read_facts(tx, claim_settings, since.total_seconds(), starving_after)
    )
    # Not in the transaction: for many users this takes longer than a transaction may be idle.
    return _report(facts, since.total_seconds())


@dataclass(frozen=True)
class _FairnessFacts:
    """What a report is computed from; `seconds` is the period that could be read."""

    seconds: float
    now: datetime
    lanes: Mapping[str, Any]
    spells: Sequence[TaskInterval]
    starving: Sequence[StarvingUser]


def _read_facts(
    tx: Connection, claim_settings: ClaimSettings, seconds: float, starving_after: timedelta
) -> _FairnessFacts:
    # This query uses the BRIN index on attempts, whose rows are stored in the order of time. A
    # BRIN index needs bitmap scans, which PLANNER_OPTIONS disables for this role.
    tx.execute(select(func.set_config("enable_bitmapscan", "on", True)))  # noqa: FBT003 - SQL
    seconds = _readable_period(tx, seconds)
    lanes = {row.name: row for row in tx.execute(statement("lane_limits"))}
    now: datetime = tx.execute(select(func.clock())).scalar_one()
    starving = starving_users(tx, claim_settings, starving_after).values()
    # Last, because its history of holds is computed while the transaction is open.
    liveness_seconds = claim_settings.liveness.total_seconds()
    spells = _spells(tx, seconds, now.timestamp(), liveness_seconds)
    return _FairnessFacts(seconds, now, lanes, spells, list(starving))


def _report(facts: _FairnessFacts, wanted_seconds: float) -> Fairness:
    seconds, lanes, spells, now = facts.seconds, facts.lanes, facts.spells, facts.now
    limits = {name: row.max_active for name, row in lanes.items()}
    until = now.timestamp()
    # The report begins with the first task: the period is sampled at a few hundred moments,
    # and a short run in a long empty period would fall between two of them.
    first = min((spell.ready for spell in spells), default=until - seconds)
    begun = max(until - seconds, min(first, until - SHORTEST_SECONDS))
    users = [
        UserShare(
            **{
                **vars(user),
                # Only the head of a long queue was read; the lane has the true count.
                "waiting": lanes[user.user].ready if user.user in lanes else user.waiting,
            }
        )
        for user in fairness_of_users(spells, limits, begun, until)
    ]
    return Fairness(
        since_at=now - timedelta(seconds=until - begun),
        until_at=now,
        is_shortened=seconds < wanted_seconds,
        starts=sum(user.started for user in users),
        longest_wait_seconds=max((user.longest_wait for user in users), default=0.0),
        jain=jain([user.service for user in users if user.service is not None]),
        users=users,
        starving=sorted(facts.starving, key=lambda user: -user.waited_seconds)[:MOST_STARVING],
    )


def _readable_period(tx: Connection, seconds: float) -> float:
    """Return the requested period, halved until it has at most MOST_STARTS runs."""
    while tx.execute(statement("count_starts"), {"seconds": seconds}).scalar_one() > MOST_STARTS:
        seconds /= 2
    return seconds


def _spells(
    tx: Connection, seconds: float, until: float, liveness_seconds: float
) -> list[TaskInterval]:
    """Return every run of the period and every waiting task, with the times it was held."""
    started = tx.execute(statement("starts_since"), {"seconds": seconds}).mappings().all()
    waiting = tx.execute(statement("waiting_now"), {"limit": MOST_WAITING}).mappings().all()
    first = min((row["ready"] for row in (*started, *waiting)), default=until)
    history = HoldHistory.read(tx, first, liveness_seconds)
    return [
        *(
            TaskInterval(
                row["name"],
                row["ready"],
                row["start"],
                row["end"],
                _locks(row),
                held=history.held(row, row["ready"], row["start"]),
            )
            for row in started
        ),
        *(
            TaskInterval(
                row["name"],
                row["ready"],
                None,
                None,
                _locks(row),
                is_owed=row["is_owed"],
                held=((row["ready"], until),)
                if row["asks_for_budget"]
                else history.held(row, row["ready"], until),
            )
            for row in waiting
        ),
    ]


def _locks(row: RowMapping) -> tuple[str, ...]:
    return tuple(row["locks"] or ())


def starving_users(
    tx: Connection, claim_settings: ClaimSettings, starving_after: timedelta = STARVING_AFTER
) -> dict[UUID, StarvingUser]:
    """Return users whom a pool of workers could serve and has not served for too long.

    Every lane is judged as a claim would judge it, also lanes that the pool skips: a lane that is
    skipped by mistake would otherwise wait without anybody noticing.
    """
    starving: dict[UUID, StarvingUser] = {}
    for pool in tx.execute(statement("open_pools")).scalars().all():
        row = tx.execute(statement("pool_capacity"), pool_params(pool, claim_settings)).one()
        capacity = pool_capacity(row, claim_settings)
        if not capacity.agents:
            continue
        rows = tx.execute(
            statement("starving_lanes"),
            {
                "pool": pool,
                "free": capacity.free,
                "capabilities": list(capacity.capabilities),
                "types": None if capacity.types is None else list(capacity.types),
                "usd_left": capacity.usd_left,
                "starving_after": starving_after.total_seconds(),
                "look": MOST_JUDGED,
            },
        )
        for lane in rows:
            starving[lane.user_id] = StarvingUser(user=lane.name, waited_seconds=lane.waited)
    return starving
