"""The routes of dead letters: list them one by one or by how they failed, and resolve them."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from overnight.errors import InvalidRequest, NotDeadLettered, TaskNotFound
from overnight.models.account import DeadLetter, DeadLetterGroup, ResolveRequest, ResolveResult
from overnight.models.admin import UserDeadLetter
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.etags import changes_of
from overnight_server.api.http.pagination import PAGE, BeforeNumber, Limit, page_of
from overnight_server.api.http.path_params import number_cursor, task_named
from overnight_server.control import dead_letters
from overnight_server.domain.ids import show_task
from overnight_server.insight.dead_letters import (
    get_dead_letter,
    group_dead_letters,
    list_dead_letters,
)
from overnight_server.insight.tasks import get_task
from overnight_server.intake.caps import Caps

router = APIRouter(prefix="/api/v1/dead-letters", tags=["dead letters"])


@router.get("", response_model=list[DeadLetter])
def list_own_dead_letters(
    *,
    request: Request,
    response: Response,
    parts: Use,
    caller: Reader,
    resolved: Annotated[bool, Query(description="Also those that are resolved.")] = False,
    fingerprint: Annotated[
        str | None, Query(max_length=40, description="Only those of one group.")
    ] = None,
    limit: Limit = PAGE,
    before: BeforeNumber = None,
) -> list[UserDeadLetter]:
    """List the caller's tasks that failed for good and wait for a person, the latest first."""
    found = list_dead_letters(
        parts.db,
        user_id=caller.user_id,
        resolved=resolved,
        fingerprint=fingerprint,
        before=number_cursor(before),
        limit=limit + 1,
    )
    return page_of(request, response, found, limit, lambda letter: letter.id)


# Before the route of one dead letter, which would take the word for an id.
@router.get("/groups")
def list_own_groups(parts: Use, caller: Reader, limit: Limit = PAGE) -> list[DeadLetterGroup]:
    """List the ways in which the caller's tasks fail for good, the most frequent first."""
    return group_dead_letters(parts.db, user_id=caller.user_id, limit=limit)


@router.get("/{task_id}", response_model=DeadLetter)
def read_dead_letter(task_id: str, parts: Use, caller: Reader) -> UserDeadLetter:
    """Show a task's latest dead letter, with every run that failed."""
    named = task_named(task_id)
    state = get_task(parts.db, caller.user_id, named).state
    try:
        return get_dead_letter(parts.db, named, user_id=caller.user_id)
    except TaskNotFound:
        raise NotDeadLettered(state) from None


@router.post("/{task_id}/resolve")
def resolve_dead_letter(
    task_id: str, body: ResolveRequest, parts: Use, caller: Writer
) -> ResolveResult:
    """Run a dead task again, as it is or changed, or let it rest."""
    named = task_named(task_id)
    if body.changes is not None and body.resolution != "modify_and_retry":
        raise InvalidRequest("changes", f"go with no {body.resolution}", legal="modify_and_retry")
    actor = f"user:{caller.user_id}"
    db, user_id, note = parts.db, caller.user_id, body.note
    caps = Caps.of(parts.settings)
    if body.resolution == "cancel":
        dead_letters.discard(db, named, actor=actor, note=note, user_id=user_id)
    elif body.resolution == "retry":
        dead_letters.retry(
            db, named, actor=actor, note=note, attempts=body.attempts, user_id=user_id, caps=caps
        )
    else:
        changes = changes_of(body.changes)
        if changes.are_none:
            legal = "at least one field to change"
            raise InvalidRequest("changes", "nothing is to be changed", legal=legal)
        dead_letters.modify_and_retry(
            db,
            named,
            changes,
            actor=actor,
            note=note,
            attempts=body.attempts,
            user_id=user_id,
            caps=caps,
        )
    state = get_task(db, user_id, named).state
    return ResolveResult(task_id=show_task(named), resolution=body.resolution, state=state)
