"""ETags of tasks: the version of a task, and the header If-Match that an edit must send."""

import re

from fastapi.responses import Response

from overnight.errors import InvalidRequest, PreconditionRequired
from overnight.models.tasks import TaskResponse
from overnight_server.control.edit import ANY, edition_of

#: The description of the header If-Match in OpenAPI.
IF_MATCH = {
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "required": True,
            "description": "The ETag of the task as it was read, or * for any version.",
            "schema": {"type": "string", "pattern": r'^(\*|"[^"]{1,100}"(, ?"[^"]{1,100}"){0,9})$'},
            "example": "*",
        }
    ]
}
_TAGS = re.compile(r'\s*"([^"]{1,100})"\s*(?:,|$)')
MAX_TAGS = 10


def add_etag(response: Response, task: TaskResponse) -> None:
    """Set the header ETag of a response that contains a task."""
    # `edition_of` takes the stored priority, which is the exact score.
    row = {**vars(task), "priority": task.priority_score}
    response.headers["ETag"] = f'"{edition_of(row)}"'


def parse_if_match(header: str | None) -> list[str]:
    """Return the versions in the header If-Match, or [ANY] for `*`.

    Raises PreconditionRequired without the header and InvalidRequest if it is malformed.
    """
    if header is None:
        raise PreconditionRequired
    if header.strip() == ANY:
        return [ANY]
    tags = _TAGS.findall(header)
    if not tags or len(tags) > MAX_TAGS or _TAGS.sub("", header).strip():
        raise InvalidRequest(
            "If-Match", "is not an ETag", legal="the ETag of the task, or * without quotes"
        )
    return tags
