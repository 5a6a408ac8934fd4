"""`overnight stats`: what the deployment did, hour by hour, as a table with bars or as JSON."""

from typing import TYPE_CHECKING, Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import arguments, options, output, task_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overnight.models.admin import QueueHour, QueueStatistics

HEADERS = ("HOUR", "CREATED", "DONE", "FAILED", "WAIT P95", "LATENCY", "COST", "DONE AND FAILED")
OPTIONAL = ("DONE AND FAILED", "COST", "LATENCY", "CREATED")
HALF_A_DAY = 43_200
HOUR = 3_600
BAR = 24
DONE, FAILED = "█", "░"
LEVELS = "▁▂▃▄▅▆▇█"


def stats(
    *,
    since: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="Length of the period, such as 8h or 7d; rounded up to whole hours.",
            parser=arguments.seconds,
            show_default="12h",
        ),
    ] = HALF_A_DAY,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show what the deployment did in the last night: tasks, waits, latency, errors and cost."""
    with connection.client(url, api_key_file, as_admin=True) as client:
        statistics = client.admin.stats(hours=-(-since // HOUR))
    if as_json:
        output.document(task_output.as_document(statistics))
    else:
        _show(statistics)


def _show(statistics: "QueueStatistics") -> None:
    hours, total = statistics.hours, statistics.total
    most = max((hour.tasks_completed + hour.tasks_failed for hour in hours), default=0)
    rows = [_row(hour, most) for hour in hours]
    output.table(HEADERS, rows, empty="No hour.", optional=OPTIONAL)
    output.record(
        {
            "created": _with_line(total.tasks_created, [hour.tasks_created for hour in hours]),
            "done": _with_line(total.tasks_completed, [hour.tasks_completed for hour in hours]),
            "failed": _with_line(total.tasks_failed, [hour.tasks_failed for hour in hours]),
            "dead letters": str(total.tasks_dead_lettered),
            "cancelled": str(total.tasks_cancelled),
            "wait": f"median {_seconds(total.wait_p50) or '-'}, "
            f"95 % below {_seconds(total.wait_p95) or '-'}",
            "latency": _seconds(total.average_latency),
            "heartbeat delay": _seconds(total.worker_heartbeat_delay),
            "cost": f"${total.cost_usd:.2f}",
            "error rates": ", ".join(
                f"{agent or 'unknown'} {rate:.1%}"
                for agent, rate in total.error_rates_per_agent.items()
            )
            or None,
        }
    )


def _row(hour: "QueueHour", most: int) -> tuple[object, ...]:
    return (
        hour.hour,
        hour.tasks_created,
        hour.tasks_completed,
        hour.tasks_failed,
        _seconds(hour.wait_p95),
        _seconds(hour.average_latency),
        f"${hour.cost_usd:.2f}" if hour.cost_usd else None,
        bar(hour.tasks_completed, hour.tasks_failed, most),
    )


def bar(done: int, failed: int, most: int) -> str:
    """Return a bar in proportion to the busiest hour; what is not zero has a character at least.

    >>> bar(12, 1, 24), bar(0, 0, 0)
    ('████████████░', '')
    """
    return _part(DONE, done, most) + _part(FAILED, failed, most)


def _part(character: str, number: int, most: int) -> str:
    return character * max(round(BAR * number / most), 1) if number else ""


def line(numbers: "Sequence[int]") -> str:
    """Return a line of blocks whose heights are the numbers, a space for zero.

    >>> line([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(numbers, default=0)
    return "".join(
        LEVELS[max(round(number / most * len(LEVELS)), 1) - 1] if number else " "
        for number in numbers
    )


def _with_line(total: int, numbers: "Sequence[int]") -> str:
    return f"{total}  {line(numbers)}".rstrip()


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else output.duration(seconds)
