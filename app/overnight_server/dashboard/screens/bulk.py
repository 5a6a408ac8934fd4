"""Bulk operations: how far each is, what was refused, and its stop."""

from markupsafe import Markup
from starlette.responses import Response

from overnight.errors import BulkNotFound
from overnight.models.bulk import BulkOperation
from overnight_server.control.bulk import cancel_bulk
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.domain.ids import BulkId, MalformedId, parse_bulk
from overnight_server.insight.bulk import get_bulk, list_bulks

screen = Screen("bulk")
PAGE = 50
VERBS = {"retry": "Retry", "cancel": "Cancel", "reprioritise": "Set the priority of"}


@screen.page("/bulk")
def show_bulks(visit: Visit) -> Response:
    """Show the user's operations, newest first."""
    before = visit.query("before")
    found = list_bulks(
        visit.db, visit.user_id, limit=PAGE + 1, before=_parse(before) if before else None
    )
    older = f"/bulk?before={found[PAGE - 1].id}" if len(found) > PAGE else ""
    return visit.page(
        "bulks.html",
        title="Bulk operations",
        place="bulk",
        rows=[view_of(one) for one in found[:PAGE]],
        older=older,
    )


@screen.page("/bulk/{bulk_id}")
def show_bulk(visit: Visit, bulk_id: str) -> Response:
    """Show one operation and its progress."""
    view = view_of(get_bulk(visit.db, visit.user_id, _parse(bulk_id)))
    return visit.page("bulk.html", title="Bulk operation", place="bulk", row=view)


@screen.part("bulk")
def show_bulk_part(visit: Visit, key: str) -> Markup:
    """Return one operation as its page shows it."""
    view = view_of(get_bulk(visit.db, visit.user_id, _parse(key)))
    return visit.fragment("parts/bulk.html", row=view)


@screen.act("/bulk/{bulk_id}/stop")
def stop(visit: Visit, bulk_id: str) -> Response:
    """Stop an operation; what it has changed stays changed."""
    cancel_bulk(visit.db, visit.user_id, _parse(bulk_id), actor=visit.actor)
    return visit.done("The operation is stopped. What it has changed stays changed.")


def view_of(operation: BulkOperation) -> dict[str, object]:
    """Return what the pages show of one operation."""
    total = max(operation.total, operation.done, 1)
    shares = [
        ("ok", operation.changed / total),
        ("idle", operation.skipped / total),
        ("bad", sum(operation.refused.values()) / total),
    ]
    label = f"{operation.done} of {operation.total} tasks processed"
    return {"bulk": operation, "verb": VERBS[operation.action], "meter": meter(shares, label)}


def _parse(text: str) -> BulkId:
    try:
        return parse_bulk(text)
    except MalformedId:
        raise BulkNotFound from None
