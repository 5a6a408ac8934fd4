"""Channels over HTTP, from Python and by command: what can be added, and what never shows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from overnight.errors import ChannelNotFound, DeliveryNotEnded
from overnight.models.notifications import Told
from overnight_server.domain.notifications import NotificationKind
from overnight_server.domain.webhook_signatures import parse_secret
from overnight_server.insight.notifications import list_channels, list_deliveries
from overnight_server.store.notifications import record_notification
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.receivers import HttpReceiver, http_receiver, notifying
from tests.support.wait import wait_until

# Apprise imports every service, also with old modules.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
PATH = "/api/v1/notifications/channels"
PUBLIC = "https://93.184.216.34/hook?token=hidden"
MAIL = {
    "OVERNIGHT_SMTP_HOST": "localhost",
    "OVERNIGHT_MAIL_FROM": "o@example.org",
    "OVERNIGHT_MAIL_DOMAINS": "example.com",
}


@pytest.fixture
def api_user(deployment: Deployment, database_url: str) -> Iterator[ApiUser]:
    with serve_api(deployment, database_url, **MAIL) as api_user:
        yield api_user


@pytest.fixture
def operator(api_user: ApiUser) -> ApiUser:
    return api_user.new_user(is_admin=True)


def add(api_user: ApiUser, **fields: Any) -> Any:
    body = {"name": "ops", "kind": "webhook", "address": PUBLIC, **fields}
    return api_user.request("POST", PATH, json=body)


def tell(api_user: ApiUser, subject: str = "a") -> None:
    api_user.deployment.dispatcher.atomically(
        lambda tx: record_notification(
            tx,
            NotificationKind.USAGE_80,
            user_id=api_user.user,
            subject=subject,
            detail={"title": "hours"},
        )
    )


def test_every_kind_but_the_test_can_be_subscribed_to() -> None:
    assert {str(kind) for kind in Told} == {*NotificationKind} - {NotificationKind.TEST}


def test_a_webhook_is_added_and_its_secret_is_shown_once(api_user: ApiUser) -> None:
    made = add(api_user, quiet={"zone": "Europe/Berlin", "begins": "22:00", "ends": "07:00"})

    assert made.status_code == 201, made.text
    parse_secret(made.json()["secret"])
    assert made.json()["address"] == "https://93.184.216.34/hook?…"
    assert made.headers["Location"] == f"{PATH}/ops"
    [listed] = api_user.request("GET", PATH).json()
    assert listed == api_user.request("GET", f"{PATH}/ops").json()
    assert "secret" not in listed
    assert "hidden" not in json.dumps(listed)
    assert listed["quiet"] == {"zone": "Europe/Berlin", "begins": "22:00", "ends": "07:00"}
    assert "task.dead_lettered" in listed["kinds"]
    assert listed["state"] == "active"
    row = api_user.deployment.one("SELECT * FROM notification_channels")
    assert (row["full_address"], row["private_allowed"]) == (PUBLIC, False)


@pytest.mark.parametrize(
    ("fields", "field", "legal"),
    [
        ({"address": "ftp://example.com"}, "address", "http"),
        ({"address": "http://127.0.0.1:8080/"}, "address", "public"),
        ({"address": "http://10.0.0.1/"}, "address", "public"),
        ({"address": "http://[::1]/"}, "address", "public"),
        ({"kind": "slack", "address": "http://localhost/"}, "address", "public"),
        ({"kind": "pigeon"}, "kind", "webhook"),
        ({"kind": "email", "address": "ada@example.com\r\nBcc: e@x.com"}, "address", "name@"),
        ({"kind": "email", "address": "ada"}, "address", "name@example.com"),
        ({"kind": "email", "address": "ada@elsewhere.org"}, "address", "example.com"),
        ({"kind": "service", "address": "json://10.0.0.1/"}, "address", "operator"),
        ({"kind": "service", "address": "gnome://"}, "address", ""),
        ({"kind": "service", "address": "nonsense"}, "address", "tgram"),
        ({"kinds": ["task.vanished"]}, "kinds", "task.dead_lettered"),
        ({"kinds": ["worker.lost"]}, "kinds", "admins"),
        ({"name": "a/b"}, "name", ""),
        ({"quiet": {"zone": "Mars/Phobos", "begins": "22:00", "ends": "07:00"}}, "zone", "IANA"),
        ({"quiet": {"zone": "UTC", "begins": "22:00", "ends": "22:00"}}, "to", "another"),
        ({"digest_after": -1}, "digest_after", ""),
        ({"digest_minutes": 0}, "digest_minutes", ""),
    ],
)
def test_what_cannot_be_sent_to_is_refused(
    api_user: ApiUser, fields: dict[str, Any], field: str, legal: str
) -> None:
    refused = add(api_user, **fields)

    assert refused.status_code in {400, 422}, refused.text
    assert field in refused.text
    assert legal in refused.text
    assert api_user.deployment.rows("SELECT 1 FROM notification_channels") == []


def test_a_name_is_taken_once_and_free_again_when_it_is_removed(api_user: ApiUser) -> None:
    add(api_user)

    assert "taken" in add(api_user).text
    assert add(api_user.new_user()).status_code == 201
    assert api_user.request("DELETE", f"{PATH}/ops").json() == {"name": "ops", "removed": True}
    assert api_user.request("DELETE", f"{PATH}/ops").status_code == 404
    assert add(api_user).status_code == 201


def test_a_user_has_at_most_twenty_channels(api_user: ApiUser) -> None:
    statuses = [add(api_user, name=f"c{number}").status_code for number in range(21)]

    assert statuses == [201] * 20 + [400]


def test_a_deployment_without_mail_says_so(deployment: Deployment, database_url: str) -> None:
    with serve_api(deployment, database_url) as api_user:
        refused = add(api_user, kind="email", address="ada@example.com")

    assert refused.status_code == 400
    assert "OVERNIGHT_SMTP_HOST" in refused.text


def test_services_need_their_extra(api_user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overnight_server.outbound.services.find_spec", lambda _name: None)

    refused = add(api_user, kind="service", address="pover://user@token")

    assert refused.status_code == 400
    assert "overnight[notify]" in refused.text


def test_everybody_may_use_public_services_and_operators_any(
    api_user: ApiUser, operator: ApiUser
) -> None:
    public = add(api_user, kind="service", address="pover://" + "u" * 30 + "@" + "t" * 30)
    private = add(operator, kind="service", address="json://10.0.0.1/")

    assert public.json()["address"] == "pover://…"
    assert private.status_code == 201, private.text


DISCORD = "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js"
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@pytest.mark.parametrize(
    "address",
    [
        f"{DISCORD},json://127.0.0.1:9/x",
        f"{DISCORD};json://127.0.0.1:9/x",
        f"{DISCORD},syslog://",
        f"{DISCORD},{DISCORD}",
        f"{SLACK}?template=http://127.0.0.1:9/x",
        f"{SLACK}/?template=/etc/passwd",
        f"{DISCORD}?template=http://127.0.0.1:9/x",
        f"{DISCORD}?redirect=yes",
        f"{DISCORD}&redirect=yes",
        f"{DISCORD} json://127.0.0.1:9/x",
        f"{DISCORD}\tjson://127.0.0.1:9/x",
    ],
)
def test_an_address_of_a_service_cannot_name_anything_else(
    api_user: ApiUser, operator: ApiUser, address: str
) -> None:
    refused = add(api_user, kind="service", address=address)

    assert refused.status_code == 400, refused.text
    assert "address" in refused.text
    assert api_user.deployment.rows("SELECT 1 FROM notification_channels") == []
    add(api_user, kind="service", address=DISCORD)
    changed = api_user.request("PATCH", f"{PATH}/ops", json={"address": address})
    assert changed.status_code == 400, changed.text
    if " " not in address and "\t" not in address:
        assert add(operator, kind="service", address=address).status_code == 201


def test_only_what_is_named_changes(api_user: ApiUser, operator: ApiUser) -> None:
    add(operator, quiet={"zone": "UTC", "begins": "22:00", "ends": "07:00"})

    changed = operator.request("PATCH", f"{PATH}/ops", json={"kinds": ["usage.50", "worker.lost"]})
    assert changed.status_code == 200, changed.text
    assert changed.json()["quiet"]["zone"] == "UTC"
    body = {"quiet": None, "digest_after": 5, "address": "http://10.0.0.1/x"}
    changed = operator.request("PATCH", f"{PATH}/ops", json=body)

    assert changed.json()["kinds"] == ["usage.50", "worker.lost"]
    assert changed.json()["quiet"] is None
    assert (changed.json()["digest_after"], changed.json()["address"]) == (5, "http://10.0.0.1/x")
    assert api_user.request("PATCH", f"{PATH}/ops", json={"digest_after": 1}).status_code == 404
    private = api_user.request("PATCH", f"{PATH}/ops", json={"address": "http://10.0.0.1/"})
    assert private.status_code == 404


def test_the_address_of_a_channel_cannot_be_made_private_later(api_user: ApiUser) -> None:
    add(api_user)

    refused = api_user.request("PATCH", f"{PATH}/ops", json={"address": "http://10.0.0.1/"})

    assert refused.status_code == 400
    row = api_user.deployment.one("SELECT full_address FROM notification_channels")
    assert row["full_address"] == PUBLIC


def test_a_disabled_channel_is_told_nothing_until_it_is_enabled(api_user: ApiUser) -> None:
    add(api_user)
    tell(api_user, "first")

    api_user.request("PATCH", f"{PATH}/ops", json={"enabled": False})
    tell(api_user, "second")
    refused = api_user.request("POST", f"{PATH}/ops/test")
    assert refused.status_code == 400
    assert "disabled" in refused.text
    api_user.request("PATCH", f"{PATH}/ops", json={"enabled": True})
    tell(api_user, "third")

    rows = list_deliveries(api_user.deployment.owner, api_user.user)
    assert [(row.subject, row.state) for row in rows] == [("third", "pending"), ("first", "dead")]
    assert rows[1].error == "the channel was disabled"


def test_a_removed_channel_gives_up_what_it_has_not_got(api_user: ApiUser) -> None:
    add(api_user)
    tell(api_user)

    api_user.request("DELETE", f"{PATH}/ops")

    [delivery] = list_deliveries(api_user.deployment.owner, api_user.user)
    assert (delivery.state, delivery.error) == ("dead", "the channel was removed")
    assert list_channels(api_user.deployment.owner, api_user.user) == []
    refused = api_user.request("POST", f"/api/v1/notifications/deliveries/{delivery.id}/replay")
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("webhook", PUBLIC),
        ("slack", "https://93.184.216.34/services/T1/B1/hidden"),
        ("service", "pover://" + "u" * 30 + "@" + "t" * 30),
        ("email", "ada@example.com"),
    ],
)
def test_a_removed_channel_keeps_no_secret(api_user: ApiUser, kind: str, address: str) -> None:
    made = add(api_user, kind=kind, address=address)
    secrets = [made.json().get("secret")]
    if kind == "webhook":
        rotated = api_user.request("POST", f"{PATH}/ops/rotate", json={"grace_seconds": 3600})
        secrets.append(rotated.json()["secret"])

    api_user.request("DELETE", f"{PATH}/ops")

    row = api_user.deployment.one("SELECT * FROM notification_channels")
    assert (row["secret"], row["old_secret"], row["old_secret_until"]) == (None, None, None)
    assert row["full_address"] == made.json()["address"]
    stored = str(row) + str(api_user.deployment.rows("SELECT * FROM audit_log"))
    assert not [secret for secret in secrets if secret and secret in stored]
    assert "hidden" not in stored


def test_a_secret_is_replaced_and_the_old_one_stays_for_the_grace(api_user: ApiUser) -> None:
    first = add(api_user).json()["secret"]
    add(api_user, name="slack", kind="slack")

    new = api_user.request("POST", f"{PATH}/ops/rotate", json={"grace_seconds": 60})

    assert new.status_code == 201, new.text
    row = api_user.deployment.one("SELECT * FROM notification_channels WHERE name = 'ops'")
    assert (row["secret"], row["old_secret"]) == (new.json()["secret"], first)
    assert new.json()["secret"] != first
    assert api_user.request("POST", f"{PATH}/slack/rotate").status_code == 400
    assert first not in json.dumps(api_user.deployment.rows("SELECT * FROM audit_log"), default=str)


def test_the_log_shows_own_deliveries_page_by_page(api_user: ApiUser) -> None:
    add(api_user)
    add(api_user, name="other")
    other = api_user.new_user()
    add(other)
    for subject in "abc":
        tell(api_user, subject)
    tell(other)

    client = api_user.client()
    everything = list(client.notifications.deliveries())
    of_one = list(client.notifications.deliveries(channel="other", state="pending"))

    assert [row.subject for row in everything] == ["c", "c", "b", "b", "a", "a"]
    assert [row.subject for row in of_one] == ["c", "b", "a"]
    assert everything[0].title == "hours"
    assert list(client.notifications.deliveries(state="dead")) == []
    first = api_user.request("GET", "/api/v1/notifications/deliveries?limit=4")
    assert len(first.json()) == 4
    assert first.headers["X-Next-Cursor"] == str(first.json()[-1]["id"])


def test_a_dead_delivery_is_replayed_and_an_open_one_is_not(api_user: ApiUser) -> None:
    add(api_user)
    tell(api_user, "a")
    tell(api_user, "b")
    client = api_user.client()
    newest, oldest = client.notifications.deliveries()
    with pytest.raises(DeliveryNotEnded, match="pending"):
        client.notifications.replay(newest.id)
    api_user.deployment.run(
        "UPDATE notification_deliveries SET state = 'dead', ended_at = clock(), attempts = 8"
    )

    replayed = client.notifications.replay(oldest.id)
    assert (replayed.state, replayed.attempts) == ("pending", 0)
    assert client.notifications.replay_dead("ops").replayed == 1
    with pytest.raises(ChannelNotFound):
        client.notifications.replay_dead("none")


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as one:
        yield one


def test_commands_add_test_and_remove_a_channel(
    operator: ApiUser, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.take_commands(monkeypatch)
    added = run(
        *("notify", "add", "ops", "--webhook", receiver.url(), "--on", "usage", "--on", "task"),
        *("--quiet", "00:00-23:59", "--zone", "UTC", "--digest", "5/10m"),
    )
    assert added.exit_code == 0, added.stderr
    parse_secret(added.stdout.strip())
    assert "cannot be shown again" in added.stderr

    with notifying(operator.deployment.dispatcher):
        tested = run("notify", "test", "ops")
        assert tested.exit_code == 0, tested.stderr
        assert tested.stdout == "ops got the message\n"
        run("notify", "edit", "ops", "--address", receiver.url("/500"), "--quiet", "none")
        failed = run("notify", "test", "ops")
    assert failed.exit_code != 0
    assert "answered 500" in failed.stderr

    channels = json.loads(run("notify", "list", "--json").stdout)
    assert channels[0]["quiet"] is None
    assert channels[0]["digest_after"] == 5
    assert set(channels[0]["kinds"]) >= {"usage.50", "task.poisoned"}
    assert "failing" in run("notify", "list").stdout
    log = run("notify", "deliveries", "--state", "dead")
    assert "answered 500" in log.stdout
    again = run("notify", "replay", "--dead", "ops")
    assert again.stdout == "1 delivery is sent again\n"
    rotated = run("notify", "rotate", "ops", "--grace", "1h")
    assert parse_secret(rotated.stdout.strip()) != parse_secret(added.stdout.strip())
    assert run("notify", "edit", "ops", "--disable").exit_code == 0
    assert run("notify", "remove", "ops").stdout == "ops removed\n"
    assert json.loads(run("notify", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("add", "x"), "exactly one of"),
        (("add", "x", "--webhook", PUBLIC, "--email", "a@example.com"), "exactly one of"),
        (("add", "x", "--webhook", PUBLIC, "--on", "weather"), "task.dead_lettered"),
        (("add", "x", "--webhook", PUBLIC, "--quiet", "late"), "22:00-07:00"),
        (("add", "x", "--webhook", PUBLIC, "--zone", "UTC"), "--quiet"),
        (("add", "x", "--webhook", PUBLIC, "--digest", "many"), "10/10m"),
        (("edit", "x"), "--help"),
        (("replay",), "--dead"),
        (("test", "none"), "no such notification channel"),
    ],
)
def test_a_wrong_command_says_what_is_right(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], hint: str
) -> None:
    api_user.take_commands(monkeypatch)

    refused = run("notify", *arguments)

    assert refused.exit_code != 0
    assert hint in refused.stderr


def test_a_test_is_awaited_for_a_while_only(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(api_user)
    api_user.take_commands(monkeypatch)
    monkeypatch.setattr("overnight_server.cli.commands.notify.TEST_SECONDS", 0.0)

    waited = run("notify", "test", "ops")

    assert waited.exit_code != 0
    assert "overnight notifier" in waited.stderr
    wait_until(lambda: api_user.client().notifications.channel("ops").open == 1, what="the test")
