"""Print a graph as a tree with states, durations and progress; update it live with --watch."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from overnight_server.cli.terminal import output, task_output
from overnight_server.cli.terminal.wait_for_task import (
    POLL_SECONDS,
    resume_advice,
    retry_while_unavailable,
)

if TYPE_CHECKING:
    from rich.text import Text

    from overnight import Client
    from overnight.models.dags import Dag, DagSummary, DagTaskState

# A wider name would push the states off the screen.
WIDEST_NAME = 60
STATE_WIDTH = len("dead_lettered")
# Room for a duration and a reason.
DETAIL_WIDTH = 14
NARROWEST_WITH_IDS = 60


class ShowDag(Protocol):
    """A function that shows the current state of a graph."""

    def __call__(self, dag: "Dag") -> None:
        """Show the graph."""


def show(dag: "Dag") -> None:
    """Print a graph as a tree."""
    if not output.is_terminal(sys.stdout):
        for line in lines(dag):
            output.line(line)
        return
    from rich.console import Console

    Console(file=sys.stdout, highlight=False).print(_drawn(dag), soft_wrap=True)


def watch(client: "Client", dag_id: str, *, silently: bool) -> "Dag":
    """Show a graph until it has ended, then return it."""
    with resume_advice([dag_id]), _display(silently=silently) as show_dag:
        dag = client.dags.get(dag_id)
        while not dag.is_final:
            show_dag(dag)
            # The long poll returns only at the end; a display also needs the states before it.
            dag = _poll(client, dag_id, None if silently else POLL_SECONDS)
        show_dag(dag)
    return dag


def lines(dag: "Dag") -> Iterator[str]:
    """Yield the graph as lines of text: title, counts, then one line per task.

    A terminal shows long names cut, and a narrow one no ids, so that a task fits on its line.
    """
    from overnight.graphs.draw import symbol
    from overnight.graphs.outline import outline

    yield output.printable(dag.title)
    yield headline(dag)
    rows = [
        (
            f"{line.branch}{symbol(line.task.state)} {output.printable(line.task.label)}",
            line.task,
            line.also_after,
        )
        for line in outline(dag)
    ]
    has_ids, widest = _columns_that_fit()
    width = max((min(len(name), widest) for name, _, _ in rows), default=0)
    for name, task, also_after in rows:
        also = f"  (also after {', '.join(also_after)})" if also_after else ""
        shown_id = f"{output.short_id(task.id)}  " if has_ids else ""
        columns = f"{_cut(name, widest):<{width}}  {shown_id}{task.state:<{STATE_WIDTH}}"
        yield f"{columns}  {_detail(task)}{output.printable(also)}".rstrip()


def _columns_that_fit() -> tuple[bool, int]:
    """Return whether there is room for ids, and how wide a name may be."""
    if not output.is_terminal(sys.stdout):
        return True, WIDEST_NAME
    columns = shutil.get_terminal_size().columns
    has_ids = columns >= NARROWEST_WITH_IDS
    others = STATE_WIDTH + output.GAP
    if has_ids:
        others += output.SHORT_ID + output.GAP + DETAIL_WIDTH + output.GAP
    return has_ids, max(output.NARROWEST_TEXT, min(WIDEST_NAME, columns - others))


def _cut(name: str, widest: int) -> str:
    is_whole = len(name) <= widest or not output.is_terminal(sys.stdout)
    return name if is_whole else f"{name[: widest - 1]}…"


def headline(dag: "Dag") -> str:
    """Return one line with the id, the state and the counts of a graph."""
    counts = dag.counts
    parts = [
        dag.status.value,
        f"{counts.total - counts.open} of {counts.total} ended",
        *([f"{counts.failed} failed"] if counts.failed else []),
        *([f"{counts.cancelled} cancelled"] if counts.cancelled else []),
        *([spent] if (spent := spent_text(dag)) else []),
    ]
    return f"{output.shown_id(dag.id)}  {', '.join(parts)}"


def spent_text(dag: "DagSummary") -> str | None:
    """Return what a graph has cost and its budget; None if it has neither."""
    if dag.budget_usd is not None:
        return f"${dag.spent_usd:.2f} of ${dag.budget_usd:.2f}"
    return f"${dag.spent_usd:.2f}" if dag.spent_usd else None


def _detail(task: "DagTaskState") -> str:
    parts = []
    if task.wait_reason is not None:
        parts.append(task_output.WAIT_REASONS.get(task.wait_reason, task.wait_reason))
    if task.run_seconds is not None:
        parts.append(output.duration(task.run_seconds))
    if task.state in ("running", "validating") and task.progress:
        parts.append(_progress(task.progress))
    if task.state in ("dead_lettered", "cancelled", "retrying") and task.failure_reason:
        parts.append(task.failure_reason)
    if task.attempts > 1:
        parts.append(f"attempt {task.attempts} of {task.max_attempts}")
    return output.printable("  ".join(part for part in parts if part))


def _progress(progress: Mapping[str, Any]) -> str:
    fraction, message = progress.get("fraction"), progress.get("message")
    share = f"{fraction:.0%}" if isinstance(fraction, (int, float)) else ""
    return " ".join(part for part in (share, str(message or "")) if part)


def _drawn(dag: "Dag") -> "Text":
    from rich.text import Text

    from overnight.graphs.outline import outline

    title, facts, *rest = lines(dag)
    drawn = Text()
    drawn.append(title, style="bold")
    drawn.append(f"\n{facts}")
    for line, text in zip(outline(dag), rest, strict=True):
        drawn.append("\n")
        drawn.append(text, style=output.colour(line.task.state))
    return drawn


def _poll(client: "Client", dag_id: str, seconds: float | None) -> "Dag":
    """Return the graph once it has ended, or its current state after `seconds`."""
    from overnight.errors import DagWaitTimedOut

    def request() -> "Dag":
        try:
            return client.dags.wait(dag_id, timeout=seconds, poll=POLL_SECONDS, check=False)
        except DagWaitTimedOut:
            return client.dags.get(dag_id)

    return retry_while_unavailable(request)


@contextmanager
def _display(*, silently: bool) -> Iterator[ShowDag]:
    """Yield a function that redraws the graph on a terminal, or prints changed states in a pipe."""
    if silently:
        yield lambda dag: None  # noqa: ARG005 - the name is the protocol's
    elif output.is_terminal(sys.stdout):
        from rich.console import Console
        from rich.live import Live

        console = Console(file=sys.stdout, highlight=False)
        with Live(console=console, transient=True, vertical_overflow="ellipsis") as live:
            yield lambda dag: live.update(_drawn(dag), refresh=True)
    else:
        states: dict[str, str] = {}

        def print_changes(dag: "Dag") -> None:
            for task in dag.tasks:
                if states.get(task.id) != task.state:
                    states[task.id] = task.state
                    output.note(f"{task.label} {task.state}")

        yield print_changes
