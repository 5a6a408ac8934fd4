"""Channels of notifications: add, change, remove and test them, and send deliveries again."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import time
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from overnight.errors import (
    ChannelNotFound,
    DeliveryNotEnded,
    DeliveryNotFound,
    InvalidRequest,
)
from overnight.models.notifications import (
    ChannelChange,
    ChannelCreate,
    NewSecret,
    QuietHours,
    ReportTimeSet,
    SecretRotation,
    Told,
)
from overnight_server.control.keys import Caller
from overnight_server.domain.notifications import CHANNEL_DISABLED, CHANNEL_REMOVED
from overnight_server.domain.webhook_signatures import show_secret
from overnight_server.domain.windows import is_zone, parse_window
from overnight_server.outbound.addresses import check_reachable, parse_address
from overnight_server.outbound.services import (
    LEGAL_PUBLIC,
    MISSING,
    ServiceRefused,
    has_services,
    open_service,
    scheme_of,
)
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

SECRET_BYTES = 32
MAX_CHANNELS = 20
MAX_REPLAYED = 10_000
PEOPLE_DIGEST_AFTER = 10
USUAL_REPORT_TIME = "07:00"
MAIL = re.compile(r"[^\s@<>()\[\],;:\\\"]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Ways:
    """Which ways of sending this deployment has."""

    has_mail: bool = False
    mail_domains: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> "Ways":
        """Return the ways that the settings allow."""
        return cls(settings.smtp_host is not None, settings.mail_domains)


def add(db: Db, caller: Caller, channel: ChannelCreate, ways: Ways) -> str | None:
    """Add a channel; return the secret of a webhook, which cannot be read again.

    Raises InvalidRequest for an address to which this caller may send nothing, for a name that is
    taken, and beyond the largest number of channels.
    """
    shown = _check_address(caller, channel.kind, channel.address, ways)
    _check_kinds(caller, channel.kinds)
    is_webhook = channel.kind == "webhook"
    secret = show_secret(secrets.token_bytes(SECRET_BYTES)) if is_webhook else None
    digest = channel.digest_after
    if digest is None:
        digest = 0 if is_webhook else PEOPLE_DIGEST_AFTER
    params = {
        "user_id": caller.user_id,
        "name": channel.name,
        "kind": channel.kind,
        "address": shown,
        "full_address": channel.address,
        "secret": secret,
        "private_allowed": caller.is_operator,
        "kinds": [str(kind) for kind in channel.kinds],
        "digest_after": digest,
        "digest_minutes": channel.digest_minutes,
        **_quiet(channel.quiet),
    }

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        count = tx.execute(statement("count_channels"), {"user_id": caller.user_id}).scalar_one()
        if count >= MAX_CHANNELS:
            raise InvalidRequest(
                "name", "no more channels can be added", legal=f"at most {MAX_CHANNELS} channels"
            )
        if tx.execute(statement("add_channel"), params).one_or_none() is None:
            raise InvalidRequest("name", f"{channel.name!r} is taken", legal="another name")
        _ensure_report_time(tx, caller, channel.kinds)

    db.atomically(work)
    return secret


def change(db: Db, caller: Caller, name: str, wanted: ChannelChange, ways: Ways) -> None:
    """Change what `wanted` names; raise ChannelNotFound, and InvalidRequest as `add` does.

    A channel that is disabled gives up what it has not got.
    """
    _check_kinds(caller, wanted.kinds or [])
    given = wanted.model_fields_set

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        row = _own_channel(tx, caller, name)
        if wanted.address is not None:
            shown = _check_address(caller, row.kind, wanted.address, ways)
            tx.execute(
                statement("change_channel_address"),
                {
                    "channel": row.id,
                    "address": shown,
                    "full_address": wanted.address,
                    "private_allowed": caller.is_operator,
                },
            )
        tx.execute(
            statement("change_channel"),
            {
                "channel": row.id,
                "kinds": None if wanted.kinds is None else [str(kind) for kind in wanted.kinds],
                "digest_after": wanted.digest_after,
                "digest_minutes": wanted.digest_minutes,
                "sets_quiet": "quiet" in given,
                **_quiet(wanted.quiet),
            },
        )
        _ensure_report_time(tx, caller, wanted.kinds or [])
        if wanted.enabled is not None:
            _set_enabled(tx, row.id, is_enabled=wanted.enabled)

    db.atomically(work)


def _set_enabled(tx: Connection, channel_id: UUID, *, is_enabled: bool) -> None:
    if is_enabled:
        tx.execute(statement("enable_channel"), {"channel": channel_id})
        return
    disabled = tx.execute(statement("disable_channel"), {"channel": channel_id}).one_or_none()
    if disabled is not None:
        _end_deliveries(tx, channel_id, CHANNEL_DISABLED)


def remove(db: Db, caller: Caller, name: str) -> None:
    """Remove a channel and give up what it has not got; raise ChannelNotFound."""

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        params = {"user_id": caller.user_id, "name": name}
        row = tx.execute(statement("remove_channel"), params).one_or_none()
        if row is None:
            raise ChannelNotFound
        _end_deliveries(tx, row.id, CHANNEL_REMOVED)

    db.atomically(work)


def rotate(db: Db, caller: Caller, name: str, rotation: SecretRotation) -> NewSecret:
    """Replace the secret of a webhook; return the new one, which cannot be read again.

    Raises ChannelNotFound, and InvalidRequest for a channel without a secret.
    """
    secret = show_secret(secrets.token_bytes(SECRET_BYTES))

    def work(tx: Connection) -> NewSecret:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        row = _own_channel(tx, caller, name)
        if row.kind != "webhook":
            raise InvalidRequest("channel", f"{name!r} is no webhook", legal="a webhook")
        params = {"channel": row.id, "secret": secret, "seconds": rotation.grace_seconds}
        until = tx.execute(statement("rotate_channel_secret"), params).scalar_one()
        return NewSecret(name=name, secret=secret, old_secret_until=until)

    return db.atomically(work)


def send_test(db: Db, caller: Caller, name: str) -> int:
    """Record a test message for a channel; return the number of its delivery.

    The notifier sends it at once and only once. Raises ChannelNotFound, and InvalidRequest for a
    channel that is disabled.
    """

    def work(tx: Connection) -> int:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        params = {
            "user_id": caller.user_id,
            "channel": _usable(tx, caller, name),
            "subject": secrets.token_hex(16),
        }
        return int(tx.execute(statement("add_test_delivery"), params).scalar_one())

    return db.atomically(work)


def replay(db: Db, caller: Caller, delivery: int) -> None:
    """Send a delivery again that has ended; raise DeliveryNotFound.

    Raises DeliveryNotEnded if it is still to be sent, and InvalidRequest if its channel was removed
    or disabled.
    """

    def work(tx: Connection) -> None:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        params = {"user_id": caller.user_id, "delivery": delivery}
        row = tx.execute(statement("own_delivery"), params).one_or_none()
        if row is None:
            raise DeliveryNotFound
        if not row.is_usable:
            raise InvalidRequest(
                "delivery", "belongs to a channel that is told nothing", legal="a channel in use"
            )
        if not tx.execute(statement("replay_delivery"), params).all():
            raise DeliveryNotEnded(row.state)

    db.atomically(work)


def replay_dead(db: Db, caller: Caller, name: str) -> int:
    """Send the dead deliveries of a channel again; return how many. Raises as `send_test` does."""

    def work(tx: Connection) -> int:
        lanes.lock_for_actor(tx, caller.user_id, caller.actor)
        params = {"channel": _usable(tx, caller, name), "limit": MAX_REPLAYED}
        return len(tx.execute(statement("replay_dead_deliveries"), params).all())

    return db.atomically(work)


def _own_channel(tx: Connection, caller: Caller, name: str) -> Row[Any]:
    params = {"user_id": caller.user_id, "name": name}
    row = tx.execute(statement("own_channel"), params).one_or_none()
    if row is None:
        raise ChannelNotFound
    return row


def set_report_time(db: Db, caller: Caller, wanted: ReportTimeSet) -> None:
    """Set when a user's morning report is sent; raise InvalidRequest for an unknown zone."""
    if not is_zone(wanted.zone):
        legal = "an IANA name such as Europe/Berlin"
        raise InvalidRequest("zone", f"{wanted.zone!r} is no time zone", legal=legal)
    params = {"user_id": caller.user_id, "zone": wanted.zone, "report_at": wanted.at}
    db.atomically(lambda tx: tx.execute(statement("set_report_time"), params | {"keeps": False}))


def _ensure_report_time(tx: Connection, caller: Caller, kinds: Sequence[Told]) -> None:
    """Give a user who wants the report a time for it, unless the user has one."""
    if Told.MORNING_REPORT not in kinds:
        return
    user = tx.execute(statement("zone_of_user"), {"user_id": caller.user_id}).one()
    params = {"user_id": caller.user_id, "zone": user.zone, "report_at": USUAL_REPORT_TIME}
    tx.execute(statement("set_report_time"), params | {"keeps": True})


def _usable(tx: Connection, caller: Caller, name: str) -> UUID:
    """Return the id of a channel that is not disabled."""
    row = _own_channel(tx, caller, name)
    if row.is_disabled:
        raise InvalidRequest(
            "channel", f"{name!r} is disabled", legal="a channel in use; enable it first"
        )
    return UUID(str(row.id))


def _end_deliveries(tx: Connection, channel_id: UUID, error: str) -> None:
    params = {"channel": channel_id, "error": error}
    tx.execute(statement("end_deliveries_of_channel"), params)


def _check_kinds(caller: Caller, kinds: list[Told]) -> None:
    if Told.WORKER_LOST in kinds and not caller.is_admin:
        legal = "the other kinds; only admins are told of workers"
        raise InvalidRequest("kinds", f"include {Told.WORKER_LOST}", legal=legal)


def _check_address(caller: Caller, kind: str, address: str, ways: Ways) -> str:
    """Return an address as people may see it; raise InvalidRequest if it may not be used."""
    match kind:
        case "email":
            return _check_mail(address, ways)
        case "service":
            return _check_service(caller, address)
        case _:
            parsed = parse_address(address, field="address")
            if not caller.is_operator:
                check_reachable(parsed, field="address")
            # The path of such an address is a password.
            if kind == "slack":
                return f"{parsed.origin}/…"
            return f"{parsed.origin}{parsed.path}" + ("?…" if parsed.query else "")


def _check_mail(address: str, ways: Ways) -> str:
    if not ways.has_mail:
        legal = "another kind of channel; an operator sets OVERNIGHT_SMTP_HOST for mail"
        raise InvalidRequest("kind", "this deployment sends no mail", legal=legal)
    if not MAIL.fullmatch(address) or not address.isascii():
        raise InvalidRequest("address", "is no mail address", legal="name@example.com")
    domain = address.rpartition("@")[2].lower()
    if ways.mail_domains and domain not in {one.lower() for one in ways.mail_domains}:
        legal = f"an address at {', '.join(ways.mail_domains)}"
        raise InvalidRequest("address", f"is at {domain}", legal=legal)
    return address


def _check_service(caller: Caller, address: str) -> str:
    if not has_services():
        legal = f"another kind; an operator may install services: {MISSING}"
        raise InvalidRequest("kind", "this deployment has no services", legal=legal)
    scheme = scheme_of(address)
    try:
        service = scheme and open_service(address, any_allowed=caller.is_operator)
    except ServiceRefused as refused:
        raise InvalidRequest("address", str(refused), legal=LEGAL_PUBLIC) from None
    if not service:
        raise InvalidRequest(
            "address",
            "is no URL of a service",
            legal="such as tgram://TOKEN/CHAT or pover://USER@TOKEN",
        )
    return f"{scheme}://…"


def _quiet(quiet: QuietHours | None) -> dict[str, str | time | None]:
    if quiet is None:
        return {"quiet_zone": None, "quiet_from": None, "quiet_to": None}
    hours = parse_window(quiet.zone, quiet.begins, quiet.ends, "finish")
    return {"quiet_zone": hours.zone, "quiet_from": hours.opens, "quiet_to": hours.closes}
