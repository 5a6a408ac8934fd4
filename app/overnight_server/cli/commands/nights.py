"""Commands of nights: the slots of a night, and the morning report."""

from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight.models.nights import UserNight


def night(
    day: Annotated[
        str | None,
        typer.Argument(metavar="DATE", help="The date on which the night began; else the latest."),
    ] = None,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Draw a night: what each slot of your plan did, and why it was empty."""
    with connection.client(url, api_key_file) as client:
        shown = client.nights.get(_date(day))
    if as_json:
        output.document(task_output.as_document(shown))
    else:
        _draw(shown)


def report(
    *,
    night: Annotated[
        str | None,
        typer.Option("--night", metavar="DATE", help="The date on which the night began."),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Print the morning report: what a night did, and what needs you."""
    from overnight_server.domain.report_text import report_markdown, report_text

    if as_json and as_markdown:
        raise CommandFailure("--json and --md cannot be used together", code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        made = client.nights.report(_date(night))
    if as_json:
        output.document(task_output.as_document(made))
    else:
        output.text(report_markdown(made) if as_markdown else report_text(made))


def _date(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CommandFailure(
            f"{text!r} is no date; write one such as 2026-11-16", code=Code.USAGE
        ) from None


def _draw(shown: "UserNight") -> None:
    from overnight_server.domain.report_text import LEGEND, describe_night, draw_night

    tally = shown.tally
    output.record(
        {
            "night": str(shown.date),
            "opens": shown.opens_at,
            "closes": shown.closes_at,
            "tasks": f"{tally.done} of {tally.total} done, {tally.dead} failed,"
            f" {tally.running} running, {tally.waiting} waiting, {tally.cancelled} cancelled",
        }
    )
    if lines := draw_night(shown):
        output.line("")
        output.line(f"         {LEGEND}")
        for line in lines:
            output.line(line)
    for line in describe_night(shown):
        output.line(f"         {output.printable(line)}")
