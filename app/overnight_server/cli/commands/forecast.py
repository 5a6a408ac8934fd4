"""What lies ahead: `overnight forecast` for what is queued, and how a rehearsal is shown."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.commands import all_users
from overnight_server.cli.terminal import options, output, short_ids, task_output
from overnight_server.cli.terminal.failures import Code, Failure
from overnight_server.domain.reasons import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overnight.models.tasks import ExpectedTime, Forecast, Plan

# Short times and short names, so that eighty columns hold them.
HEADERS = ("TASK", "STATE", "NO", "STARTS", "OR BY", "ENDS", "OR BY", "TITLE")
STEPS = ("STARTS", "OR BY", "ENDS", "OR BY", "TYPE", "TITLE")
LEGEND = "Times are UTC; the first is as likely too early as too late, OR BY is met 9 times in 10."
# The end of an id tells tasks apart, and every command takes it for the whole.
SHORT_ID = 8
SHORT_TITLE = 18
NAMED = 5


def forecast(
    task: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Only this task; else those that run and come next."),
    ] = None,
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many at most.")] = 50,
    for_all_users: all_users.AllUsers = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Tell when your tasks will start and end, as the gate's own rules have it."""
    if for_all_users:
        all_users.refuse_connection(url, api_key_file)
        if task is None:
            raise Failure("--all-users needs the id of a task", code=Code.USAGE)
        _show(all_users.forecast(task), as_json=as_json)
        return
    with connection.client(url, api_key_file) as client:
        if task is not None:
            found = client.tasks.forecast(short_ids.resolve(client, task))
            _show(found, as_json=as_json)
            return
        all_found = client.forecasts(limit=limit)
    if as_json:
        output.document([task_output.plain(one) for one in all_found])
        return
    output.table(HEADERS, [_row(one) for one in all_found], empty="Nothing of yours waits.")
    if all_found:
        output.note(LEGEND)
    _explain_each(all_found)


def show_plan(answer: "Plan") -> None:
    """Print when each task of a batch is expected, and in one line what it comes to."""
    rows = [
        (*_band(step.start), *_band(step.finish), step.type, _cut(step.title))
        for step in answer.steps
    ]
    output.table(STEPS, rows)
    output.note(LEGEND)
    _explain(answer.notes)
    output.line(verdict(answer))


def verdict(answer: "Plan") -> str:
    """Say in one line what a batch comes to."""
    if answer.by_at is not None:
        by = output.instant(answer.by_at)
        sure, likely = f"{answer.sure} of {answer.tasks}", answer.likely
        return f"{sure} will finish by {by} (9 times in 10), {likely} probably."
    middle, latest = answer.finish.p50_at, answer.finish.p90_at
    if middle is None:
        who = "It will not" if answer.tasks == 1 else f"Not all of the {answer.tasks} will"
        return f"{who} finish within a month."
    late = f", 9 times in 10 by {output.instant(latest)}" if latest else ""
    who = "It" if answer.tasks == 1 else f"All {answer.tasks}"
    return f"{who} will probably finish by {output.instant(middle)}{late}."


def _show(found: "Forecast", *, as_json: bool) -> None:
    if as_json:
        output.document(task_output.plain(found))
        return
    output.record(
        {
            "id": found.id,
            "title": found.title,
            "state": found.state,
            "position": found.queue_position,
            "starts": found.start.p50_at,
            "… 1 in 10 before": found.start.p10_at,
            "… 9 in 10 by": found.start.p90_at,
            "ends": found.finish.p50_at,
            "… and 9 in 10 by": found.finish.p90_at,
            "runs seen": found.observed_runs or "none",
        }
    )
    _explain(found.notes)


def _row(one: "Forecast") -> tuple[object, ...]:
    return (
        one.id[-SHORT_ID:],
        one.state,
        one.queue_position,
        *_band(one.start),
        *_band(one.finish),
        _cut(one.title),
    )


def _band(at: "ExpectedTime") -> tuple[str | None, str | None]:
    return _short(at.p50_at), _short(at.p90_at)


def _short(at: datetime | None) -> str | None:
    return None if at is None else output.short_instant(at)


def _cut(title: str) -> str:
    return title if len(title) <= SHORT_TITLE else f"{title[: SHORT_TITLE - 1]}…"


def _explain_each(all_found: "Sequence[Forecast]") -> None:
    """Say each note once: for all, or for the tasks that it is about."""
    about: dict[str, list[str]] = {}
    for one in all_found:
        for note in one.notes:
            about.setdefault(note, []).append(one.id[-SHORT_ID:])
    for note, ids in about.items():
        whose = "" if len(ids) == len(all_found) else f"{listed(ids[:NAMED], len(ids))}: "
        output.note(f"Note: {whose}{note}.")


def _explain(notes: "Iterable[str]") -> None:
    for note in dict.fromkeys(notes):
        output.note(f"Note: {note}.")
