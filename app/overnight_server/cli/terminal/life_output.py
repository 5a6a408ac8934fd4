"""Print the life of a task: what it did or waited for in each moment."""

from typing import TYPE_CHECKING

from overnight_server.cli.terminal import output

if TYPE_CHECKING:
    from overnight.models.nights import LifeSegment, TaskLife

HEADERS = ("SINCE", "LASTED", "CAUSE", "WHAT HAPPENED")
TOTAL_HEADERS = ("LASTED", "SHARE", "WHAT FOR")


def show_life(life: "TaskLife") -> None:
    """Print the segments of a life, and how long each cause took."""
    output.record({"id": output.Id(life.id), "title": life.title, "state": life.state})
    output.line("")
    output.table(HEADERS, [_row(segment) for segment in life.segments])
    last = life.segments[-1] if life.segments else None
    if last is not None and last.is_open:
        _show_end(last)
    output.line("")
    totals = [
        (output.duration(total.seconds), f"{100 * total.share:.0f} %", total.label)
        for total in life.by_cause
    ]
    output.table(TOTAL_HEADERS, totals)


def _row(segment: "LifeSegment") -> tuple[object, ...]:
    cause = segment.kind if segment.kind != "waiting" else segment.code
    return segment.since, output.duration(segment.seconds), cause, segment.text


def _show_end(last: "LifeSegment") -> None:
    """Print when the cause of an open segment ends, and the command that ends it now."""
    facts = {"ends at": last.clears_at, "ends with": last.act}
    if any(facts.values()):
        output.line("")
        output.record(facts)
