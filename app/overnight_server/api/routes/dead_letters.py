"""Routes of dead letters: list them, one by one or grouped, and resolve them."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from overnight.errors import InvalidRequest, NotDeadLettered, TaskNotFound
from overnight.models.account import DeadLetter, DeadLetterGroup, ResolveRequest, ResolveResult
from overnight.models.admin import UserDeadLetter
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import (
    PAGE,
    BeforeNumber,
    Limit,
    number_cursor,
    paginate,
)
from overnight_server.api.http.params import parse_task_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.tasks import parse_changes
from overnight_server.control import dead_letters
from overnight_server.domain.ids import show_task
from overnight_server.insight.dead_letters import (
    get_dead_letter,
    group_dead_letters,
    list_dead_letters,
)
from overnight_server.insight.tasks import get_task
from overnight_server.intake.caps import Caps

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/dead-letters", tags=["dead letters"])


@router.get("", response_model=list[DeadLetter])
def list_own_dead_letters(
    *,
    request: Request,
    response: Response,
    deps: Injected,
    caller: Reader,
    resolved: Annotated[bool, Query(description="Include resolved ones.")] = False,
    fingerprint: Annotated[
        str | None, Query(max_length=40, description="Only dead letters with this fingerprint.")
    ] = None,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[UserDeadLetter]:
    """List the caller's tasks that failed for good and wait for a decision, newest first."""
    letters = list_dead_letters(
        deps.db,
        user_id=caller.user_id,
        resolved=resolved,
        fingerprint=fingerprint,
        before=number_cursor(before),
        limit=limit + 1,
    )
    return paginate(request, response, letters, limit, lambda letter: letter.id)


# Declared before /{task_id}, which would take `groups` for an id.
@router.get("/groups")
def list_own_groups(deps: Injected, caller: Reader, limit: Limit = PAGE) -> list[DeadLetterGroup]:
    """List the caller's open dead letters grouped by fingerprint, the largest group first."""
    return group_dead_letters(deps.db, user_id=caller.user_id, limit=limit)


@router.get("/{task_id}", response_model=DeadLetter)
def read_dead_letter(task_id: str, deps: Injected, caller: Reader) -> UserDeadLetter:
    """Return a task's newest dead letter with every failed run."""
    parsed_id = parse_task_param(task_id)
    state = get_task(deps.db, caller.user_id, parsed_id).state
    try:
        return get_dead_letter(deps.db, parsed_id, user_id=caller.user_id)
    except TaskNotFound:
        raise NotDeadLettered(state) from None


@router.post("/{task_id}/resolve")
def resolve_dead_letter(
    task_id: str, body: ResolveRequest, deps: Injected, caller: Writer
) -> ResolveResult:
    """Resolve a dead letter: retry the task, change and retry it, or cancel it."""
    parsed_id = parse_task_param(task_id)
    if body.changes is not None and body.resolution != "modify_and_retry":
        message = f"cannot be combined with the resolution {body.resolution}"
        raise InvalidRequest("changes", message, legal="none, or use modify_and_retry")
    actor = f"user:{caller.user_id}"
    db, user_id, note = deps.db, caller.user_id, body.note
    caps = Caps.of(deps.settings)
    if body.resolution == "cancel":
        dead_letters.discard(db, parsed_id, actor=actor, note=note, user_id=user_id)
    elif body.resolution == "retry":
        dead_letters.retry(
            db,
            parsed_id,
            actor=actor,
            note=note,
            attempts=body.attempts,
            user_id=user_id,
            caps=caps,
        )
    else:
        changes = parse_changes(body.changes)
        if changes.is_empty:
            legal = "at least one field to change"
            raise InvalidRequest("changes", "contains no change", legal=legal)
        dead_letters.modify_and_retry(
            db,
            parsed_id,
            changes,
            actor=actor,
            note=note,
            attempts=body.attempts,
            user_id=user_id,
            caps=caps,
        )
    state = get_task(db, user_id, parsed_id).state
    return ResolveResult(task_id=show_task(parsed_id), resolution=body.resolution, state=state)
