"""The content of the morning report, built when it is sent, so that it says what is true then."""

from datetime import timedelta
from uuid import UUID

from overnight_server.domain.ids import UserId
from overnight_server.domain.report_mail import render_report_mail
from overnight_server.insight.report import night_report
from overnight_server.notifier.contents import Content, one_line
from overnight_server.store.db import Db


def build_morning_report(
    db: Db, user_id: UUID, *, liveness: timedelta, base_url: str | None
) -> Content:
    """Return the report of the night that opened last; with `base_url` it has links.

    `db` sees every user. `liveness` is how long a worker counts as alive after a heartbeat.
    """
    report = night_report(db, UserId(user_id), liveness=liveness)
    subject, text, html = render_report_mail(report, base_url or "")
    return Content(one_line(subject), text, html)
