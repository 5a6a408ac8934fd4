"""`overnight fairness`: how evenly users were served."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import arguments, options, output, task_output

if TYPE_CHECKING:
    from overnight.models.admin import Fairness, UserShare

HEADERS = ("USER", "STARTED", "WAITING", "LONGEST WAIT", "MEDIAN WAIT", "SLOT SHARE", "SERVICE")
OPTIONAL = ("SERVICE", "MEDIAN WAIT", "STARTED")
A_DAY, A_QUARTER = 86_400, 900
HOUR = 3_600


def fairness(
    *,
    since: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="Length of the period, such as 8h or 7d; rounded up to whole hours.",
            parser=arguments.seconds,
            show_default="24h",
        ),
    ] = A_DAY,
    alarm_after: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="A user whose tasks could run but wait longer than this is starving.",
            parser=arguments.seconds,
            show_default="15m",
        ),
    ] = A_QUARTER,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show how evenly users were served: waits, slot shares, Jain's index, starving users."""
    hours = -(-since // HOUR)
    with connection.client(url, api_key_file, as_admin=True) as client:
        report = client.admin.fairness(hours=hours, alarm_after_seconds=alarm_after)
    if as_json:
        output.document(task_output.as_document(report))
    else:
        _show(report)


def _show(report: "Fairness") -> None:
    rows = [_row(share) for share in report.users]
    output.table(HEADERS, rows, empty="No user had a ready task.", optional=OPTIONAL)
    output.record(
        {
            "since": report.since_at,
            "starts": str(report.starts),
            "longest wait": output.duration(report.longest_wait_seconds),
            "Jain's index": None if report.jain is None else f"{report.jain:.3f}",
            "starving": ", ".join(
                f"{user.user} ({output.duration(user.waited_seconds)})" for user in report.starving
            )
            or "nobody",
        }
    )
    if report.is_shortened:
        output.note("The period was shortened, because it has more runs than one report reads.")


def _row(share: "UserShare") -> tuple[object, ...]:
    return (
        share.user,
        share.started,
        share.waiting,
        output.duration(share.longest_wait),
        None if share.median_wait is None else output.duration(share.median_wait),
        f"{share.slot_share:.1%}",
        None if share.service is None else f"{share.service:.2f}",
    )
