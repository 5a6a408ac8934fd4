"""Editions of a task over HTTP: its ETag, and what an edit must say to be heeded."""

import re

from fastapi.responses import Response

from overnight.errors import InvalidRequest, PreconditionRequired
from overnight.models.account import DeadLetterChanges, TaskChanges
from overnight.models.tasks import TaskResponse
from overnight_server.control.edit import ANY, Changes, Unset, edition_of
from overnight_server.domain.priority import score

#: The header of an edit, as the description has it.
IF_MATCH = {
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "required": True,
            "description": "The ETag of the task as it was read, or * for whatever it is now.",
            "schema": {"type": "string", "pattern": r'^(\*|"[^"]{1,100}"(, ?"[^"]{1,100}"){0,9})$'},
            "example": "*",
        }
    ]
}
_TAGS = re.compile(r'\s*"([^"]{1,100})"\s*(?:,|$)')
MOST_TAGS = 10


def show_edition(response: Response, task: TaskResponse) -> None:
    """Give an answer that shows a task the tag by which the task can be edited."""
    # The stored priority is the exact score.
    row = {**vars(task), "priority": task.priority_score}
    response.headers["ETag"] = f'"{edition_of(row)}"'


def editions_in(header: str | None) -> list[str]:
    """Read If-Match: the editions an edit is meant for, or any."""
    if header is None:
        raise PreconditionRequired
    if header.strip() == ANY:
        return [ANY]
    found = _TAGS.findall(header)
    if not found or len(found) > MOST_TAGS or _TAGS.sub("", header).strip():
        raise InvalidRequest("If-Match", "is no ETag", legal='the ETag of the task, or "*" bare')
    return found


def changes_of(body: TaskChanges | None) -> Changes:
    """Read what is to be changed; what was left out stays as it is."""
    if body is None:
        return Changes()
    given = body.model_fields_set
    priority = body.priority_score
    if priority is None and body.priority is not None:
        priority = score(body.priority)
    return Changes(
        title=body.title,
        description=body.description,
        priority=priority,
        tags=body.tags,
        payload=body.payload if isinstance(body, DeadLetterChanges) else None,
        spec=body.spec if isinstance(body, DeadLetterChanges) else None,
        timeout_seconds=body.timeout_seconds if "timeout_seconds" in given else Unset.UNSET,
        deadline_at=body.deadline_at if "deadline_at" in given else Unset.UNSET,
    )
