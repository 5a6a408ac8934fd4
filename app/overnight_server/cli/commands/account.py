"""`overnight limits`, `usage` and `window`: the caller's own limits, hours and night window."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output

if TYPE_CHECKING:
    from overnight.models.account import LedgerLine, Usage, UsageBreakdown

LEDGER_HEADERS = ("AT", "KIND", "DURATION", "TASK", "RUN", "NOTE")
CORRECTION = "(corrections by an admin)"


def limits(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show the limits of your plan and how much of them is used."""
    with connection.client(url, api_key_file) as client:
        own = client.limits()
    if as_json:
        output.document(task_output.as_document(own))
    else:
        task_output.show_limits(own)


def usage(
    *,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="List each charge and refund instead, latest first.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="With --ledger: largest number of entries.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show the hours of this billing month by day and type, what is left, and what is stored."""
    with connection.client(url, api_key_file) as client:
        if ledger:
            _show_ledger(list(client.usage.ledger(limit=limit)), as_json=as_json)
            return
        used, breakdown = client.usage.get(), client.usage.breakdown()
    if as_json:
        output.document({**task_output.as_document(used), **task_output.as_document(breakdown)})
    else:
        _show_usage(used, breakdown)


def _show_usage(used: "Usage", breakdown: "UsageBreakdown") -> None:
    limit, night = used.hours_limit, used.night
    began, resets = output.instant(used.period_started_at), output.instant(used.resets_at)
    left = None if limit is None else max(0.0, limit - used.hours_used - used.hours_reserved)
    output.record(
        {
            "month": f"{began} to {resets}",
            "hours used": task_output.hours_text(used.hours_used, limit),
            "hours reserved": f"{used.hours_reserved:.2f} by running tasks",
            "hours left": None if left is None else f"{left:.2f}",
            "spent tonight": task_output.cost_text(night.spent_usd),
            "night budget": None if night.limit_usd is None else f"${night.limit_usd:.2f}",
            "artifacts": f"{used.artifacts.number}, {task_output.storage_text(used.artifacts)}",
        }
    )
    if not breakdown.days:
        output.note("No hours are charged in this month.")
        return
    output.line("")
    days = [(entry.day.isoformat(), f"{entry.hours:.2f}", entry.runs) for entry in breakdown.days]
    output.table(("DAY (UTC)", "HOURS", "RUNS"), days)
    output.line("")
    types = [
        (entry.type or CORRECTION, f"{entry.hours:.2f}", entry.runs) for entry in breakdown.types
    ]
    output.table(("TYPE", "HOURS", "RUNS"), types)


def _show_ledger(entries: "list[LedgerLine]", *, as_json: bool) -> None:
    if as_json:
        output.document([task_output.as_document(entry) for entry in entries])
        return
    rows = [
        (
            entry.recorded_at,
            entry.kind,
            f"{'-' if entry.seconds < 0 else ''}{output.duration(abs(entry.seconds))}",
            None if entry.task_id is None else output.Id(entry.task_id),
            entry.epoch,
            entry.note,
        )
        for entry in entries
    ]
    empty = "No hours are charged in this month."
    output.table(LEDGER_HEADERS, rows, empty=empty, optional=("RUN", "KIND"))


def window(
    *,
    zone: options.WindowZone = None,
    opens: options.WindowOpens = None,
    closes: options.WindowCloses = None,
    at_closing: options.WindowAtClosing = None,
    off: options.WindowOff = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show or set your night window: your tasks start only inside it."""
    fields = options.window_fields(zone, opens, closes, at_closing, off=off)
    with connection.client(url, api_key_file) as client:
        if off:
            me = client.me.drop_window()
        elif fields is not None:
            me = client.me.set_window(
                fields["zone"], fields["opens"], fields["closes"], at_closing=fields["at_closing"]
            )
        else:
            me = client.me.get()
    if as_json:
        output.document({"window": me.window and task_output.as_document(me.window)})
    elif me.window is None:
        output.line("You have no window: your tasks start at any time.")
    else:
        hours = f"{me.window.opens}-{me.window.closes} {me.window.zone}"
        output.line(f"Your tasks start {hours}; at closing: {me.window.at_closing}.")
