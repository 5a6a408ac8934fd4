"""Audit: who did what, and rows that contradict each other."""

from datetime import datetime
from itertools import groupby
from urllib.parse import urlencode

from starlette.responses import Response

from overnight.errors import FindingNotFound
from overnight_server.control.audit_findings import accept_finding
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.audit_findings import list_findings
from overnight_server.insight.audit_log import FIRST_PAGE, AuditPage, list_audit_entries
from overnight_server.insight.users import find_identity

screen = Screen("audit", for_admins=True)
PAGE = 200
MAX_DIGITS = 18


@screen.page("/audit")
def show_audit(visit: Visit) -> Response:
    """Show the acts of people by day, and the findings of the audit."""
    name, act = visit.query("user"), visit.query("act")
    user = find_identity(visit.admin_db, name) if name else None
    page = _page(visit)
    found = list_audit_entries(
        visit.admin_db,
        user_id=None if user is None else user.user_id,
        act=act,
        page=page,
        limit=PAGE + 1,
    )
    entries = found[:PAGE]
    older = _address(name, act, page.after(entries)) if len(found) > PAGE else ""
    days = [
        (day, list(acts))
        for day, acts in groupby(entries, key=lambda entry: visit.clock.local(entry.at).date())
    ]
    return visit.page(
        "audit.html",
        title="Audit",
        place="audit",
        days=days,
        number=len(entries),
        name=name,
        act=act,
        is_unknown=bool(name) and user is None,
        findings=list_findings(visit.admin_db),
        is_first=page == FIRST_PAGE,
        older=older,
    )


def _page(visit: Visit) -> AuditPage:
    """Return the page that the address names; the first one for any other text."""
    skip = visit.query("skip")
    try:
        until = datetime.fromisoformat(visit.query("before"))
    except ValueError:
        return FIRST_PAGE
    if until.tzinfo is None or not (skip.isdecimal() and len(skip) <= MAX_DIGITS):
        return FIRST_PAGE
    return AuditPage(until, int(skip))


def _address(name: str, act: str, page: AuditPage) -> str:
    until = "" if page.until is None else page.until.isoformat()
    return f"/audit?{urlencode({'user': name, 'act': act, 'before': until, 'skip': page.skip})}"


@screen.act("/audit/{finding_id}/accept", scope="admin")
def accept(visit: Visit, finding_id: str) -> Response:
    """Let a finding be, with a note; it is not reported again."""
    if not (finding_id.isdecimal() and len(finding_id) <= MAX_DIGITS):
        raise FindingNotFound(finding_id)
    accept_finding(visit.admin_db, int(finding_id), actor=visit.actor, note=visit.value("note"))
    return visit.done("The finding is accepted and will not be reported again.")
