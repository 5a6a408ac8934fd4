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


def _number(option: str, text: str) -> Any:  # noqa: ANN401 - Typer's own type is private
    return typer.Option(option, metavar="NUMBER", help=text, min=0, rich_help_panel=FILTER)


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
        list[str] | None,
        _text(
            "--status",
            "Only tasks with this status or state, such as pending or dead_lettered; may be"
            " repeated for several.",
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
    created_by: Annotated[
        str | None, _text("--by", "Only tasks of this creator, such as human:ada or ada.")
    ] = None
    error: Annotated[
        str | None, _text("--error", "Only tasks with this error class or text in the error.")
    ] = None
    lock: Annotated[str | None, _text("--lock", "Only tasks that need this lock.")] = None
    min_cost_usd: Annotated[
        float | None, _number("--min-cost", "Only tasks that have cost this many US dollars.")
    ] = None
    below_cost_usd: Annotated[
        float | None, _number("--below-cost", "Only tasks that have cost fewer US dollars.")
    ] = None
    min_attempts: Annotated[
        int | None, _number("--min-attempts", "Only tasks that have spent so many attempts.")
    ] = None
    waits_for: Annotated[
        str | None,
        _text(
            "--waits-for",
            "Only tasks that wait for this: dependency, start_at, retry_at, approval, lock, ready.",
        ),
    ] = None
    fingerprint: Annotated[
        str | None, _text("--fingerprint", "Only tasks of this group of dead letters.")
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether at least one criterion is given."""
        return bool(self._given())

    def criteria(self, client: "Client") -> dict[str, Any]:
        """Return the criteria that are given; raise CommandFailure if --dag names no graph."""
        given = self._given()
        if self.status:
            given["status"] = ",".join(self.status)
        if self.dag_id is not None:
            with short_ids.naming_option("--dag"):
                given["dag_id"] = short_ids.resolve_dag(client, self.dag_id)
        return given

    def _given(self) -> dict[str, Any]:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if value not in (None, [])}
