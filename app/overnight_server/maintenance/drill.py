"""The broker drill: wipe Redis on purpose, and show that no task is lost.

A free worker fetches a message at once, and an idle listener needs no message. So the drill claims
some of its own tasks itself and publishes them to a queue that no worker reads: their messages are
certainly in Redis when it is wiped. Afterwards any worker may run them, like the other tasks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from uuid import uuid4

from overnight.models.enums import PlanTier
from overnight_server.control.users import Overrides, create_user, override_limits
from overnight_server.dispatch.celery_settings import agent_queue
from overnight_server.dispatch.publish import Publisher
from overnight_server.domain.ids import TaskId, UserId
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

POLL_SECONDS: Final = 0.5
# Every second task of a wave is held back, at most this many: they are claimed one by one.
MAX_HELD_BACK: Final = 100
CAPS: Final = Caps(max_pending_per_user=1_000_000, queue_max_size=100_000_000)
# The pool that no worker serves, and the capability that no worker offers.
UNSERVED: Final = "broker-drill"
Report = Callable[[str], None]


@dataclass(frozen=True)
class BrokerWipe:
    """One wipe of the broker: how many keys were deleted, and how many messages of the drill.

    Both were counted in the same Redis transaction; each message carried one claim.
    """

    keys: int
    messages: int


class DrillOutcome(StrEnum):
    """What a drill has shown."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class DrillReport:
    """The result of a drill.

    `resent` counts claims that were made again because their message was lost, `runs` the started
    runs, and `doubled` the tasks that were started more than once.
    """

    user: str
    submitted: int
    wipes: Sequence[BrokerWipe]
    lost: int
    doubled: int
    unfinished: int
    resent: int
    runs: int
    longest_seconds: float
    seconds: float

    @property
    def outcome(self) -> DrillOutcome:
        """Whether every task ran exactly once although messages were lost.

        If no message was in the broker at any wipe, the drill is inconclusive.
        """
        if self.lost or self.doubled or self.unfinished:
            return DrillOutcome.FAILED
        if self.resent and any(wipe.messages for wipe in self.wipes):
            return DrillOutcome.PASSED
        return DrillOutcome.INCONCLUSIVE

    @property
    def passed(self) -> bool:
        """Whether the drill passed."""
        return self.outcome is DrillOutcome.PASSED


def others_keys(settings: Settings) -> int:
    """Return how many keys in the broker's database belong to other programs."""
    with fail_fast_client(settings.redis_url or "") as client:
        ours = sum(1 for _ in client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        return int(client.dbsize()) - ours


def wipe(settings: Settings) -> tuple[int, int]:
    """Wipe the broker's database, or only this deployment's keys if other programs use it too.

    Return how many keys were deleted, and how many messages of the drill were among them.
    """
    with fail_fast_client(settings.redis_url or "") as client:
        ours = list(client.scan_iter(f"{settings.redis_key_prefix}*", count=1000))
        pipeline = client.pipeline(transaction=True)
        pipeline.llen(_queue(settings))
        if int(client.dbsize()) == len(ours):
            pipeline.flushdb()
        elif ours:
            pipeline.delete(*ours)
        messages, *_ = pipeline.execute()
        return len(ours), int(messages)


def lose_broker(
    front: Db, deployment: Db, settings: Settings, *, tasks: int, wipes: int, report: Report
) -> DrillReport:
    """Submit tasks in waves, wipe the broker after each wave, and wait until all tasks have ended.

    The tasks belong to a new user, who is kept with them as the record of the drill. `front` is a
    connection that may create users, `deployment` one that may claim.
    """
    began = time.monotonic()
    user_id, name = _create_user(front, tasks)
    tasks_made: list[TaskId] = []
    done: list[BrokerWipe] = []
    # The drill's own connection sends no wake-ups.
    waker = Waker(settings.redis_url or "", settings.redis_key_prefix)
    with closing(waker), closing(Publisher(settings)) as publisher, _deleting_queue(settings):
        for wave in range(wipes):
            size = tasks // wipes + (wave < tasks % wipes)
            numbers = range(len(tasks_made), len(tasks_made) + size)
            with _released(deployment, user_id):
                submitted = _submit(front, user_id, settings, numbers)
                tasks_made += submitted
                waker.wake()
                held_back = submitted[::2][:MAX_HELD_BACK]
                _publish_unserved(deployment, publisher, settings, user_id, held_back)
                done.append(BrokerWipe(*wipe(settings)))
            report(
                f"wave {wave + 1}: {size} tasks, then wiped with {done[-1].messages} messages"
                f" of the drill (keys: {done[-1].keys})"
            )
        _wait_until_ended(deployment, user_id, settings, report)
    return _report_of(deployment, name, tasks_made, done, time.monotonic() - began)


def _create_user(front: Db, tasks: int) -> tuple[UserId, str]:
    """Create a user who may run all tasks of the drill at once."""
    name = f"drill-{uuid4().hex[:8]}"
    user_id = create_user(front, name=name, plan=PlanTier.ENTERPRISE)
    override_limits(front, user_id, Overrides(concurrency=tasks))
    return user_id, name


def _submit(front: Db, user_id: UserId, settings: Settings, numbers: range) -> list[TaskId]:
    """Submit a wave; the tasks to hold back require a capability that no worker offers."""
    held_back = frozenset(numbers[::2][:MAX_HELD_BACK])
    tasks = [
        NewTask(
            f"drill {number}",
            settings.default_type,
            payload={"number": number},
            timeout_seconds=60,
            idempotency_key=f"drill-{number}",
            required_capabilities=(UNSERVED,) if number in held_back else (),
            tags=("drill",),
            source="drill",
        )
        for number in numbers
    ]
    return [task.task_id for task in submit_graph(front, user_id, tasks, CAPS)]


def _publish_unserved(
    deployment: Db,
    publisher: Publisher,
    settings: Settings,
    user_id: UserId,
    tasks: Sequence[TaskId],
) -> None:
    """Claim these tasks as a dispatcher would, and publish them to a queue that no worker reads."""
    claim_settings = _with_half_the_slots(ClaimSettings.from_settings(settings))
    claims = (
        claim_one(
            deployment,
            holder=UNSERVED,
            claim_settings=claim_settings,
            user_id=user_id,
            task_id=task_id,
            capabilities=[UNSERVED],
        )
        for task_id in tasks
    )
    unsent = publisher.send(UNSERVED, [claimed for claimed in claims if claimed is not None])
    if unsent:
        release(deployment, unsent, reason="broker")


def _with_half_the_slots(claim_settings: ClaimSettings) -> ClaimSettings:
    """Return settings with half of the slots: claims whose messages are lost occupy slots."""
    if claim_settings.slots_max is None:
        return claim_settings
    return replace(claim_settings, slots_max=max(claim_settings.slots_max // 2, 1))


@contextmanager
def _released(deployment: Db, user_id: UserId) -> Iterator[None]:
    """On exit, remove the capability, so that any worker may run the tasks that were held back."""
    try:
        yield
    finally:
        deployment.atomically(
            lambda tx: tx.execute(statement("drill_release"), {"user_id": user_id})
        )
        # A claim in progress may still skip the lane because of the removed capability.
        lanes.unskip_lanes(deployment)


@contextmanager
def _deleting_queue(settings: Settings) -> Iterator[None]:
    """On exit, delete the unserved queue, whose messages no worker would ever fetch."""
    try:
        yield
    finally:
        with fail_fast_client(settings.redis_url or "") as client:
            client.delete(_queue(settings))


def _queue(settings: Settings) -> str:
    return f"{settings.redis_key_prefix}{agent_queue(UNSERVED)}"


def _wait_until_ended(deployment: Db, user_id: UserId, settings: Settings, report: Report) -> None:
    """Wait for the last task; a lost message is published again once its claim has expired."""
    timeout = 2 * (settings.claim_ttl + settings.lease_seconds) + 60
    report(f"waiting for the rest, at most {timeout:.0f} s")
    deadline = time.monotonic() + timeout
    while _open_tasks(deployment, user_id) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _open_tasks(deployment: Db, user_id: UserId) -> int:
    params = {"user_id": user_id}
    return int(
        deployment.atomically(lambda tx: tx.execute(statement("drill_open"), params).scalar_one())
    )


def _report_of(
    deployment: Db, user: str, tasks: Sequence[TaskId], wipes: Sequence[BrokerWipe], seconds: float
) -> DrillReport:
    row = deployment.atomically(
        lambda tx: tx.execute(statement("drill_verdict"), {"tasks": list(tasks)}).one()
    )
    return DrillReport(
        user=user,
        submitted=len(tasks),
        wipes=tuple(wipes),
        lost=len(tasks) - row.found,
        doubled=row.doubled,
        unfinished=row.found - row.completed,
        resent=int(row.resent),
        runs=int(row.runs),
        longest_seconds=round(row.longest_seconds, 1),
        seconds=round(seconds, 1),
    )
