"""A drill: lose the broker on purpose, and show that no task is lost with it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from app.control.users import create_user
from app.domain.ids import TaskId, UserId
from app.domain.plans import PlanTier
from app.events.patience import impatient
from app.events.wake import Waker
from app.intake.submit import Caps, NewTask, submit_graph
from app.settings import Settings
from app.store.db import Db
from app.store.statements import statement

LOOK_SECONDS: Final = 0.05
# How long a wave may take to be on its way before the broker is wiped all the same.
WAVE_SECONDS: Final = 10.0
CAPS: Final = Caps(max_pending_per_user=1_000_000, queue_max_size=100_000_000)
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wipe:
    """One loss of the broker: how many keys went, and how many claims had not begun just then."""

    keys: int
    claims_on_the_way: int


@dataclass(frozen=True)
class Drill:
    """What a drill came to. `resent` counts claims whose message was lost and sent anew."""

    user: str
    submitted: int
    wipes: Sequence[Wipe]
    lost: int
    doubled: int
    unfinished: int
    resent: int
    longest_seconds: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every task was completed, once."""
        return self.lost == self.doubled == self.unfinished == 0


def others_keys(settings: Settings) -> int:
    """Count the keys in the broker's database that are not this house's."""
    with impatient(settings.redis_url or "") as client:
        ours = sum(1 for _ in client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        return int(client.dbsize()) - ours


def wipe(settings: Settings) -> int:
    """Wipe the broker's database; if others use it too, only what is this house's."""
    with impatient(settings.redis_url or "") as client:
        ours = list(client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        if int(client.dbsize()) == len(ours):
            client.flushdb()
        elif ours:
            client.delete(*ours)
        return len(ours)


def lose_broker(db: Db, settings: Settings, *, tasks: int, wipes: int, tell: Tell) -> Drill:
    """Submit tasks in as many waves as there are wipes, wipe each away, and wait for all to end.

    The tasks belong to a user of their own, who stays behind with them as the record.
    """
    began = time.monotonic()
    user_id, name = _user(db)
    made: list[TaskId] = []
    lost: list[Wipe] = []
    waker = Waker(settings.redis_url or "", settings.redis_key_prefix)
    try:
        for wave in range(wipes):
            size = tasks // wipes + (wave < tasks % wipes)
            made += _submit(db, user_id, settings, range(len(made), len(made) + size))
            waker.nudge()
            lost.append(_lose(db, user_id, settings))
            tell(
                f"wave {wave + 1}: {size} tasks, {lost[-1].keys} keys wiped, "
                f"{lost[-1].claims_on_the_way} claims on their way"
            )
        _wait(db, user_id, settings, tell)
    finally:
        waker.close()
    return _judge(db, name, made, lost, time.monotonic() - began)


def _user(db: Db) -> tuple[UserId, str]:
    name = f"drill-{uuid4().hex[:8]}"
    return create_user(db, name=name, plan=PlanTier.ENTERPRISE), name


def _submit(db: Db, user_id: UserId, settings: Settings, numbers: range) -> list[TaskId]:
    tasks = [
        NewTask(
            f"drill {number}",
            settings.default_type,
            payload={"number": number},
            timeout_seconds=60,
            idempotency_key=f"drill-{number}",
            tags=("drill",),
            source="drill",
        )
        for number in numbers
    ]
    return [one.task_id for one in submit_graph(db, user_id, tasks, CAPS)]


def _lose(db: Db, user_id: UserId, settings: Settings) -> Wipe:
    """Wait until messages are on their way, then lose them."""
    deadline = time.monotonic() + WAVE_SECONDS
    while time.monotonic() < deadline:
        still_open, on_the_way = _standing(db, user_id)
        if on_the_way or not still_open:  # or they were too quick to be caught
            break
        time.sleep(LOOK_SECONDS)
    return Wipe(wipe(settings), on_the_way)


def _wait(db: Db, user_id: UserId, settings: Settings, tell: Tell) -> None:
    """Wait for the last task; a message that was lost is sent anew when its claim has expired."""
    patience = 2 * (settings.claim_ttl + settings.lease_seconds) + 60
    tell(f"waiting for the rest, at most {patience:.0f} s")
    deadline = time.monotonic() + patience
    while _standing(db, user_id)[0] and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS * 10)


def _standing(db: Db, user_id: UserId) -> tuple[int, int]:
    row = db.atomically(
        lambda tx: tx.execute(statement("drill_standing"), {"user_id": user_id}).one()
    )
    return row.open, row.on_the_way


def _judge(
    db: Db, user: str, made: Sequence[TaskId], wipes: Sequence[Wipe], seconds: float
) -> Drill:
    row = db.atomically(
        lambda tx: tx.execute(statement("drill_verdict"), {"tasks": list(made)}).one()
    )
    return Drill(
        user=user,
        submitted=len(made),
        wipes=tuple(wipes),
        lost=len(made) - row.found,
        doubled=row.doubled,
        unfinished=row.found - row.completed,
        resent=int(row.resent),
        longest_seconds=round(row.longest_seconds, 1),
        seconds=round(seconds, 1),
    )
