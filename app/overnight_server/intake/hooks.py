"""Webhooks that come in: check who sent a request, and make a task of its event.

`receive` takes the request of a sender, `replay` makes a task of a stored delivery again. Nothing
is stored of a request that is not proven to come from the sender. A delivery and its tasks are
written in one transaction, and the lane of the user is locked in it, so that a request which
arrives twice at once makes its tasks once.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

from sqlalchemy import Connection, Row

from overnight.errors import (
    DeliveryNotFound,
    EventUnfit,
    HookNotFound,
    HookRefused,
    InvalidRequest,
    MonthlyLimitReached,
    Overloaded,
    QueueFull,
    Refused,
    TooManyPending,
    TooManyRequests,
)
from overnight.trace_context import valid_traceparent
from overnight_server.domain.event_templates import COMPARISONS, EventCondition, Unfit
from overnight_server.domain.hook_signatures import (
    HookScheme,
    id_in_body,
    spend_time,
    verify_hook,
)
from overnight_server.domain.ids import DagId, HookId, TaskId, UserId, show_hook
from overnight_server.domain.webhook_signatures import SignatureRefused
from overnight_server.fault_points import fault
from overnight_server.intake.caps import Caps
from overnight_server.intake.event_work import Origin, Template, insert_work, make_work
from overnight_server.intake.submit import logging_refusals
from overnight_server.settings import Settings
from overnight_server.store import lanes
from overnight_server.store.db import ActingUser, Db
from overnight_server.store.statements import statement
from overnight_server.telemetry import LogEvent, emit

SOURCE: Final = "webhook"
WINDOW_SECONDS: Final = 60
#: Limits that end by themselves: the sender is asked to repeat the request.
TEMPORARY: Final = (TooManyPending, MonthlyLimitReached, QueueFull)
RETRY_AFTER: Final = 60
FORM: Final = "application/x-www-form-urlencoded"
#: The field of a form in which GitHub and Slack send their JSON.
FORM_FIELD: Final = "payload"
MAX_FIELDS: Final = 1_000
MAX_HEADERS: Final = 40
MAX_HEADER_LENGTH: Final = 500
_KEPT_HEADER: Final = re.compile(r"(?:x-|webhook-|ce-)[a-z0-9-]{1,60}|content-type|user-agent")
# Headers that prove the sender, or that proxies add.
_LEFT_OUT: Final = re.compile(r"signature|token|secret|key|auth|forwarded|real-ip|cookie")


@dataclass(frozen=True)
class HookRequest:
    """A request as it arrived; the names of its headers are in lower case."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class ReceivedEvent:
    """What became of a request."""

    delivery_id: int
    outcome: str
    dag_id: DagId | None = None
    task_ids: tuple[TaskId, ...] = ()
    is_repeated: bool = False


@dataclass(frozen=True)
class Challenge:
    """What Slack expects back when a person enters the address of a source."""

    text: str


@dataclass(frozen=True)
class _Sender:
    """A source of webhooks whose sender has proven who it is."""

    hook_id: HookId
    user_id: UserId
    name: str
    scheme: HookScheme
    delivery_key: str | None
    id_pointer: str | None
    now: float


@dataclass(frozen=True)
class _Delivery:
    """What is stored of a request."""

    hook_id: HookId
    user_id: UserId
    delivery_key: str | None
    headers: Mapping[str, str]
    body: str
    replay_of: int | None = None


def receive(
    db: Db, hook_id: HookId | None, request: HookRequest, settings: Settings
) -> ReceivedEvent | Challenge:
    """Take a request of a sender; `db` acts for nobody, and `hook_id` None is no legal id.

    Raises HookRefused for a request that is not proven to come from the sender of an active source,
    InvalidRequest for a body that is no event, TooManyRequests above the rate of the source,
    Overloaded while the user's limits leave no room, and EventUnfit if no task can be made of it.
    """
    sender = _verified_sender(db, hook_id, request)
    acting = db.acting_for(
        ActingUser(
            sender.user_id,
            f"hook:{sender.name}",
            traceparent=valid_traceparent(request.headers.get("traceparent")) or "",
        )
    )
    body, text = _parse_body(request)
    if sender.scheme is HookScheme.SLACK and (challenge := _challenge(body)):
        return challenge
    key = id_in_body(sender.scheme, body, sender.id_pointer) or sender.delivery_key
    delivery = _Delivery(sender.hook_id, sender.user_id, key, _kept_headers(request.headers), text)
    event = _event(sender.name, key, sender.now, delivery.headers, body)
    return _take(acting, delivery, event, settings)


def replay(db: Db, user_id: UserId, delivery_id: int, settings: Settings) -> ReceivedEvent:
    """Make tasks of a stored delivery again, with the source's filter and template of today.

    Raises DeliveryNotFound, and what `receive` raises for events.
    """

    def read(tx: Connection) -> tuple[Row[Any], float]:
        params = {"user_id": user_id, "delivery_id": delivery_id}
        row = tx.execute(statement("read_delivery"), params).one_or_none()
        if row is None:
            raise DeliveryNotFound
        return row, float(row.now)

    row, now = db.atomically(read)
    request = HookRequest(row.headers, row.body.encode())
    body, text = _parse_body(request)
    delivery = _Delivery(HookId(row.source_id), user_id, None, row.headers, text, delivery_id)
    event = _event(row.name, row.delivery_key, now, row.headers, body)
    return _take(db, delivery, event, settings)


def _verified_sender(db: Db, hook_id: HookId | None, request: HookRequest) -> _Sender:
    source = None
    if hook_id is not None:
        params = {"source_id": hook_id}
        source = db.atomically(
            lambda tx: tx.execute(statement("secrets_of_source"), params).one_or_none()
        )
    if hook_id is None or source is None:
        spend_time(request.body)
        raise HookRefused
    scheme = HookScheme(source.scheme)
    try:
        key = verify_hook(
            scheme,
            source.secrets,
            request.headers,
            request.body,
            now=source.now,
            header=source.header,
        )
    except SignatureRefused as refusal:
        noted = {"source_id": hook_id, "why": str(refusal)}
        db.atomically(lambda tx: tx.execute(statement("note_refused_hook"), noted))
        raise HookRefused from None
    return _Sender(
        hook_id=hook_id,
        user_id=UserId(source.user_id),
        name=source.name,
        scheme=scheme,
        delivery_key=key,
        id_pointer=source.id_pointer,
        now=source.now,
    )


def _take(
    db: Db, delivery: _Delivery, event: Mapping[str, object], settings: Settings
) -> ReceivedEvent:
    """Store a delivery with the tasks that it becomes; the failure too if it becomes none."""
    try:
        with logging_refusals():
            taken = db.atomically(lambda tx: _take_in(tx, delivery, event, settings))
    except (TooManyRequests, HookNotFound):
        raise
    except (Refused, Unfit) as error:
        reason = str(error)
        db.atomically(lambda tx: _record(tx, delivery, "failed", reason=reason[:2000]))
        emit(LogEvent.HOOK_FAILED, hook_id=show_hook(delivery.hook_id), error=reason)
        if delivery.replay_of is not None and isinstance(error, Refused):
            raise
        if isinstance(error, TEMPORARY):
            raise Overloaded("the source takes no events now", RETRY_AFTER) from None
        raise EventUnfit from None
    fault("intake.after_commit")
    return taken


def _take_in(
    tx: Connection, delivery: _Delivery, event: Mapping[str, object], settings: Settings
) -> ReceivedEvent:
    lanes.lock(tx, [delivery.user_id])
    source = _read_source(tx, delivery)
    if (repeated := _find_repeated(tx, delivery)) is not None:
        return repeated
    if delivery.replay_of is None:
        _check_rate(tx, delivery, source.per_minute)
    if not all(_condition(stored).holds(event) for stored in source.filter):
        return ReceivedEvent(_record(tx, delivery, "ignored"), "ignored")
    template = Template(source.template, source.is_graph)
    graph = make_work(template, event, settings, Origin(SOURCE, f"hook:{source.name}"))
    dag_id, task_ids = insert_work(tx, delivery.user_id, graph, Caps.of(settings))
    delivery_id = _record(tx, delivery, "accepted", dag_id=dag_id, task_ids=list(task_ids))
    return ReceivedEvent(delivery_id, "accepted", dag_id, tuple(task_ids))


def _read_source(tx: Connection, delivery: _Delivery) -> Row[Any]:
    params = {"source_id": delivery.hook_id, "user_id": delivery.user_id}
    source = tx.execute(statement("read_webhook_source"), params).one_or_none()
    if source is None:
        # It was removed since the request was checked.
        raise HookNotFound
    return source


def _find_repeated(tx: Connection, delivery: _Delivery) -> ReceivedEvent | None:
    """Return what became of an earlier delivery of this request, unless it has failed."""
    params = {"source_id": delivery.hook_id, "delivery_key": delivery.delivery_key}
    row = tx.execute(statement("find_delivery"), params).one_or_none()
    if row is None or row.outcome == "failed":
        return None
    task_ids = tuple(TaskId(task_id) for task_id in row.task_ids)
    dag_id = None if row.dag_id is None else DagId(row.dag_id)
    return ReceivedEvent(row.id, row.outcome, dag_id, task_ids, is_repeated=True)


def _check_rate(tx: Connection, delivery: _Delivery, per_minute: int) -> None:
    params = {"source_id": delivery.hook_id}
    if tx.execute(statement("count_recent_deliveries"), params).scalar_one() >= per_minute:
        why = f"the source takes {per_minute} deliveries in a minute"
        raise TooManyRequests(WINDOW_SECONDS, {}, why)


def _condition(stored: Mapping[str, Any]) -> EventCondition:
    [comparison] = [name for name in COMPARISONS if name in stored]
    return EventCondition(stored["pointer"], comparison, stored[comparison])


def _record(
    tx: Connection,
    delivery: _Delivery,
    outcome: str,
    *,
    reason: str | None = None,
    dag_id: DagId | None = None,
    task_ids: list[TaskId] | None = None,
) -> int:
    """Store a delivery, or what became of its repetition; return its number."""
    row = tx.execute(
        statement("record_delivery"),
        {
            "source_id": delivery.hook_id,
            "user_id": delivery.user_id,
            "delivery_key": delivery.delivery_key,
            "headers": json.dumps(delivery.headers),
            "body": delivery.body,
            "outcome": outcome,
            "reason": reason,
            "dag_id": dag_id,
            "task_ids": task_ids or [],
            "replay_of": delivery.replay_of,
        },
    ).one_or_none()
    return 0 if row is None else int(row.id)


def _event(
    name: str, key: str | None, now: float, headers: Mapping[str, str], body: object
) -> dict[str, object]:
    """Return what pointers of filters and templates point into."""
    received_at = datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z")
    return {
        "hook": name,
        "delivery": key,
        "received_at": received_at,
        "headers": dict(headers),
        "body": body,
    }


def _parse_body(request: HookRequest) -> tuple[object, str]:
    """Return the event that a body holds, and its text."""
    try:
        text = _text_of(request.body)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        body = _parse_form(text) if kind == FORM else _parse_json(text)
    except (ValueError, RecursionError):
        legal = "JSON, or a form with JSON in its field payload, in UTF-8"
        raise InvalidRequest("body", "is no event", legal=legal) from None
    return body, text


def _text_of(body: bytes) -> str:
    if b"\0" in body:
        raise ValueError("it has a NUL character")
    return body.decode()


def _parse_form(text: str) -> object:
    fields = {
        name: values[0]
        for name, values in parse_qs(
            text, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS
        ).items()
    }
    return _parse_json(fields[FORM_FIELD]) if FORM_FIELD in fields else fields


def _parse_json(text: str) -> object:
    value: object = json.loads(text, parse_constant=_refuse_constant)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _challenge(body: object) -> Challenge | None:
    if isinstance(body, dict) and body.get("type") == "url_verification":
        return Challenge(str(body.get("challenge", ""))[:MAX_HEADER_LENGTH])
    return None


def _kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that say what happened, without those that prove the sender."""
    kept = [
        (name, value[:MAX_HEADER_LENGTH])
        for name, value in headers.items()
        if _KEPT_HEADER.fullmatch(name) and not _LEFT_OUT.search(name) and "\0" not in value
    ]
    return dict(kept[:MAX_HEADERS])
