"""Audit: who did what, and rows that contradict each other."""

from itertools import groupby

from starlette.responses import Response

from overnight.errors import FindingNotFound
from overnight_server.control.audit_findings import accept_finding
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.audit_findings import list_findings
from overnight_server.insight.audit_log import list_audit_entries
from overnight_server.insight.users import find_identity

screen = Screen("audit", for_admins=True)
MOST = 200
MAX_DIGITS = 18


@screen.page("/audit")
def show_audit(visit: Visit) -> Response:
    """Show the acts of people by day, and the findings of the audit."""
    name, act = visit.query("user"), visit.query("act")
    user = find_identity(visit.admin_db, name) if name else None
    entries = list_audit_entries(
        visit.admin_db, user_id=None if user is None else user.user_id, limit=MOST
    )
    if act:
        entries = [entry for entry in entries if entry.act.startswith(act)]
    days = [
        (day, list(found))
        for day, found in groupby(entries, key=lambda entry: visit.clock.local(entry.at).date())
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
        most=MOST,
    )


@screen.act("/audit/{finding_id}/accept", scope="admin")
def accept(visit: Visit, finding_id: str) -> Response:
    """Let a finding be, with a note; it is not reported again."""
    if not (finding_id.isdecimal() and len(finding_id) <= MAX_DIGITS):
        raise FindingNotFound(finding_id)
    accept_finding(visit.admin_db, int(finding_id), actor=visit.actor, note=visit.value("note"))
    return visit.done("The finding is accepted and will not be reported again.")
