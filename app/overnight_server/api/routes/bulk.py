"""Routes of bulk operations: one action on all tasks that a filter matches."""

from fastapi import APIRouter, Request, Response

from overnight.models.bulk import BulkOperation, BulkPreview, BulkRequest
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeBulk,
    Limit,
    bulk_cursor,
    paginate,
)
from overnight_server.api.http.params import IdempotencyKey, parse_bulk_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.bulk import BulkOrder, cancel_bulk, preview, start
from overnight_server.domain.bulk import Action
from overnight_server.domain.ids import show_bulk, show_task
from overnight_server.domain.priority import score
from overnight_server.insight.bulk import get_bulk, list_bulks
from overnight_server.intake.translate_request import idempotency_key

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1", tags=["bulk"])


@router.post(
    "/tasks/bulk",
    status_code=202,
    responses={
        200: {
            "model": BulkPreview | BulkOperation,
            "description": "A preview; or the existing operation of a repeated idempotency key.",
        }
    },
)
def begin_bulk(
    *,
    body: BulkRequest,
    response: Response,
    deps: Injected,
    caller: Writer,
    idempotency: IdempotencyKey = None,
) -> BulkOperation | BulkPreview:
    """Retry, cancel or reprioritise all tasks that a filter matches, or preview that."""
    order = order_of(body)
    if body.preview:
        response.status_code = 200
        result = preview(deps.db, caller.user_id, order)
        return BulkPreview(
            action=order.action,
            total=result.total,
            applies=result.applies,
            sample=[show_task(task_id) for task_id in result.sample],
        )
    started = start(
        deps.db,
        caller.user_id,
        order,
        actor=caller.actor,
        key_id=caller.key_id,
        idempotency_key=idempotency_key(body.idempotency_key, idempotency),
    )
    bulk_id = show_bulk(started.bulk_id)
    if not started.created:
        response.status_code = 200
    response.headers["Location"] = f"{router.prefix}/bulk/{bulk_id}"
    return get_bulk(deps.db, caller.user_id, started.bulk_id)


@router.get("/bulk")
def list_own_bulks(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    limit: Limit = PAGE,
    before: BeforeBulk = None,
) -> list[BulkOperation]:
    """List the caller's bulk operations, newest first."""
    bulks = list_bulks(deps.db, caller.user_id, limit=limit + 1, before=bulk_cursor(before))
    return paginate(request, response, bulks, limit, lambda bulk: bulk.id)


@router.get("/bulk/{bulk_id}")
def read_bulk(bulk_id: str, deps: Injected, caller: Reader) -> BulkOperation:
    """Return a bulk operation and its progress."""
    return get_bulk(deps.db, caller.user_id, parse_bulk_param(bulk_id))


@router.post("/bulk/{bulk_id}/cancel")
def cancel_own_bulk(bulk_id: str, deps: Injected, caller: Writer) -> BulkOperation:
    """Stop a bulk operation; what it has done already is not undone."""
    parsed_id = parse_bulk_param(bulk_id)
    cancel_bulk(deps.db, caller.user_id, parsed_id, actor=caller.actor)
    return get_bulk(deps.db, caller.user_id, parsed_id)


def order_of(body: BulkRequest) -> BulkOrder:
    """Return the order that a request body describes."""
    priority = body.priority_score
    if priority is None and body.priority is not None:
        priority = score(body.priority)
    return BulkOrder(Action(body.action), body.filter, priority, body.everything)
