"""Notifiers that are killed: every event arrives, signed, in order, and at its own user."""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Connection

from overnight_server.domain.ids import UserId, show_task
from overnight_server.domain.notifications import NotificationKind
from overnight_server.domain.webhook_signatures import verify
from overnight_server.store.notifications import record_notification
from tests.support import logins
from tests.support.deployment import Deployment
from tests.support.invariants import violations
from tests.support.notifications import add_channel
from tests.support.receivers import FAST, HttpReceiver, http_receiver
from tests.support.wait import wait_until
from tests.support.workers import SOURCES, environment, worker_settings

SECRETS = [f"whsec_{letter * 32}" for letter in "ABCDEFGHIJ"]
USERS = len(SECRETS)
TASKS = 5
# What receivers do besides accepting, once in so many requests.
MOODS = ("500", "close", "302", "hang", "429")


@contextmanager
def notifiers(url: str, folder: Path) -> Iterator[Callable[[], None]]:
    """Run two notifiers; the function that is given kills one of them and starts another."""
    settings = worker_settings(url, "redis://127.0.0.1:1/0")
    running: list[subprocess.Popen[bytes]] = []
    numbers = count(1)

    def start() -> None:
        with (folder / f"notifier-{next(numbers)}.log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "overnight_server.cli.main", "notifier"],
                    env=environment(settings)
                    | FAST
                    | {"OVERNIGHT_DATABASE_URL": logins.for_service(url), "PYTHONPATH": SOURCES}
                    | {"OVERNIGHT_DELIVERY_RETRY_DELAY": "0.1"},
                    cwd=folder,
                    stdout=log,
                    stderr=log,
                )
            )

    def replace() -> None:
        running[0].kill()
        running.pop(0).wait()
        start()

    start()
    start()
    try:
        yield replace
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def record(deployment: Deployment, user: UserId, tasks: list[UUID], numbers: range) -> None:
    """Record events of a user's tasks, each with its number among those of its task."""

    def work(tx: Connection) -> None:
        for number in numbers:
            for task in tasks:
                record_notification(
                    tx,
                    NotificationKind.ESCALATED,
                    user_id=user,
                    subject=f"{task}:{number}",
                    task_id=task,
                    detail={"number": number, "owner": str(user)},
                )

    deployment.dispatcher.atomically(work)


def deliver(
    deployment: Deployment,
    url: str,
    folder: Path,
    receiver: HttpReceiver,
    *,
    per_task: int,
    kills: int,
) -> None:
    """Record events for all users while notifiers are killed, and check what has arrived."""
    deployment.agent()
    users = [deployment.user() for _ in range(USERS)]
    tasks = {user: [deployment.task(user) for _ in range(TASKS)] for user in users}
    for number, user in enumerate(users):
        address = receiver.url(f"/204/{number}")
        add_channel(deployment, user, url=address, secret=SECRETS[number])
    wanted = USERS * TASKS * per_task
    receiver.next_answers = [
        MOODS[index // 9 % len(MOODS)] if index % 9 == 0 else "204" for index in range(wanted // 3)
    ]

    for user in users:
        record(deployment, user, tasks[user], range(per_task))
    with notifiers(url, folder) as replace:
        for part in range(1, kills + 1):
            so_many = wanted * part // (kills + 1)
            wait_until(lambda: _delivered(deployment) >= so_many, timeout=300, what=f"{so_many}")  # noqa: B023
            replace()
        wait_until(lambda: _delivered(deployment) == wanted, timeout=300, what="every delivery")
    _check(deployment, receiver, users, tasks, per_task)


def _delivered(deployment: Deployment) -> int:
    """Return how many deliveries have arrived, and let what waits for time be due."""
    deployment.run(
        "UPDATE notification_deliveries SET due_at = clock() WHERE state = 'pending'"
        " AND attempts > 0 AND due_at > clock();"
        # What a killed notifier had claimed; a try takes half a second.
        "UPDATE notification_deliveries SET due_at = clock(), claimed_until = clock()"
        " WHERE state = 'sending' AND claimed_until < clock() + interval '28 seconds';"
        "UPDATE notification_channels SET blocked_until = NULL WHERE blocked_until IS NOT NULL"
    )
    sql = "SELECT count(*) AS n FROM notification_deliveries WHERE state = 'delivered'"
    return int(deployment.one(sql)["n"])


def _check(
    deployment: Deployment,
    receiver: HttpReceiver,
    users: list[UserId],
    tasks: dict[UserId, list[UUID]],
    per_task: int,
) -> None:
    first_seen: dict[str, list[int]] = defaultdict(list)
    for request in receiver.requests:
        number = int(request.path.rsplit("/", 1)[1])
        verify([SECRETS[number]], request.headers, request.body, now=time.time(), tolerance=900)
        data = request.json["data"]
        assert data["detail"]["owner"] == str(users[number])
        seen = first_seen[data["task_id"]]
        if data["detail"]["number"] not in seen:
            seen.append(data["detail"]["number"])
    every = {show_task(task) for own in tasks.values() for task in own}
    assert first_seen == {task: list(range(per_task)) for task in every}
    broken = violations(deployment.dispatcher, codes=["N01", "N02", "N03"])
    assert not broken, broken


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as one:
        one.headers["Retry-After"] = "1"
        one.headers["Location"] = one.url("/204/0")
        yield one


def test_every_event_arrives_signed_and_in_order_while_notifiers_are_killed(
    deployment: Deployment, database_url: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    deliver(deployment, database_url, tmp_path, receiver, per_task=4, kills=2)


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_five_thousand_events_arrive_while_notifiers_are_killed(
    deployment: Deployment, database_url: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    deliver(deployment, database_url, tmp_path, receiver, per_task=100, kills=20)
