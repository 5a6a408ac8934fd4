"""The causes of a task's life in words: labels, sentences, and the command that ends each cause."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from overnight_server.domain.life import Segment, SegmentKind
from overnight_server.domain.lifecycle import State
from overnight_server.domain.reasons import ReasonCode, ReasonScope, format_duration, format_rest

# The causes of idle slots that are no reasons of a task.
NOTHING_QUEUED = "nothing_queued"
UNKNOWN = "unknown"

LABELS: Mapping[str, str] = {
    ReasonCode.STATE: "not ready yet",
    ReasonCode.DEPENDENCY: "other tasks",
    ReasonCode.START_AT: "its start",
    ReasonCode.RETRY_AT: "the next try",
    ReasonCode.APPROVAL: "your answer",
    ReasonCode.DEADLINE: "its deadline has passed",
    ReasonCode.BUDGET: "money",
    ReasonCode.LOCK: "a lock",
    ReasonCode.PLAN_CONCURRENCY: "a slot of the plan",
    ReasonCode.MONTHLY_HOURS: "hours of the month",
    ReasonCode.WINDOW: "the night window",
    ReasonCode.PAUSED: "a pause",
    ReasonCode.NO_WORKER: "no worker",
    ReasonCode.NO_CAPABLE_AGENT: "no capable worker",
    ReasonCode.HANDLER: "no handler",
    ReasonCode.SLOTS: "a free worker",
    ReasonCode.SLOTS_MAX: "a free worker",
    ReasonCode.BEHIND: "its turn",
    NOTHING_QUEUED: "nothing queued",
    UNKNOWN: "not recorded",
}
_KIND_LABELS = {
    SegmentKind.CLAIMED: "on its way to a worker",
    SegmentKind.RUNNING: "running",
    SegmentKind.CHECKING: "checked",
    SegmentKind.ENDED: "ended, before it was retried",
}


@dataclass(frozen=True)
class LifeFacts:
    """What the sentences of one task's life need besides its segments."""

    task: str
    workers: Mapping[int, str]
    outcomes: Mapping[int, str]
    errors: Mapping[int, str]


def label_of(kind: str, code: str) -> str:
    """Return a cause in a few words, as a total names it.

    >>> label_of("waiting", "monthly_hours"), label_of("running", "state")
    ('hours of the month', 'running')
    """
    if kind == SegmentKind.WAITING:
        return LABELS.get(code, code)
    return _KIND_LABELS[SegmentKind(kind)]


def describe(segment: Segment, facts: LifeFacts) -> str:
    """Return what happened in a segment, as a sentence without a full stop."""
    match segment.kind:
        case SegmentKind.WAITING:
            return _describe_wait(segment)
        case SegmentKind.CLAIMED:
            return "was on its way to a worker"
        case SegmentKind.RUNNING:
            return _describe_run(segment, facts)
        case SegmentKind.CHECKING:
            return f"run {segment.epoch} was checked"
        case SegmentKind.ENDED:
            words = {
                State.COMPLETED: "had completed",
                State.CANCELLED: "was cancelled",
                State.DEAD_LETTERED: "had failed for good",
            }
            return f"{words[segment.state]}, until it was run again"


def act_of(segment: Segment, task: str) -> str | None:
    """Return the command with which the owner ends the cause of a waiting task, if there is one."""
    hold = segment.hold
    if segment.code in {ReasonCode.DEPENDENCY, ReasonCode.LOCK}:
        verb = "explain" if segment.code is ReasonCode.DEPENDENCY else "cancel"
        holder = None if hold is None else hold.holder
        return None if holder is None else f"overnight {verb} {holder.id}"
    if segment.code is ReasonCode.PAUSED:
        is_own = hold is not None and hold.scope is ReasonScope.USER
        return "overnight resume --me" if is_own else None
    command = _ACTS.get(segment.code)
    return None if command is None else command.format(task=task)


_ACTS: Mapping[ReasonCode, str] = {
    ReasonCode.START_AT: "overnight edit {task} --now",
    ReasonCode.APPROVAL: "overnight approve {task} --usd 1",
    ReasonCode.MONTHLY_HOURS: "overnight edit {task} --timeout 10m",
    ReasonCode.WINDOW: "overnight window --off",
    ReasonCode.NO_WORKER: "overnight worker",
    ReasonCode.BEHIND: "overnight edit {task} --priority 1",
}


def _describe_run(segment: Segment, facts: LifeFacts) -> str:
    worker = facts.workers.get(segment.epoch)
    where = f" on {worker}" if worker else ""
    outcome, error = facts.outcomes.get(segment.epoch), facts.errors.get(segment.epoch)
    end = f": {outcome.replace('_', ' ')}" if outcome else ""
    because = f" ({error})" if error and error != outcome else ""
    return f"run {segment.epoch}{where}{end}{because}"


def _describe_wait(segment: Segment) -> str:
    if segment.code in _PLAIN:
        return _PLAIN[segment.code]
    return _WITH_FACTS[segment.code](segment, {} if segment.hold is None else segment.hold.details)


_PLAIN: Mapping[ReasonCode, str] = {
    ReasonCode.START_AT: "might not start yet",
    ReasonCode.STATE: "was not ready to start",
    ReasonCode.DEADLINE: "its deadline had passed",
    ReasonCode.WINDOW: "the night window was closed",
    ReasonCode.NO_WORKER: "no worker was alive",
    ReasonCode.NO_CAPABLE_AGENT: "no worker offered what it requires",
    ReasonCode.HANDLER: "no worker had a handler for its type",
    ReasonCode.SLOTS: "no worker had a free slot",
    ReasonCode.SLOTS_MAX: "no worker had a free slot",
    ReasonCode.BEHIND: "its turn had not come",
}


def _title(segment: Segment) -> str:
    holder = None if segment.hold is None else segment.hold.holder
    return "another task" if holder is None else f"“{holder.title or holder.id}”"


def _dependency(segment: Segment, details: Mapping[str, Any]) -> str:
    more = details.get("unmet", 1) - 1
    return f"waited for {_title(segment)}" + (f" and {more} more" if more > 0 else "")


def _retry(segment: Segment, _details: Mapping[str, Any]) -> str:
    return "waited before the next try" + (f" ({segment.reason})" if segment.reason else "")


def _approval(_segment: Segment, details: Mapping[str, Any]) -> str:
    return f"asked for money: {details.get('budget', 'a budget')} was used up"


def _budget(_segment: Segment, details: Mapping[str, Any]) -> str:
    return f"{details.get('budget', 'the budget')} was used up or reserved"


def _lock(segment: Segment, details: Mapping[str, Any]) -> str:
    return f"the lock {details.get('key', '')} was held by {_title(segment)}"


def _plan(_segment: Segment, details: Mapping[str, Any]) -> str:
    most = details.get("max_active")
    return f"all {most} slots of the plan were taken" if most else "the plan allowed no task"


def _hours(_segment: Segment, details: Mapping[str, Any]) -> str:
    needs = format_duration(details.get("needs_seconds", 0))
    left = format_rest(details.get("left_seconds", 0))
    return f"needed {needs} of the month's hours, and {left} were left"


def _pause(_segment: Segment, details: Mapping[str, Any]) -> str:
    who, note = details.get("paused_by"), details.get("note")
    what = details.get("what", "every pool that could run it")
    return f"{what} was paused" + (f" by {who}" if who else "") + (f" ({note})" if note else "")


_WITH_FACTS: Mapping[ReasonCode, Callable[[Segment, Mapping[str, Any]], str]] = {
    ReasonCode.DEPENDENCY: _dependency,
    ReasonCode.RETRY_AT: _retry,
    ReasonCode.APPROVAL: _approval,
    ReasonCode.BUDGET: _budget,
    ReasonCode.LOCK: _lock,
    ReasonCode.PLAN_CONCURRENCY: _plan,
    ReasonCode.MONTHLY_HOURS: _hours,
    ReasonCode.PAUSED: _pause,
}
