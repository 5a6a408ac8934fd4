"""Notifications: where the user is told about what, and what became of each message."""

from typing import Any

from markupsafe import Markup
from pydantic import ValidationError
from starlette.responses import Response

from overnight.errors import InvalidRequest
from overnight.models.notifications import USUAL_KINDS, ChannelChange, ChannelCreate, Told
from overnight_server.control import notification_channels as acts
from overnight_server.control.notification_channels import Ways
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.notifications import get_channel, list_channels, list_deliveries

screen = Screen("notifications")
PAGE = 50
LATEST = 15
KINDS = ("webhook", "slack", "email", "service")
STATES = ("", "pending", "delivered", "dead")
MAX_DIGITS = 18


@screen.page("/notifications")
def show_channels(visit: Visit) -> Response:
    """Show the channels and the latest messages."""
    return _page(visit, {})


@screen.act("/notifications")
def add(visit: Visit) -> Response:
    """Add a channel; the secret of a webhook is shown, this once."""
    typed = {name: visit.value(name).strip() for name in ("name", "kind", "address")}
    try:
        body = ChannelCreate(**typed, kinds=visit.values("kinds") or list(USUAL_KINDS))
        secret = acts.add(visit.db, visit.caller, body, Ways.of(visit.settings))
    except ValidationError as error:
        first = error.errors()[0]
        return _page(visit, typed, f"{first['loc'][0] if first['loc'] else 'form'}: {first['msg']}")
    except InvalidRequest as error:
        return _page(visit, typed, str(error.message))
    if secret is None:
        return visit.done("The channel is added.", to="/notifications")
    return visit.page(
        "channel_added.html",
        title="A new channel",
        place="notifications",
        name=typed["name"],
        secret=secret,
    )


@screen.page("/notifications/deliveries")
def show_deliveries(visit: Visit) -> Response:
    """Show the messages, the latest first, with what became of each."""
    before, state = visit.query("before"), visit.query("state")
    found = list_deliveries(
        visit.db,
        visit.user_id,
        state=state if state in STATES and state else None,
        before=int(before) if before.isdecimal() and len(before) <= MAX_DIGITS else None,
        limit=PAGE + 1,
    )
    last = found[PAGE - 1].id if len(found) > PAGE else ""
    return visit.page(
        "deliveries.html",
        title="Messages",
        place="notifications",
        deliveries=found[:PAGE],
        state=state,
        states=STATES,
        older=f"/notifications/deliveries?state={state}&before={last}" if last else "",
    )


@screen.page("/notifications/{name}/remove")
def ask_remove(visit: Visit, name: str) -> Response:
    """Ask before a channel is removed."""
    channel = get_channel(visit.db, visit.user_id, name)
    return visit.page(
        "channel_remove.html", title="Remove?", place="notifications", channel=channel
    )


@screen.act("/notifications/{name}/remove")
def remove(visit: Visit, name: str) -> Response:
    """Remove a channel and give up what it has not got."""
    acts.remove(visit.db, visit.caller, name)
    return visit.done("The channel is removed.", to="/notifications")


@screen.act("/notifications/{name}/test")
def send_test(visit: Visit, name: str) -> Response:
    """Send a test message to a channel."""
    number = acts.send_test(visit.db, visit.caller, name)
    return visit.done(f"A test message is on its way: delivery {number}.", to="/notifications")


@screen.act("/notifications/{name}/enable")
def enable(visit: Visit, name: str) -> Response:
    """Enable or disable a channel."""
    is_enabled = visit.value("enabled") == "yes"
    change = ChannelChange(enabled=is_enabled)
    acts.change(visit.db, visit.caller, name, change, Ways.of(visit.settings))
    undo = {"enabled": "" if is_enabled else "yes"}
    return visit.done(
        f"{name} is {'told again' if is_enabled else 'told nothing'}.",
        to="/notifications",
        undo=f"/notifications/{name}/enable",
        undo_fields=undo,
    )


@screen.act("/notifications/{name}/replay")
def replay_dead(visit: Visit, name: str) -> Response:
    """Send again what was given up for a channel."""
    number = acts.replay_dead(visit.db, visit.caller, name)
    return visit.done(f"{count(number, 'message')} sent again.", to="/notifications")


@screen.part("channels", tokens=5)
def show_part(visit: Visit, _key: str) -> Markup:
    """Return the channels and the latest messages."""
    return visit.fragment("parts/channels.html", **_view(visit))


def _page(visit: Visit, typed: dict[str, str], problem: str = "") -> Response:
    return visit.page(
        "notifications.html",
        title="Notifications",
        place="notifications",
        status=422 if problem else 200,
        typed={name: typed.get(name, "") for name in ("name", "kind", "address")},
        problem=problem,
        kinds=KINDS,
        events=[kind.value for kind in Told],
        usual=USUAL_KINDS,
        **_view(visit),
    )


def _view(visit: Visit) -> dict[str, Any]:
    return {
        "channels": list_channels(visit.db, visit.user_id),
        "deliveries": list_deliveries(visit.db, visit.user_id, limit=LATEST),
    }
