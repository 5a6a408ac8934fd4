"""The receipts of fairness: who waited how long for what share, and who is waiting too long."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, func, select

from overnight_server.domain.fairness import Receipt, Spell, jain, receipts
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# A report reads no more than this; a deployment that did more gets a shorter period.
MOST_STARTS = 50_000
MOST_WAITING = 10_000
MOST_STARVING = 100
DAY = timedelta(hours=24)
PATIENCE = timedelta(minutes=15)
SHORTEST = 1.0


@dataclass(frozen=True)
class Starving:
    """A user with ready work and free room who is kept waiting while others are served."""

    user: str
    waited_seconds: float


@dataclass(frozen=True)
class FairnessView:
    """What `overnight fairness` prints; `since_at` may be later than was asked for.

    `jain` is Jain's index over the users' service: what each got of an even share of the slots
    in use, while they had work that could use them. 1 is perfectly even.
    """

    since_at: datetime
    until_at: datetime
    is_shortened: bool
    starts: int
    longest_wait_seconds: float
    jain: float | None
    users: list[Receipt]
    starving: list[Starving]


def fairness(
    db: Db, *, liveness: timedelta, since: timedelta = DAY, patience: timedelta = PATIENCE
) -> FairnessView:
    """Return the receipts of the last while; reads the period's runs, never the history."""

    def work(tx: Connection) -> FairnessView:
        # Claims lie in the table in the order of time, and the index that knows it says only
        # where: connections are set up for looking up single rows.
        tx.execute(select(func.set_config("enable_bitmapscan", "on", True)))  # noqa: FBT003 - SQL
        seconds = _within_reach(tx, since.total_seconds())
        lanes = {row.name: row for row in tx.execute(statement("lane_limits"))}
        limits = {name: row.max_active for name, row in lanes.items()}
        spells = _spells(tx, seconds)
        now: datetime = tx.execute(select(func.clock())).scalar_one()
        until = now.timestamp()
        # Before the first task there was nothing to share: looked at in a few hundred moments, a
        # short life would fall between two of them.
        first = min((spell.ready for spell in spells), default=until - seconds)
        begun = max(until - seconds, min(first, until - SHORTEST))
        found = [
            # Of a long queue only its head was read.
            replace(one, waiting=lanes[one.user].ready if one.user in lanes else one.waiting)
            for one in receipts(spells, limits, begun, until)
        ]
        return FairnessView(
            since_at=now - timedelta(seconds=until - begun),
            until_at=now,
            is_shortened=seconds < since.total_seconds(),
            starts=sum(receipt.started for receipt in found),
            longest_wait_seconds=max((receipt.longest_wait for receipt in found), default=0.0),
            jain=jain([one.service for one in found if one.service is not None]),
            users=found,
            starving=_starving(tx, patience, liveness),
        )

    return db.atomically(work)


def _within_reach(tx: Connection, seconds: float) -> float:
    """Return the period asked for, halved until its runs can be read."""
    while tx.execute(statement("count_starts"), {"seconds": seconds}).scalar_one() > MOST_STARTS:
        seconds /= 2
    return seconds


def _spells(tx: Connection, seconds: float) -> list[Spell]:
    begun = tx.execute(statement("starts_since"), {"seconds": seconds}).mappings()
    waiting = tx.execute(statement("waiting_now"), {"limit": MOST_WAITING}).mappings()
    return [
        *(Spell(row["name"], row["ready"], row["start"], row["end"], _locks(row)) for row in begun),
        *(
            Spell(row["name"], row["ready"], None, None, _locks(row), is_owed=row["is_owed"])
            for row in waiting
        ),
    ]


def _locks(row: RowMapping) -> tuple[str, ...]:
    return tuple(row["locks"] or ())


def _starving(tx: Connection, patience: timedelta, liveness: timedelta) -> list[Starving]:
    rows = tx.execute(
        statement("starving_lanes"),
        {
            "patience": patience.total_seconds(),
            "liveness": liveness.total_seconds(),
            "limit": MOST_STARVING,
        },
    )
    return [Starving(row.name, row.waited) for row in rows]
