"""The options that select tasks, for `overnight list` and `overnight bulk`."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overnight_server.cli.terminal import arguments, short_ids

if TYPE_CHECKING:
    from overnight import Client

FILTER = "Filter"


def _text(option: str, text: str, *more: str) -> Any:  # noqa: ANN401 - Typer's own type is private
    return typer.Option(option, *more, help=text, rich_help_panel=FILTER)


def _instant(option: str, text: str) -> Any:  # noqa: ANN401 - Typer's own type is private
    return typer.Option(
        option,
        metavar="INSTANT",
        help=text,
        parser=arguments.past_instant,
        rich_help_panel=FILTER,
    )


@dataclass(frozen=True)
class FilterOptions:
    """Criteria with the field names of the API; a task must match all that are given."""

    status: Annotated[
        str | None,
        _text(
            "--status",
            "Only tasks with this status or state, such as pending or dead_lettered.",
            "--state",
        ),
    ] = None
    type: Annotated[str | None, _text("--type", "Only tasks of this type.")] = None
    tag: Annotated[str | None, _text("--tag", "Only tasks with this tag.")] = None
    project_id: Annotated[str | None, _text("--project", "Only tasks of this project.")] = None
    source: Annotated[
        str | None, _text("--source", "Only tasks from this source, such as api or cli.")
    ] = None
    title: Annotated[str | None, _text("--title", "Only tasks whose title contains this text.")] = (
        None
    )
    created_after: Annotated[
        datetime | None,
        _instant(
            "--created-after",
            "Only tasks created at this instant or later, such as 8h (ago) or 2030-01-31T07:00Z.",
        ),
    ] = None
    created_before: Annotated[
        datetime | None, _instant("--created-before", "Only tasks created before this instant.")
    ] = None
    dag_id: Annotated[
        str | None,
        typer.Option(
            "--dag",
            metavar="ID",
            help="Only tasks of this graph: its id, or a unique beginning or ending of it.",
            rich_help_panel=FILTER,
        ),
    ] = None
    ended_after: Annotated[
        datetime | None,
        _instant("--ended-after", "Only tasks that ended at this instant or later, such as 8h."),
    ] = None
    ended_before: Annotated[
        datetime | None, _instant("--ended-before", "Only tasks that ended before this instant.")
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether at least one criterion is given."""
        return self != FilterOptions()

    def criteria(self, client: "Client") -> dict[str, Any]:
        """Return the criteria that are given; raise CommandFailure if --dag names no graph."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        given = {name: value for name, value in values if value is not None}
        if self.dag_id is not None:
            with short_ids.naming_option("--dag"):
                given["dag_id"] = short_ids.resolve_dag(client, self.dag_id)
        return given
