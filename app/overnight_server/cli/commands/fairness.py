"""`overnight fairness`: the receipts that nobody was kept waiting for another's sake."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import database
from overnight_server.cli.terminal import arguments, options, output

if TYPE_CHECKING:
    from overnight.models.admin import Fairness, UserShare

HEADERS = ("USER", "STARTED", "WAITING", "LONGEST WAIT", "MEDIAN WAIT", "SLOT SHARE", "SERVICE")
A_DAY, A_QUARTER = 86_400, 900
MINUTE, HOUR = 60, 3_600


def fairness(
    *,
    since: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="How far to look back, such as 8h or 7d.",
            parser=arguments.seconds,
            show_default="24h",
        ),
    ] = A_DAY,
    patience: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="How long a user who could be served may wait before it is an alarm.",
            parser=arguments.seconds,
            show_default="15m",
        ),
    ] = A_QUARTER,
    as_json: options.Json = False,
) -> None:
    """Show how evenly users were served: waits, slot shares, the Jain index, and who starves."""
    from datetime import timedelta

    from overnight_server.insight.fairness import fairness as read

    liveness = timedelta(seconds=database.settings().worker_liveness)
    with database.opened() as db:
        found = read(
            db,
            liveness=liveness,
            since=timedelta(seconds=since),
            starving_after=timedelta(seconds=patience),
        )
    if as_json:
        output.document(found.model_dump())
    else:
        _show(found)


def _show(found: "Fairness") -> None:
    output.table(HEADERS, [_row(one) for one in found.users], empty="Nobody had ready work.")
    output.record(
        {
            "since": found.since_at,
            "starts": found.starts,
            "longest wait": _span(found.longest_wait_seconds),
            "Jain index": None if found.jain is None else f"{found.jain:.3f}",
            "starving": ", ".join(
                f"{one.user} ({_span(one.waited_seconds)})" for one in found.starving
            )
            or "nobody",
        }
    )
    if found.is_shortened:
        output.note("The period was shortened: it holds more runs than one report reads.")


def _row(one: "UserShare") -> tuple[object, ...]:
    return (
        one.user,
        one.started,
        one.waiting,
        _span(one.longest_wait),
        None if one.median_wait is None else _span(one.median_wait),
        f"{one.slot_share:.1%}",
        None if one.service is None else f"{one.service:.2f}",
    )


def _span(seconds: float) -> str:
    """Write a duration for people.

    >>> _span(3725), _span(0.25)
    ('1h02m', '0.2s')
    """
    if seconds >= HOUR:
        return f"{int(seconds // HOUR)}h{int(seconds % HOUR // MINUTE):02}m"
    if seconds >= MINUTE:
        return f"{int(seconds // MINUTE)}m{int(seconds % MINUTE):02}s"
    return f"{seconds:.1f}s"
