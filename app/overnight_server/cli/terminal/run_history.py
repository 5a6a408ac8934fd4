"""Print the runs of a task, with their errors and tracebacks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from overnight_server.cli.terminal import output, task_output

if TYPE_CHECKING:
    from overnight.models.account import Attempt

INDENT = "    "


@dataclass(frozen=True)
class RunReport:
    """How one run of a task went."""

    label: str
    agent: str
    outcome: str | None
    started_at: datetime | None
    seconds: float | None
    cost_usd: float
    error: str | None
    detail: str | None
    sandbox: str | None = None


def from_attempts(attempts: "Iterable[Attempt]") -> list[RunReport]:
    """Return the reports of a task's attempts, which the API lists latest first, oldest first."""
    return [_from_attempt(attempt) for attempt in reversed(list(attempts))]


def from_failures(history: Iterable[Mapping[str, Any]]) -> list[RunReport]:
    """Return the reports of the failed runs that a dead letter holds."""
    return [
        RunReport(
            label=f"attempt {failure['attempt']}",
            agent=failure["agent"],
            outcome=failure["outcome"],
            started_at=_instant(failure["started_at"]),
            seconds=failure["duration_sec"],
            cost_usd=failure["cost_usd"],
            error=_error(failure["error_class"], failure["error"]),
            detail=failure["detail"],
        )
        for failure in history
    ]


def show(reports: Sequence[RunReport]) -> None:
    """Print each run as one line, its error and its traceback; the latest run comes last."""
    printed: set[str] = set()
    for report in reports:
        output.line("")
        output.line(_headline(report))
        for line in _explanation(report, printed):
            output.line(f"{INDENT}{output.printable(line)}")


def _headline(report: RunReport) -> str:
    parts = [
        report.outcome or "not ended",
        *([] if report.started_at is None else [f"started {output.instant(report.started_at)}"]),
        *([] if report.seconds is None else [f"ran {output.duration(report.seconds)}"]),
        *([cost] if (cost := task_output.cost_text(report.cost_usd)) else []),
        report.agent,
        *([] if report.sandbox is None else [f"sandbox: {report.sandbox}"]),
    ]
    return output.printable(f"{report.label}: {', '.join(parts)}")


def _explanation(report: RunReport, printed: set[str]) -> Iterator[str]:
    """Yield the lines about the error; a traceback that was printed before is only mentioned."""
    detail = (report.detail or "").rstrip()
    # A traceback ends with the error message, which need not be printed twice.
    if report.error is not None and not detail:
        yield from report.error.splitlines()
    if detail in printed:
        yield "The traceback is the same as before."
    elif detail:
        printed.add(detail)
        yield from detail.splitlines()


def _from_attempt(attempt: "Attempt") -> RunReport:
    started, ended = attempt.started_at, attempt.ended_at
    not_counted = "" if attempt.spent or ended is None else " (spent no attempt)"
    return RunReport(
        label=f"run {attempt.epoch}{not_counted}",
        agent=attempt.agent,
        outcome=attempt.outcome or ("running" if started else "claimed"),
        started_at=started,
        seconds=None if started is None or ended is None else (ended - started).total_seconds(),
        cost_usd=attempt.cost_usd,
        error=_error(attempt.error_class, attempt.error),
        detail=attempt.detail,
        sandbox=attempt.sandbox,
    )


def _error(error_class: str | None, message: str | None) -> str | None:
    return ": ".join(part for part in (error_class, message) if part) or None


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
