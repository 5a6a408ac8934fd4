"""Which tasks a list is about, as a query says it."""

from typing import Annotated

from fastapi import Depends, Query

from overnight.models.field_types import Instant
from overnight_server.insight.tasks import TaskCriteria

LONGEST = 500
Word = Annotated[str | None, Query(max_length=LONGEST)]
InstantQuery = Annotated[Instant | None, Query()]


def choice(
    *,
    type: Annotated[Word, Query(description="Only of this type.")] = None,  # noqa: A002 - the wire's word
    tag: Annotated[Word, Query(description="Only with this tag.")] = None,
    project_id: Annotated[Word, Query(description="Only of this project.")] = None,
    source: Annotated[Word, Query(description="Only what came through this door.")] = None,
    created_after: Annotated[InstantQuery, Query(description="Made then or later.")] = None,
    created_before: Annotated[InstantQuery, Query(description="Made before then.")] = None,
    title: Annotated[Word, Query(description="Whose title has these words.")] = None,
) -> TaskCriteria:
    """Read which tasks are meant."""
    return TaskCriteria(
        of_type=type,
        of_tag=tag,
        of_project=project_id,
        of_source=source,
        made_from=created_after,
        made_until=created_before,
        titled=title,
    )


Choice = Annotated[TaskCriteria, Depends(choice)]
