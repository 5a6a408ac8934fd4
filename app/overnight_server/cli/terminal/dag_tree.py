"""A graph on a terminal: a tree with states, durations and progress, live if asked."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from overnight_server.cli.terminal import output, short_ids, task_output
from overnight_server.cli.terminal.wait_for_task import LONGEST_PAUSE, breaking_off, patiently

if TYPE_CHECKING:
    from rich.text import Text

    from overnight import Client
    from overnight.models.dags import Dag, DagSummary, DagTaskState

MINUTE, HOUR = 60, 3600
# Wider than this a name pushes the states off the screen.
WIDEST = 60


class Shown(Protocol):
    """Whatever shows how a graph stands."""

    def __call__(self, dag: "Dag") -> None:
        """Show it."""


def show(dag: "Dag") -> None:
    """Print a graph as a tree."""
    if not output.is_terminal(sys.stdout):
        for line in lines(dag):
            output.line(line)
        return
    from rich.console import Console

    Console(file=sys.stdout, highlight=False).print(_drawn(dag), soft_wrap=True)


def watch(client: "Client", dag_id: str, *, silently: bool) -> "Dag":
    """Look at a graph until it has ended, showing how it goes; return it as it ended."""
    with breaking_off([dag_id]), _watched(silently=silently) as tell:
        dag = client.dags.get(dag_id)
        while not dag.is_final:
            tell(dag)
            # The end is told at once; whoever looks also wants to see what happens before it.
            dag = _look_again(client, dag_id, None if silently else LONGEST_PAUSE)
        tell(dag)
    return dag


def lines(dag: "Dag") -> Iterator[str]:
    """Yield a graph as plain lines, the columns aligned."""
    from overnight.graphs.draw import symbol
    from overnight.graphs.outline import outline

    yield headline(dag)
    rows = [
        (
            f"{line.branch}{symbol(line.task.state)} {output.printable(line.task.label)}",
            line.task,
            line.also_after,
        )
        for line in outline(dag)
    ]
    width = max((min(len(name), WIDEST) for name, _, _ in rows), default=0)
    for name, task, also_after in rows:
        also = f"  (also after {', '.join(also_after)})" if also_after else ""
        which = f"{name:<{width}}  {short_ids.short(task.id)}"
        told = f"{which}  {task.state:<13}  {_detail(task)}{output.printable(also)}"
        yield told.rstrip()


def headline(dag: "Dag") -> str:
    """Say in one line how a graph stands."""
    counts = dag.counts
    parts = [
        f"{dag.id}",
        dag.status.value,
        f"{counts.total - counts.open} of {counts.total} ended",
        *([f"{counts.failed} failed"] if counts.failed else []),
        *([f"{counts.cancelled} cancelled"] if counts.cancelled else []),
        *([spent] if (spent := money(dag)) else []),
    ]
    return f"{output.printable(dag.title)}  ({', '.join(parts)})"


def money(dag: "DagSummary") -> str | None:
    """Say what a graph has cost, and may."""
    if dag.budget_usd is not None:
        return f"${dag.spent_usd:.2f} of ${dag.budget_usd:.2f}"
    return f"${dag.spent_usd:.2f}" if dag.spent_usd else None


def duration(seconds: float) -> str:
    """Write how long something took, as coarsely as one reads it.

    >>> [duration(seconds) for seconds in (0.4, 61, 3720)]
    ['0.4s', '1m01s', '1h02m']
    """
    if seconds < MINUTE:
        return f"{seconds:.1f}s"
    if seconds < HOUR:
        return f"{int(seconds) // MINUTE}m{int(seconds) % MINUTE:02}s"
    return f"{int(seconds) // HOUR}h{int(seconds) % HOUR // MINUTE:02}m"


def _detail(task: "DagTaskState") -> str:
    parts = []
    if task.wait_reason is not None:
        parts.append(task_output.WAITS.get(task.wait_reason, task.wait_reason))
    if task.run_seconds is not None:
        parts.append(duration(task.run_seconds))
    if task.state in ("running", "validating") and task.progress:
        parts.append(_progress(task.progress))
    if task.state in ("dead_lettered", "cancelled", "retrying") and task.failure_reason:
        parts.append(task.failure_reason)
    if task.attempts > 1:
        parts.append(f"attempt {task.attempts} of {task.max_attempts}")
    return output.printable("  ".join(part for part in parts if part))


def _progress(news: Mapping[str, Any]) -> str:
    fraction, message = news.get("fraction"), news.get("message")
    share = f"{fraction:.0%}" if isinstance(fraction, (int, float)) else ""
    return " ".join(part for part in (share, str(message or "")) if part)


def _drawn(dag: "Dag") -> "Text":
    from rich.text import Text

    from overnight.graphs.outline import outline

    first, *rest = lines(dag)
    drawn = Text()
    drawn.append(first, style="bold")
    for line, text in zip(outline(dag), rest, strict=True):
        drawn.append("\n")
        drawn.append(text, style=output.colour(line.task.state))
    return drawn


def _look_again(client: "Client", dag_id: str, seconds: float | None) -> "Dag":
    """Return the graph once it has ended, or as it stands after so many seconds."""
    from overnight.errors import DagWaitTimedOut

    def look() -> "Dag":
        try:
            return client.dags.wait(dag_id, timeout=seconds, poll=LONGEST_PAUSE, check=False)
        except DagWaitTimedOut:
            return client.dags.get(dag_id)

    return patiently(look)


@contextmanager
def _watched(*, silently: bool) -> Iterator[Shown]:
    """Give a function that shows a graph: drawn anew for a person, news alone for a pipe."""
    if silently:
        yield lambda dag: None  # noqa: ARG005 - the name is the protocol's
    elif output.is_terminal(sys.stdout):
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stdout, highlight=False)
        with Live(console=console, transient=True, vertical_overflow="ellipsis") as live:
            yield lambda dag: live.update(_drawn(dag), refresh=True)
    else:
        seen: dict[str, str] = {}

        def tell_news(dag: "Dag") -> None:
            for task in dag.tasks:
                if seen.get(task.id) != task.state:
                    seen[task.id] = task.state
                    output.note(f"{task.label} {task.state}")

        yield tell_news
