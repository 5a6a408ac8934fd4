"""Routes of webhooks that come in: their sources, their deliveries, and the address for senders."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from overnight.errors import HookNotFound
from overnight.models.hooks import (
    Hook,
    HookChanges,
    HookCreate,
    HookCreated,
    HookDelivery,
    HookReceived,
    HookRemoved,
    HookRotate,
    Outcome,
)
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Dependencies, Injected
from overnight_server.api.http.pagination import PAGE, BeforeNumber, Limit, number_cursor, paginate
from overnight_server.api.http.params import parse_delivery_param, parse_hook_param
from overnight_server.api.http.request_body import SMALL, read_body
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control import hooks
from overnight_server.domain.ids import HookId, show_dag, show_hook, show_task
from overnight_server.insight.hooks import (
    HOOK_PATH,
    get_delivery,
    get_hook,
    list_deliveries,
    list_hooks,
)
from overnight_server.intake.hooks import Challenge, HookRequest, ReceivedEvent, receive, replay

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/hooks", tags=["hooks"])
#: Where senders post. It is no part of the described API: its callers have no key.
PATH = f"{HOOK_PATH}{{hook_id}}"


async def receive_hook(request: Request) -> Response:
    """Take a webhook: 202 with the ids of its tasks, once its sender has proven who it is."""
    deps: Dependencies = replace(request.app.state.dependencies)
    # Senders are not known before the body is read, so each address has a share of the memory.
    address = f"hooks {request.client.host if request.client else ''}"
    with deps.request_memory.hold(address) as held:
        seconds = deps.settings.request_body_timeout
        read = await read_body(request, SMALL, deps.request_memory, held, seconds)
        arrived = HookRequest(dict(request.headers), await read.body())
        received = await run_in_threadpool(
            receive, deps.db, _sent_to(request), arrived, deps.settings
        )
    if isinstance(received, Challenge):
        return PlainTextResponse(received.text)
    return JSONResponse(_answer(received).model_dump(), status_code=202)


@router.get("")
def list_own_hooks(deps: Injected, caller: Reader) -> list[Hook]:
    """List the caller's sources of webhooks by name."""
    return list_hooks(deps.db, caller.user_id)


@router.post("", status_code=201)
def create_hook(
    body: HookCreate, response: Response, deps: Injected, caller: Writer
) -> HookCreated:
    """Add a source of webhooks; its secret is in this response only."""
    added = hooks.add_hook(deps.db, caller.user_id, body, actor=caller.actor)
    response.headers["Location"] = f"{router.prefix}/{show_hook(added.hook_id)}"
    hook = get_hook(deps.db, caller.user_id, added.hook_id)
    return _with_secret(hook, added.secret)


@router.get("/{hook_id}")
def read_hook(hook_id: str, deps: Injected, caller: Reader) -> Hook:
    """Return one source of webhooks."""
    return get_hook(deps.db, caller.user_id, parse_hook_param(hook_id))


@router.patch("/{hook_id}")
def change_own_hook(hook_id: str, body: HookChanges, deps: Injected, caller: Writer) -> Hook:
    """Change, pause or resume a source of webhooks."""
    parsed_id = parse_hook_param(hook_id)
    hooks.change_hook(deps.db, caller.user_id, parsed_id, body, actor=caller.actor)
    return get_hook(deps.db, caller.user_id, parsed_id)


@router.post("/{hook_id}/rotate")
def rotate_hook_secret(
    hook_id: str, body: HookRotate, deps: Injected, caller: Writer
) -> HookCreated:
    """Give a source a new secret; the old one is accepted for a while too."""
    parsed_id = parse_hook_param(hook_id)
    secret = hooks.rotate_secret(deps.db, caller.user_id, parsed_id, body, actor=caller.actor)
    return _with_secret(get_hook(deps.db, caller.user_id, parsed_id), secret)


@router.delete("/{hook_id}")
def remove_own_hook(hook_id: str, deps: Injected, caller: Writer) -> HookRemoved:
    """Remove a source of webhooks; its address then answers as if it had never existed."""
    parsed_id = parse_hook_param(hook_id)
    hooks.remove_hook(deps.db, caller.user_id, parsed_id, actor=caller.actor)
    return HookRemoved(id=show_hook(parsed_id))


@router.get("/{hook_id}/deliveries")
def list_hook_deliveries(
    *,
    hook_id: str,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    outcome: Annotated[
        Outcome | None, Query(description="Only deliveries with this outcome.")
    ] = None,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[HookDelivery]:
    """List the deliveries of a source, latest first; Link has the next page."""
    deliveries = list_deliveries(
        deps.db,
        caller.user_id,
        parse_hook_param(hook_id),
        outcome=outcome,
        before=number_cursor(before),
        limit=limit + 1,
    )
    return paginate(request, response, deliveries, limit, lambda delivery: delivery.id)


@router.get("/deliveries/{delivery_id}")
def read_hook_delivery(delivery_id: str, deps: Injected, caller: Reader) -> HookDelivery:
    """Return one delivery with its body."""
    return get_delivery(deps.db, caller.user_id, parse_delivery_param(delivery_id))


@router.post("/deliveries/{delivery_id}/replay", status_code=202)
def replay_hook_delivery(delivery_id: str, deps: Injected, caller: Writer) -> HookReceived:
    """Make tasks of a delivery again, with the filter and the template of today."""
    number = parse_delivery_param(delivery_id)
    return _answer(replay(deps.db, caller.user_id, number, deps.settings))


def _sent_to(request: Request) -> HookId | None:
    try:
        return parse_hook_param(request.path_params["hook_id"])
    except HookNotFound:
        return None


def _with_secret(hook: Hook, secret: str) -> HookCreated:
    return HookCreated(**hook.model_dump(), secret=secret)


def _answer(received: ReceivedEvent) -> HookReceived:
    return HookReceived(
        delivery_id=received.delivery_id,
        outcome=received.outcome,
        task_ids=[show_task(task_id) for task_id in received.task_ids],
        dag_id=None if received.dag_id is None else show_dag(received.dag_id),
        repeated=received.is_repeated,
    )
