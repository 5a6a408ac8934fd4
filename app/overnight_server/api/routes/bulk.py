"""The routes of bulk operations: one action for all that the list's own filter chooses."""

from fastapi import APIRouter, Request, Response

from overnight.models.bulk import BulkOperation, BulkPreview, BulkRequest
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.idempotency import IdempotencyKey
from overnight_server.api.http.pagination import PAGE, BeforeBulk, Limit, page_of
from overnight_server.api.http.path_params import bulk_cursor, bulk_named
from overnight_server.control.bulk import Order, cancel_bulk, preview, start
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import show_bulk, show_task
from overnight_server.domain.priority import score
from overnight_server.insight.bulk import get_bulk, list_bulks
from overnight_server.intake.translate_request import idempotency_key

router = APIRouter(prefix="/api/v1", tags=["bulk"])


@router.post(
    "/tasks/bulk",
    status_code=202,
    responses={
        200: {
            "model": BulkPreview | BulkOperation,
            "description": "What would be done; or, of a key that was known, what is.",
        }
    },
)
def begin_bulk(
    *,
    body: BulkRequest,
    response: Response,
    parts: Use,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> BulkOperation | BulkPreview:
    """Retry, cancel or reprioritise all tasks that a filter chooses, or tell how many it would."""
    order = order_of(body)
    if body.preview:
        response.status_code = 200
        would = preview(parts.db, caller.user_id, order)
        sample = [show_task(task) for task in would.sample]
        return BulkPreview(
            action=order.action, total=would.total, applies=would.applies, sample=sample
        )
    started = start(
        parts.db,
        caller.user_id,
        order,
        actor=caller.actor,
        key_id=caller.key_id,
        idempotency_key=idempotency_key(body.idempotency_key, idempotency),
    )
    shown = show_bulk(started.bulk_id)
    if not started.created:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/bulk/{shown}"
    return get_bulk(parts.db, caller.user_id, started.bulk_id)


@router.get("/bulk")
def list_own_bulks(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeBulk = None,
) -> list[BulkOperation]:
    """List the caller's bulk operations, newest first."""
    found = list_bulks(parts.db, caller.user_id, limit=limit + 1, before=bulk_cursor(before))
    return page_of(request, response, found, limit, lambda bulk: bulk.id)


@router.get("/bulk/{bulk_id}")
def read_bulk(bulk_id: str, parts: Use, caller: Reader) -> BulkOperation:
    """Tell how far a bulk operation has got."""
    return get_bulk(parts.db, caller.user_id, bulk_named(bulk_id))


@router.post("/bulk/{bulk_id}/cancel")
def cancel_own_bulk(bulk_id: str, parts: Use, caller: Writer) -> BulkOperation:
    """Let a bulk operation go no further; what it has done stays done."""
    named = bulk_named(bulk_id)
    cancel_bulk(parts.db, caller.user_id, named, actor=caller.actor)
    return get_bulk(parts.db, caller.user_id, named)


def order_of(body: BulkRequest) -> Order:
    """Read what is asked for."""
    priority = body.priority_score
    if priority is None and body.priority is not None:
        priority = score(body.priority)
    return Order(Action(body.action), body.filter, priority, body.everything)
