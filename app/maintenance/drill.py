"""A drill: lose the broker on purpose, and show that no task is lost with it.

Workers that are free fetch a message in the moment it is sent, and a slot that lingers needs none.
So half of the drill's tasks are sent to a pool of its own, where nobody fetches: their messages
are in Redis for certain when it is wiped. Then they may go anywhere, like the other half.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import uuid4

from app.control.users import Overrides, create_user, override_limits
from app.dispatch.celery_settings import agent_queue
from app.domain.ids import TaskId, UserId
from app.domain.plans import PlanTier
from app.events.patience import impatient
from app.events.wake import Waker
from app.intake.submit import Caps, NewTask, submit_graph
from app.outcome.presence import AgentCard, join, leave
from app.settings import Settings
from app.store.db import Db
from app.store.statements import statement

LOOK_SECONDS: Final = 0.1
# How long a wave may take to be on its way before the broker is wiped all the same.
WAVE_SECONDS: Final = 10.0
CAPS: Final = Caps(max_pending_per_user=1_000_000, queue_max_size=100_000_000)
# The pool in which nobody fetches, and what a task must ask for to be sent there.
POOL: Final = "broker-drill"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wipe:
    """One loss of the broker: how many keys went, and what of the drill's was among them.

    `messages` were counted in the same instant; `claims_on_the_way` had not begun just before.
    """

    keys: int
    messages: int
    claims_on_the_way: int


class Outcome(StrEnum):
    """What a drill has shown."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Drill:
    """What a drill came to.

    `resent` counts claims whose message was lost and that were made anew, `runs` what began, and
    `doubled` the tasks that began more than once.
    """

    user: str
    submitted: int
    wipes: Sequence[Wipe]
    lost: int
    doubled: int
    unfinished: int
    resent: int
    runs: int
    longest_seconds: float
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """Whether every task ran once to its end, although its messages were lost.

        A broker that carried nothing when it was wiped has shown nothing.
        """
        if self.lost or self.doubled or self.unfinished:
            return Outcome.FAILED
        if self.resent and all(wipe.messages for wipe in self.wipes):
            return Outcome.PASSED
        return Outcome.INCONCLUSIVE

    @property
    def passed(self) -> bool:
        """Whether it has shown what it should."""
        return self.outcome is Outcome.PASSED


def others_keys(settings: Settings) -> int:
    """Count the keys in the broker's database that are not this house's."""
    with impatient(settings.redis_url or "") as client:
        ours = sum(1 for _ in client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        return int(client.dbsize()) - ours


def wipe(settings: Settings) -> tuple[int, int]:
    """Wipe the broker's database; if others use it too, only what is this house's.

    Return how many keys went, and how many messages of a drill were there in that instant.
    """
    with impatient(settings.redis_url or "") as client:
        ours = list(client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        at_once = client.pipeline(transaction=True)
        at_once.llen(_queue(settings))
        if int(client.dbsize()) == len(ours):
            at_once.flushdb()
        elif ours:
            at_once.delete(*ours)
        messages, *_ = at_once.execute()
        return len(ours), int(messages)


def lose_broker(
    front: Db, house: Db, settings: Settings, *, tasks: int, wipes: int, tell: Tell
) -> Drill:
    """Submit tasks in as many waves as there are wipes, wipe each away, and wait for all to end.

    The tasks belong to a user of their own, who stays behind with them as the record. `front` may
    make users, `house` may announce workers.
    """
    began = time.monotonic()
    user_id, name = _user(front, tasks)
    made: list[TaskId] = []
    lost: list[Wipe] = []
    waker = Waker(settings.redis_url or "", settings.redis_key_prefix)
    try:
        for wave in range(wipes):
            size = tasks // wipes + (wave < tasks % wipes)
            with _nobody_fetching(house, user_id, name, settings, size):
                made += _submit(front, user_id, settings, range(len(made), len(made) + size))
                lost.append(_lose(house, user_id, settings, waker))
            tell(
                f"wave {wave + 1}: {size} tasks, {lost[-1].keys} keys wiped, among them "
                f"{lost[-1].messages} messages with {lost[-1].claims_on_the_way} claims"
            )
        _wait(house, user_id, settings, tell)
    finally:
        waker.close()
        _tidy(settings)
    return _judge(house, name, made, lost, time.monotonic() - began)


def _user(front: Db, tasks: int) -> tuple[UserId, str]:
    """Make a user who may have all waves on their way at once."""
    name = f"drill-{uuid4().hex[:8]}"
    user_id = create_user(front, name=name, plan=PlanTier.ENTERPRISE)
    override_limits(front, user_id, Overrides(concurrency=tasks))
    return user_id, name


@contextmanager
def _nobody_fetching(
    house: Db, user_id: UserId, name: str, settings: Settings, slots: int
) -> Iterator[None]:
    """Offer slots behind which nobody is; afterwards what was meant for them may go anywhere."""
    card = AgentCard(
        f"{POOL}:{name}", POOL, capabilities=[POOL], slots=slots, types=[settings.default_type]
    )
    join(house, card)
    try:
        yield
    finally:
        house.atomically(lambda tx: tx.execute(statement("drill_release"), {"user_id": user_id}))
        leave(house, card.id)


def _submit(front: Db, user_id: UserId, settings: Settings, numbers: range) -> list[TaskId]:
    tasks = [
        NewTask(
            f"drill {number}",
            settings.default_type,
            payload={"number": number},
            timeout_seconds=60,
            idempotency_key=f"drill-{number}",
            required_capabilities=(POOL,) if (number - numbers.start) % 2 == 0 else (),
            tags=("drill",),
            source="drill",
        )
        for number in numbers
    ]
    return [one.task_id for one in submit_graph(front, user_id, tasks, CAPS)]


def _lose(house: Db, user_id: UserId, settings: Settings, waker: Waker) -> Wipe:
    """Wait until the messages that nobody fetches are on their way, then lose them."""
    deadline = time.monotonic() + WAVE_SECONDS
    while True:
        waker.nudge()
        time.sleep(LOOK_SECONDS)
        to_come, on_the_way = _held(house, user_id)
        if (not to_come and _messages(settings)) or time.monotonic() > deadline:
            keys, messages = wipe(settings)
            return Wipe(keys, messages, on_the_way)


def _messages(settings: Settings) -> int:
    with impatient(settings.redis_url or "") as client:
        return int(client.llen(_queue(settings)))


def _tidy(settings: Settings) -> None:
    """Take away a message that was sent just behind a wipe; nobody would ever fetch it."""
    with impatient(settings.redis_url or "") as client:
        client.delete(_queue(settings))


def _queue(settings: Settings) -> str:
    return f"{settings.redis_key_prefix}{agent_queue(POOL)}"


def _wait(house: Db, user_id: UserId, settings: Settings, tell: Tell) -> None:
    """Wait for the last task; a message that was lost is sent anew when its claim has expired."""
    patience = 2 * (settings.claim_ttl + settings.lease_seconds) + 60
    tell(f"waiting for the rest, at most {patience:.0f} s")
    deadline = time.monotonic() + patience
    while _open(house, user_id) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS * 5)


def _open(house: Db, user_id: UserId) -> int:
    named = {"user_id": user_id}
    return int(house.atomically(lambda tx: tx.execute(statement("drill_open"), named).scalar_one()))


def _held(house: Db, user_id: UserId) -> tuple[int, int]:
    named = {"user_id": user_id, "pool": POOL}
    row = house.atomically(lambda tx: tx.execute(statement("drill_held"), named).one())
    return row.to_come, row.on_the_way


def _judge(
    house: Db, user: str, made: Sequence[TaskId], wipes: Sequence[Wipe], seconds: float
) -> Drill:
    row = house.atomically(
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
        runs=int(row.runs),
        longest_seconds=round(row.longest_seconds, 1),
        seconds=round(seconds, 1),
    )
