"""The notifier: each event reaches its channels, in order, whatever the receivers do."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from overnight_server.domain.ids import show_task
from overnight_server.domain.notifications import NotificationKind
from overnight_server.domain.webhook_signatures import SignatureRefused, verify
from overnight_server.local.ports import free_port
from overnight_server.notifier import delivery_rows
from overnight_server.notifier.resolver import LOOKUPS_PER_USER
from overnight_server.store.db import Db
from overnight_server.store.notifications import record_notification
from tests.support.deployment import Deployment
from tests.support.notifications import add_channel
from tests.support.receivers import HttpReceiver, http_receiver, notifier_settings, notifying
from tests.support.wait import wait_until

SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
OTHER_SECRET = "whsec_b3RoZXItb3RoZXItb3RoZXItb3RoZXItb3Ro"
KIND = NotificationKind.USAGE_80


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as one:
        yield one


def tell(
    deployment: Deployment,
    user: UUID,
    *,
    count: int = 1,
    task: UUID | None = None,
    kind: NotificationKind = KIND,
    start: int = 0,
) -> None:
    """Record events, each with its number."""

    def work(tx: Any) -> None:
        for number in range(start, start + count):
            record_notification(
                tx,
                kind,
                user_id=user,  # type: ignore[arg-type]
                subject=f"{task}:{number}",
                task_id=task,
                detail={"title": "render", "number": number, "user": str(user)},
            )

    deployment.dispatcher.atomically(work)


def states(deployment: Deployment) -> list[str]:
    """Return the states of all deliveries, in order."""
    rows = deployment.rows("SELECT state FROM notification_deliveries ORDER BY id")
    return [row["state"] for row in rows]


def delivery(deployment: Deployment) -> Mapping[str, Any]:
    """Return the only delivery."""
    return deployment.one("SELECT * FROM notification_deliveries")


def wait_for(deployment: Deployment, *wanted: str) -> None:
    """Wait until the deliveries have these states."""
    wait_until(lambda: states(deployment) == list(wanted), what=f"{wanted}")


def wait_for_attempts(deployment: Deployment, count: int) -> Mapping[str, Any]:
    """Wait until the only delivery was tried so often; return it."""
    wait_until(
        lambda: delivery(deployment)["attempts"] == count, what=f"{count} attempts", timeout=20
    )
    return delivery(deployment)


def test_a_webhook_is_signed_and_says_what_has_happened(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    deployment.agent()
    user = deployment.user()
    task = deployment.task(user)
    add_channel(deployment, user, url=receiver.url("/204?team=a"))
    tell(deployment, user, task=task)

    with notifying(deployment.dispatcher):
        wait_for(deployment, "delivered")

    [request] = receiver.received("/204?team=a")
    row = delivery(deployment)
    assert verify([SECRET], request.headers, request.body, now=time.time()) == row["message"]
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.json["type"] == "usage.80"
    assert request.json["data"]["task_id"] == show_task(task)
    assert request.json["data"]["detail"]["number"] == 0
    assert (row["response_status"], row["error"], row["attempts"]) == (204, None, 1)
    with pytest.raises(SignatureRefused):
        verify([OTHER_SECRET], request.headers, request.body, now=time.time())


def test_a_replaced_secret_signs_beside_the_new_one_until_it_ends(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    channel = add_channel(deployment, user, url=receiver.url())
    deployment.run(
        "UPDATE notification_channels SET secret = :secret,"
        " old_secret_until = clock() + interval '1 hour' WHERE id = :id",
        secret=OTHER_SECRET,
        id=channel,
    )

    with notifying(deployment.dispatcher):
        tell(deployment, user)
        wait_for(deployment, "delivered")
        deployment.move_clock(timedelta(hours=2))
        tell(deployment, user, start=1)
        wait_for(deployment, "delivered", "delivered")

    during, after = receiver.requests
    for secret in (SECRET, OTHER_SECRET):
        verify([secret], during.headers, during.body, now=time.time())
    verify([OTHER_SECRET], after.headers, after.body, now=time.time())
    with pytest.raises(SignatureRefused):
        verify([SECRET], after.headers, after.body, now=time.time())


@pytest.mark.parametrize(
    ("path", "error", "status"),
    [
        ("/500", "answered 500", 500),
        ("/302", "a redirect, which is not followed", 302),
        ("/hang", "no answer within 0.5 seconds", None),
        ("/close", "connection lost", None),
        ("refused", "no connection", None),
    ],
)
def test_what_a_receiver_does_not_accept_is_sent_again_later(
    deployment: Deployment, receiver: HttpReceiver, path: str, error: str, status: int | None
) -> None:
    user = deployment.user()
    receiver.headers["Location"] = receiver.url("/204")
    url = f"http://127.0.0.1:{free_port()}/" if path == "refused" else receiver.url(path)
    channel = add_channel(deployment, user, url=url)
    tell(deployment, user)

    with notifying(deployment.dispatcher):
        row = wait_for_attempts(deployment, 1)

    assert row["state"] == "pending"
    assert error in row["error"]
    assert row["response_status"] == status
    wait = deployment.one("SELECT due_at - clock() AS wait FROM notification_deliveries")["wait"]
    assert timedelta(seconds=6) < wait < timedelta(seconds=13)
    assert receiver.received() == []
    deployment.run(
        "UPDATE notification_channels SET full_address = :url WHERE id = :id",
        url=receiver.url(),
        id=channel,
    )
    deployment.move_clock(timedelta(seconds=13))
    with notifying(deployment.dispatcher):
        wait_for(deployment, "delivered")
    assert len(receiver.received()) == 1


def test_a_message_that_is_sent_again_has_the_same_id(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url())
    receiver.next_answers = ["500"]
    tell(deployment, user)

    with notifying(deployment.dispatcher):
        wait_for_attempts(deployment, 1)
        deployment.move_clock(timedelta(minutes=1))
        wait_for(deployment, "delivered")

    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_busy_receiver_is_left_alone_as_long_as_it_asks(
    deployment: Deployment, receiver: HttpReceiver, status: str
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url())
    receiver.next_answers = [status]
    receiver.headers["Retry-After"] = "1800"
    tell(deployment, user)

    with notifying(deployment.dispatcher):
        wait_for_attempts(deployment, 1)
        tell(deployment, user, start=1)
        deployment.move_clock(timedelta(minutes=20))
        time.sleep(0.3)
        assert len(receiver.requests) == 1
        deployment.move_clock(timedelta(minutes=20))
        wait_for(deployment, "delivered", "delivered")


def test_a_message_is_dead_after_its_last_try(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url("/500"))
    tell(deployment, user)

    with notifying(deployment.dispatcher, notifier_settings(delivery_max_attempts=3)):
        for attempt in range(1, 4):
            wait_for_attempts(deployment, attempt)
            deployment.move_clock(timedelta(hours=1))

    assert states(deployment) == ["dead"]
    assert len(receiver.requests) == 3


def test_a_message_is_dead_after_three_days(deployment: Deployment) -> None:
    user = deployment.user(disabled_at="2026-01-01")
    add_channel(deployment, user)
    tell(deployment, user)
    deployment.move_clock(timedelta(days=3, seconds=1))

    assert delivery_rows.give_up_old(deployment.dispatcher) == 1

    assert delivery(deployment)["error"] == "it was not delivered within three days"


def test_a_receiver_that_is_gone_disables_its_channel(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url("/410"))
    tell(deployment, user)

    with notifying(deployment.dispatcher):
        wait_for(deployment, "dead")
    tell(deployment, user, start=1)

    channel = deployment.one("SELECT disabled_at FROM notification_channels")
    assert channel["disabled_at"] is not None
    assert states(deployment) == ["dead"]


def test_a_user_cannot_reach_private_machines(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url(), private_allowed=False)
    tell(deployment, user)

    with notifying(deployment.dispatcher):
        row = wait_for_attempts(deployment, 1)

    assert "private address" in row["error"]
    assert receiver.requests == []


def test_events_of_one_task_arrive_in_order_and_a_failure_holds_back_only_them(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url())
    first, second = deployment.task(user), deployment.task(user)
    receiver.next_answers = ["500"]
    tell(deployment, user, task=first, count=3)

    with notifying(deployment.dispatcher):
        wait_until(lambda: len(receiver.requests) == 1, what="the failure")
        tell(deployment, user, task=second, count=3)
        wait_for(deployment, *["pending"] * 3, *["delivered"] * 3)
        deployment.move_clock(timedelta(minutes=1))
        wait_for(deployment, *["delivered"] * 6)

    for task in (first, second):
        numbers = [
            request.json["data"]["detail"]["number"]
            for request in receiver.requests[1:]
            if request.json["data"]["task_id"] == show_task(task)
        ]
        assert numbers == [0, 1, 2]


def test_receivers_that_hang_delay_no_others(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    for _ in range(20):
        user = deployment.user()
        add_channel(deployment, user, url=receiver.url("/hang"))
        tell(deployment, user, count=20)
    other = deployment.user()
    add_channel(deployment, other, url=receiver.url())

    with notifying(deployment.dispatcher, notifier_settings(delivery_timeout=10)):
        wait_until(lambda: len(receiver.received("/hang")) >= 20, what="all to hang")
        begun = time.monotonic()
        tell(deployment, other, count=20)
        wait_until(lambda: len(receiver.received()) == 20, what="the others")
        seconds = time.monotonic() - begun
        receiver.released.set()

    assert seconds < 5


def test_two_notifiers_send_nothing_twice(
    deployment: Deployment, connect: Callable[..., Db], receiver: HttpReceiver
) -> None:
    deployment.agent()
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url())
    tasks = [deployment.task(user) for _ in range(10)]
    for task in tasks:
        tell(deployment, user, task=task, count=10)

    with notifying(deployment.dispatcher), notifying(connect()):
        wait_for(deployment, *["delivered"] * 100)

    numbers: dict[str, list[int]] = {}
    for request in receiver.requests:
        data = request.json["data"]
        numbers.setdefault(data["task_id"], []).append(data["detail"]["number"])
    assert numbers == {show_task(task): list(range(10)) for task in tasks}


def test_a_message_whose_sender_died_is_sent_again(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    channel = add_channel(deployment, user, url=receiver.url())
    tell(deployment, user)
    [message] = delivery_rows.claim_messages(
        deployment.dispatcher, channel, limit=5, per_channel=8, lease=30
    )
    assert not delivery_rows.claim_messages(
        deployment.dispatcher, channel, limit=5, per_channel=8, lease=30
    )
    deployment.move_clock(timedelta(seconds=31))

    with notifying(deployment.dispatcher):
        wait_for(deployment, "delivered")

    assert message.id == receiver.requests[0].headers["webhook-id"]


def test_nothing_is_sent_in_quiet_hours(deployment: Deployment, receiver: HttpReceiver) -> None:
    user = deployment.user()
    add_channel(
        *(deployment, user),
        url=receiver.url(),
        quiet_zone="Europe/Berlin",
        quiet_from="22:00",
        quiet_to="07:00",
    )
    deployment.run(
        "CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE AS"
        " $$SELECT timestamptz '2026-07-01T04:59:00Z'$$"
    )
    tell(deployment, user)

    with notifying(deployment.dispatcher):
        time.sleep(0.3)
        assert receiver.requests == []
        deployment.run(
            "CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE AS"
            " $$SELECT timestamptz '2026-07-01T05:00:00Z'$$"
        )
        wait_for(deployment, "delivered")


def test_a_flood_of_one_kind_becomes_one_message(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url(), digest_after=2, digest_minutes=10)

    with notifying(deployment.dispatcher):
        tell(deployment, user, count=2)
        wait_for(deployment, *["delivered"] * 2)
        tell(deployment, user, count=300, start=2)
        tell(deployment, user, kind=NotificationKind.USAGE_100)
        wait_until(lambda: states(deployment)[-1] == "delivered", what="the other kind")
        assert len(receiver.requests) == 3
        deployment.move_clock(timedelta(minutes=10, seconds=5))
        wait_for(deployment, *["delivered"] * 303)

    digest = receiver.requests[-1].json
    assert len(receiver.requests) == 4
    assert digest["type"] == "usage.80.digest"
    assert digest["data"]["count"] == 300
    numbers = [event["detail"]["number"] for event in digest["data"]["events"]]
    assert numbers == list(range(2, 102))


def test_slack_gets_text_without_markup_of_its_own(
    deployment: Deployment, receiver: HttpReceiver
) -> None:
    user = deployment.user()
    add_channel(deployment, user, url=receiver.url(), kind="slack", secret=None)
    deployment.dispatcher.atomically(
        lambda tx: record_notification(
            tx, KIND, user_id=user, subject="x", detail={"title": "<!channel> & co"}
        )
    )

    with notifying(deployment.dispatcher):
        wait_for(deployment, "delivered")

    text = receiver.requests[0].json["text"]
    assert text.startswith("80 % of the hours used: &lt;!channel&gt; &amp; co")
    assert "webhook-signature" not in receiver.requests[0].headers


def failed_deliveries(deployment: Deployment, user: UUID) -> list[Mapping[str, Any]]:
    """Return the deliveries of a user of which a try has failed."""
    return deployment.rows(
        "SELECT id FROM notification_deliveries WHERE user_id = :user AND error IS NOT NULL",
        user=user,
    )


def test_slow_name_servers_of_one_user_delay_no_other_user(
    deployment: Deployment, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test's notifier has few threads for names: one per processor, and four."""
    asked: list[str] = []
    answered = threading.Event()
    look_up = socket.getaddrinfo

    def slow(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.invalid":
            asked.append(host)
            answered.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, *arguments, **options)

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    busy, other = deployment.user(), deployment.user()
    for _ in range(20):
        add_channel(deployment, busy, url="http://slow.invalid/")
    add_channel(deployment, other, url=receiver.url().replace("127.0.0.1", "localhost"))
    tell(deployment, busy)
    with notifying(deployment.dispatcher, notifier_settings(delivery_timeout=1)):
        wait_until(lambda: len(asked) >= LOOKUPS_PER_USER, what="the slow lookups")
        # Their senders have stopped waiting, but their threads have not.
        wait_until(
            lambda: len(failed_deliveries(deployment, busy)) >= LOOKUPS_PER_USER,
            what="the senders to give up",
        )
        tell(deployment, other)
        wait_until(receiver.received, what="the message to the other user")
        assert len(asked) == LOOKUPS_PER_USER
        answered.set()
