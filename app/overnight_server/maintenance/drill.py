"""A drill: lose the broker on purpose, and show that no task is lost with it.

Workers that are free fetch a message in the moment it is sent, and a slot that lingers needs none.
So the drill claims some of its own tasks itself, each by its id and nobody else's, and sends them
to a queue from which nobody fetches: their messages are in Redis for certain when it is wiped. Then
they may go anywhere, like the rest.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from uuid import uuid4

from overnight_server.control.users import Overrides, create_user, override_limits
from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.plans import PlanTier
from overnight_server.gate.claim import ClaimSettings, claim_one
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from overnight_server.outcome.settle import release
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement
from overnight_server.wakeups.redis_client import fail_fast_client
from overnight_server.wakeups.wake import Waker

LOOK_SECONDS: Final = 0.5
# Of a wave, every other task is caught, at most so many: they are claimed one by one.
CAUGHT_MAX: Final = 100
CAPS: Final = Caps(max_pending_per_user=1_000_000, queue_max_size=100_000_000)
# Where nobody fetches, and what a task asks for that no worker is to have until it was caught.
NOBODY: Final = "broker-drill"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wipe:
    """One loss of the broker: how many keys went, and how many messages of the drill's with them.

    They were counted in the same instant, a claim in each.
    """

    keys: int
    messages: int


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

        A broker that carried nothing whenever it was wiped has shown nothing.
        """
        if self.lost or self.doubled or self.unfinished:
            return Outcome.FAILED
        if self.resent and any(wipe.messages for wipe in self.wipes):
            return Outcome.PASSED
        return Outcome.INCONCLUSIVE

    @property
    def passed(self) -> bool:
        """Whether it has shown what it should."""
        return self.outcome is Outcome.PASSED


def others_keys(settings: Settings) -> int:
    """Count the keys in the broker's database that are not this deployment's."""
    with fail_fast_client(settings.redis_url or "") as client:
        ours = sum(1 for _ in client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        return int(client.dbsize()) - ours


def wipe(settings: Settings) -> tuple[int, int]:
    """Wipe the broker's database; if others use it too, only what is this deployment's.

    Return how many keys went, and how many messages of a drill were there in that instant.
    """
    with fail_fast_client(settings.redis_url or "") as client:
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
    front: Db, deployment: Db, settings: Settings, *, tasks: int, wipes: int, tell: Tell
) -> Drill:
    """Submit tasks in as many waves as there are wipes, wipe each away, and wait for all to end.

    The tasks belong to a user of their own, who stays behind with them as the record. `front` may
    make users, `deployment` may claim.
    """
    began = time.monotonic()
    user_id, name = _user(front, tasks)
    made: list[TaskId] = []
    lost: list[Wipe] = []
    waker = Waker(settings.redis_url or "", settings.redis_key_prefix)
    with closing(waker), closing(Publisher(settings)) as publisher, _tidied(settings):
        for wave in range(wipes):
            size = tasks // wipes + (wave < tasks % wipes)
            numbers = range(len(made), len(made) + size)
            with _released(deployment, user_id):
                these = _submit(front, user_id, settings, numbers)
                made += these
                waker.wake()
                _catch(deployment, publisher, settings, user_id, these[::2][:CAUGHT_MAX])
                lost.append(Wipe(*wipe(settings)))
            tell(
                f"wave {wave + 1}: {size} tasks, then wiped with {lost[-1].messages} messages"
                f" of the drill (keys: {lost[-1].keys})"
            )
        _wait(deployment, user_id, settings, tell)
    return _judge(deployment, name, made, lost, time.monotonic() - began)


def _user(front: Db, tasks: int) -> tuple[UserId, str]:
    """Make a user who may have all waves on their way at once."""
    name = f"drill-{uuid4().hex[:8]}"
    user_id = create_user(front, name=name, plan=PlanTier.ENTERPRISE)
    override_limits(front, user_id, Overrides(concurrency=tasks))
    return user_id, name


def _submit(front: Db, user_id: UserId, settings: Settings, numbers: range) -> list[TaskId]:
    """Submit a wave, of which no worker may have those that are to be caught."""
    to_catch = frozenset(numbers[::2][:CAUGHT_MAX])
    tasks = [
        NewTask(
            f"drill {number}",
            settings.default_type,
            payload={"number": number},
            timeout_seconds=60,
            idempotency_key=f"drill-{number}",
            required_capabilities=(NOBODY,) if number in to_catch else (),
            tags=("drill",),
            source="drill",
        )
        for number in numbers
    ]
    return [one.task_id for one in submit_graph(front, user_id, tasks, CAPS)]


def _catch(
    deployment: Db,
    publisher: Publisher,
    settings: Settings,
    user_id: UserId,
    tasks: Sequence[TaskId],
) -> None:
    """Claim these tasks as a dispatcher would, and send them to where nobody fetches."""
    claim_settings = _sparing(ClaimSettings.from_settings(settings))
    asked = (
        claim_one(
            deployment,
            holder=NOBODY,
            claim_settings=claim_settings,
            user_id=user_id,
            task_id=task_id,
            capabilities=[NOBODY],
        )
        for task_id in tasks
    )
    unsent = publisher.send(NOBODY, [claimed for claimed in asked if claimed is not None])
    if unsent:
        release(deployment, unsent, reason="broker")


def _sparing(claim_settings: ClaimSettings) -> ClaimSettings:
    """Leave half of all slots to others, because claims whose messages are lost hold theirs."""
    if claim_settings.slots_max is None:
        return claim_settings
    return replace(claim_settings, slots_max=max(claim_settings.slots_max // 2, 1))


@contextmanager
def _released(deployment: Db, user_id: UserId) -> Iterator[None]:
    """Afterwards, whatever happened, any worker may have what was to be caught."""
    try:
        yield
    finally:
        deployment.atomically(
            lambda tx: tx.execute(statement("drill_release"), {"user_id": user_id})
        )
        # A pass under way may still set the lane aside for what was asked for before.
        lanes.unskip_lanes(deployment)


@contextmanager
def _tidied(settings: Settings) -> Iterator[None]:
    """Afterwards, take away a message that no wipe has met; nobody would ever fetch it."""
    try:
        yield
    finally:
        with fail_fast_client(settings.redis_url or "") as client:
            client.delete(_queue(settings))


def _queue(settings: Settings) -> str:
    return f"{settings.redis_key_prefix}{agent_queue(NOBODY)}"


def _wait(deployment: Db, user_id: UserId, settings: Settings, tell: Tell) -> None:
    """Wait for the last task; a message that was lost is sent anew when its claim has expired."""
    patience = 2 * (settings.claim_ttl + settings.lease_seconds) + 60
    tell(f"waiting for the rest, at most {patience:.0f} s")
    deadline = time.monotonic() + patience
    while _open(deployment, user_id) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _open(deployment: Db, user_id: UserId) -> int:
    named = {"user_id": user_id}
    return int(
        deployment.atomically(lambda tx: tx.execute(statement("drill_open"), named).scalar_one())
    )


def _judge(
    deployment: Db, user: str, made: Sequence[TaskId], wipes: Sequence[Wipe], seconds: float
) -> Drill:
    row = deployment.atomically(
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
