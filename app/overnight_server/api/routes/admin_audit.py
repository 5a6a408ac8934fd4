"""Admin routes for the findings of the audit: rows that contradict each other.

Only admins can call them; other callers get 404.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from overnight.models.admin import AuditFinding, FindingAcceptance, FindingAccepted
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.params import parse_finding_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.admin_keys import ManyLimit
from overnight_server.control.audit_findings import accept_finding
from overnight_server.insight.audit_findings import list_findings

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin/audit", tags=["admin"])
NO_NOTE = FindingAcceptance()


@router.get("/findings")
def list_audit_findings(
    deps: Injected,
    _caller: Admin,
    everything: Annotated[  # noqa: FBT002 - a query
        bool, Query(description="List findings that were accepted, repaired or are gone too.")
    ] = False,
    limit: ManyLimit = 100,
) -> list[AuditFinding]:
    """List the open findings of the audit, newest first."""
    return list_findings(deps.admin_db, everything=everything, limit=limit)


@router.post("/findings/{finding_id}/accept")
def accept_audit_finding(
    finding_id: Annotated[str, Path(description="Number of the finding.")],
    deps: Injected,
    caller: Admin,
    body: FindingAcceptance = NO_NOTE,
) -> FindingAccepted:
    """Let a finding be: it is not reported again."""
    finding = parse_finding_param(finding_id)
    accept_finding(deps.admin_db, finding, actor=f"user:{caller.user_id}", note=body.note)
    return FindingAccepted(id=finding)
