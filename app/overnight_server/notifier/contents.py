"""What messages say: JSON for programs, and a subject, a text and HTML for people."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from overnight_server.domain.ids import show_dag, show_task
from overnight_server.domain.notifications import NotificationKind
from overnight_server.notifier.delivery_rows import Message, NotifiedEvent

HEADLINES = {
    NotificationKind.DEAD_LETTERED: "Task failed",
    NotificationKind.POISONED: "Task fails on every worker",
    NotificationKind.ESCALATED: "Task keeps failing",
    NotificationKind.DAG_FINISHED: "Graph finished",
    NotificationKind.NEEDS_BUDGET: "Budget used up, a task waits for you",
    NotificationKind.USAGE_50: "50 % of the hours used",
    NotificationKind.USAGE_80: "80 % of the hours used",
    NotificationKind.USAGE_100: "All hours used",
    NotificationKind.SCHEDULE_SKIPPED: "Schedule skipped",
    NotificationKind.SCHEDULE_FAILED: "Schedule failed",
    NotificationKind.WORKER_LOST: "Worker lost",
    NotificationKind.MORNING_REPORT: "Morning report",
    NotificationKind.TEST: "Test message",
}
MAX_SUBJECT = 200
MAX_VALUE = 2000
# What is shown first or elsewhere.
NOT_LISTED = frozenset({"title", "text", "subject", "html"})


@dataclass(frozen=True)
class Content:
    """A message for people; a subject has one line."""

    subject: str
    text: str
    html: str


def webhook_body(message: Message) -> bytes:
    """Return the JSON of a webhook: type, timestamp and data, as Standard Webhooks advises.

    A digest has the type of its events with `.digest` appended, and the first of them.
    """
    first = message.events[0]
    if message.is_digest:
        kind = f"{message.kind}.digest"
        data: dict[str, Any] = {
            "count": len(message.deliveries),
            "events": [_data(event) for event in message.events],
        }
    else:
        kind, data = message.kind, dict(_data(first))
    body = {"type": kind, "timestamp": first.at.isoformat(), "data": data}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def describe(message: Message, base_url: str | None = None) -> Content:
    """Return a message as people read it; with `base_url` it has links to the dashboard."""
    if not message.is_digest:
        return _describe_event(message.events[0], base_url)
    subject = f"{len(message.deliveries)} times: {headline(message.kind)}"
    titles = [_title(event) for event in message.events]
    left_out = len(message.deliveries) - len(titles)
    if left_out:
        titles.append(f"and {left_out} more")
    items = "".join(f"<li>{escape(title)}</li>" for title in titles)
    text = "\n".join(f"- {title}" for title in titles)
    return Content(subject, text, _page(subject, f"<ul>{items}</ul>"))


def headline(kind: str) -> str:
    """Return a kind of events in words."""
    return HEADLINES.get(NotificationKind(kind), kind)


def one_line(text: str, limit: int = MAX_SUBJECT) -> str:
    r"""Return a text as one line without control characters, cut to a length.

    >>> one_line("a\r\nBcc: b")
    'a Bcc: b'
    """
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _describe_event(event: NotifiedEvent, base_url: str | None) -> Content:
    detail = event.detail
    if {"subject", "text", "html"} <= detail.keys():
        return Content(one_line(str(detail["subject"])), str(detail["text"]), str(detail["html"]))
    subject = one_line(_title(event))
    lines = list(_lines(event))
    link = _link(event, base_url)
    paragraph = str(detail.get("text", ""))
    text = "\n".join(
        [
            *([paragraph, ""] if paragraph else []),
            *(f"{name}: {value}" for name, value in lines),
            *(["", link] if link else []),
        ]
    )
    rows = "".join(
        f"<tr><th align='left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in lines
    )
    html = f"<p>{escape(paragraph)}</p>" if paragraph else ""
    html += f"<table>{rows}</table>"
    if link:
        html += f"<p><a href='{escape(link)}'>{escape(link)}</a></p>"
    return Content(subject, text or subject, _page(subject, html))


def _title(event: NotifiedEvent) -> str:
    title = event.detail.get("title")
    return f"{headline(event.kind)}: {title}" if title else headline(event.kind)


def _lines(event: NotifiedEvent) -> list[tuple[str, str]]:
    """Return the facts of an event as names and values."""
    facts: dict[str, object] = {}
    if event.task_id:
        facts["task"] = show_task(event.task_id)
    if event.dag_id:
        facts["graph"] = show_dag(event.dag_id)
    facts |= {name: value for name, value in event.detail.items() if name not in NOT_LISTED}
    facts["at"] = event.at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return [(name.replace("_", " "), _value(value)) for name, value in facts.items()]


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:MAX_VALUE]


def _link(event: NotifiedEvent, base_url: str | None) -> str:
    if base_url is None or event.thread is None:
        return ""
    if event.task_id:
        return f"{base_url}/tasks/{show_task(event.task_id)}"
    return f"{base_url}/graphs/{show_dag(event.thread)}"


def _page(subject: str, body: str) -> str:
    return f"<!doctype html><html><body><h1>{escape(subject)}</h1>{body}</body></html>"


def _data(event: NotifiedEvent) -> Mapping[str, Any]:
    """Return an event for programs. Its id is the same in every message about it."""
    return {
        "id": f"ntf_{event.id}",
        "subject": event.subject,
        "task_id": None if event.task_id is None else show_task(event.task_id),
        "dag_id": None if event.dag_id is None else show_dag(event.dag_id),
        "at": event.at.isoformat(),
        "detail": dict(event.detail),
    }
