"""`overnight forecast`: when tasks are expected to start and end; also prints simulations."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands.tasks import AllUsers
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure
from overnight_server.domain.reasons import join_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overnight.models.tasks import ExpectedTime, Forecast, Plan

HEADERS = ("TASK", "STATE", "POS", "START", "90% BY", "END", "90% BY", "TITLE")
STEP_HEADERS = ("START", "90% BY", "END", "90% BY", "TYPE", "TITLE")
SHORT_TITLE = 18
MOST_LISTED = 5


def forecast(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Forecast only this task. Default: running tasks and the next in the queue.",
        ),
    ] = None,
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=100, help="Largest number of tasks to list.")
    ] = 50,
    all_users: AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Print when your tasks are expected to start and end, simulated with the scheduler's rules."""
    if all_users and task is None:
        raise CommandFailure("--all-users needs the ID of a task.", code=Code.USAGE)
    with connection.client(url, api_key_file, as_admin=all_users) as client:
        if task is not None and all_users:
            single = client.admin.forecast(short_ids.resolve_of_all_users(client, task))
            _show(single, as_json=as_json)
            return
        if task is not None:
            single = client.tasks.forecast(short_ids.resolve(client, task))
            _show(single, as_json=as_json)
            return
        forecasts = client.forecasts(limit=limit)
    if as_json:
        output.document([task_output.as_document(item) for item in forecasts])
        return
    rows = [_row(item) for item in forecasts]
    output.table(
        HEADERS, rows, empty="None of your tasks runs or waits.", optional=("POS", "STATE")
    )
    if forecasts:
        _print_legend()
    _print_shared_notes(forecasts)


def show_plan(plan: "Plan") -> None:
    """Print when each task of a batch is expected to start and end, and one line about all."""
    rows = [
        (*_times(step.start), *_times(step.finish), step.type, _cut(step.title))
        for step in plan.steps
    ]
    output.table(STEP_HEADERS, rows, optional=("TYPE",))
    _print_legend()
    _print_notes(plan.notes)
    output.line(verdict(plan))


def verdict(plan: "Plan") -> str:
    """Return one line about when a batch will have ended."""
    if plan.by_at is not None:
        by = output.instant(plan.by_at)
        return (
            f"{plan.sure} of {plan.tasks} will have ended by {by} with 90 % certainty,"
            f" {plan.likely} with 50 %."
        )
    median, p90 = plan.finish.p50_at, plan.finish.p90_at
    if median is None:
        subject = "The task will not" if plan.tasks == 1 else f"Not all {plan.tasks} tasks will"
        return f"{subject} end within a month."
    latest = f", with 90 % certainty by {output.instant(p90)}" if p90 else ""
    subject = "The task" if plan.tasks == 1 else f"All {plan.tasks} tasks"
    return f"{subject} will probably have ended by {output.instant(median)}{latest}."


def _print_legend() -> None:
    output.note(
        "START and END are medians; with 90 % certainty the task starts or ends by the time after"
        f" it. Times are {output.time_zone()}."
    )


def _show(forecast: "Forecast", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.as_document(forecast))
        return
    output.record(
        {
            "id": forecast.id,
            "title": forecast.title,
            "state": forecast.state,
            "position": forecast.queue_position,
            "start (median)": forecast.start.p50_at,
            "start (10 % by)": forecast.start.p10_at,
            "start (90 % by)": forecast.start.p90_at,
            "end (median)": forecast.finish.p50_at,
            "end (90 % by)": forecast.finish.p90_at,
            "based on": f"{forecast.observed_runs} earlier runs",
        }
    )
    _print_notes(forecast.notes)


def _row(forecast: "Forecast") -> tuple[object, ...]:
    return (
        output.Id(forecast.id),
        forecast.state,
        forecast.queue_position,
        *_times(forecast.start),
        *_times(forecast.finish),
        _cut(forecast.title),
    )


def _times(expected: "ExpectedTime") -> tuple[str | None, str | None]:
    return _short(expected.p50_at), _short(expected.p90_at)


def _short(at: datetime | None) -> str | None:
    return None if at is None else output.short_instant(at)


def _cut(title: str) -> str:
    return title if len(title) <= SHORT_TITLE else f"{title[: SHORT_TITLE - 1]}…"


def _print_shared_notes(forecasts: "Sequence[Forecast]") -> None:
    """Print each note once, with the ids of its tasks unless it concerns all of them."""
    ids_of_note: dict[str, list[str]] = {}
    for forecast in forecasts:
        for note in forecast.notes:
            ids_of_note.setdefault(note, []).append(output.shown_id(forecast.id))
    for note, ids in ids_of_note.items():
        concerned = f"{join_names(ids[:MOST_LISTED], len(ids))}: "
        output.note(f"Note: {'' if len(ids) == len(forecasts) else concerned}{note}.")


def _print_notes(notes: "Iterable[str]") -> None:
    for note in dict.fromkeys(notes):
        output.note(f"Note: {note}.")
