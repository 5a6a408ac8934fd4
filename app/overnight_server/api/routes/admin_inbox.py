"""Admin routes for the inbox, where programs write tasks in their own transactions.

Only admins can call them; other callers get 404.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from overnight.models.admin import InboxResolved, InboxRow
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.params import parse_inbox_row_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.admin_keys import ManyLimit
from overnight_server.control.inbox import drop_row, retry_row
from overnight_server.insight.inbox import list_inbox

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin/inbox", tags=["admin"])
RowId = Annotated[str, Path(description="Number of the row.")]


@router.get("")
def list_all_rows(
    deps: Injected,
    _caller: Admin,
    resolved: Annotated[bool, Query(description="List all rows.")] = False,  # noqa: FBT002 - a query
    limit: ManyLimit = 50,
) -> list[InboxRow]:
    """List the rows that wait or were refused, oldest first."""
    return list_inbox(deps.admin_db, resolved=resolved, limit=limit)


@router.post("/{row_id}/retry")
def retry_inbox_row(row_id: RowId, deps: Injected, caller: Admin) -> InboxResolved:
    """Retry a row that was refused."""
    row = parse_inbox_row_param(row_id)
    retry_row(deps.admin_db, row, actor=f"user:{caller.user_id}")
    return InboxResolved(id=row, resolution="retry")


@router.post("/{row_id}/drop")
def drop_inbox_row(row_id: RowId, deps: Injected, caller: Admin) -> InboxResolved:
    """Drop a row that waits or was refused; it stays on record and never becomes a task."""
    row = parse_inbox_row_param(row_id)
    drop_row(deps.admin_db, row, actor=f"user:{caller.user_id}")
    return InboxResolved(id=row, resolution="drop")
