"""What a task does, why it failed or has not started: the sentence and reasons of its page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from overnight.models.account import Attempt
from overnight.models.explain import Explanation, Reason
from overnight.models.tasks import TaskResponse
from overnight_server.dashboard.clocks import Clock, count, lasting, usd
from overnight_server.dashboard.render import prose, safe_text
from overnight_server.dashboard.sentences import ENDINGS, reason_sentence
from overnight_server.dashboard.words import CAUSES, CauseOfWaiting
from overnight_server.domain.budgets import suggested_raise
from overnight_server.domain.lifecycle import ACTIVE, State
from overnight_server.domain.reasons import ReasonCode

_ID = re.compile(r"\btask_[0-9A-HJKMNP-TV-Z]{26}\b")
_INSTANT = re.compile(r"\b(\d{4}-\d{2}-\d{2} \d{2}:\d{2})Z")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
#: How a run ended, in words; `spent` says whether it counts.
OUTCOMES = {
    "completed": ("completed", "done"),
    "failed": ("failed", "failed"),
    "timeout": ("failed", "timed out"),
    "crash": ("failed", "crashed"),
    "worker_lost": ("failed", "worker lost"),
    "out_of_memory": ("failed", "out of memory"),
    "cancelled": ("cancelled", "cancelled"),
    "released": ("retrying", "given back"),
    "suspended": ("retrying", "interrupted"),
    "deferred": ("retrying", "postponed"),
    "expired": ("retrying", "not begun"),
}


@dataclass(frozen=True)
class Answer:
    """An act that clears a reason: the address of a form or of a page, and what the button says."""

    label: str
    address: str
    fields: Mapping[str, str] = field(default_factory=dict)
    is_page: bool = False


@dataclass(frozen=True)
class ReasonLine:
    """One reason as the page shows it."""

    cause: CauseOfWaiting
    text: Markup
    answer: Answer | None


@dataclass(frozen=True)
class Story:
    """The sentence of a task, a second one, and the reasons that keep it waiting."""

    mood: str
    sign: str
    text: Markup
    more: Markup | None = None
    reasons: Sequence[ReasonLine] = ()


def tell(
    task: TaskResponse,
    attempts: Sequence[Attempt],
    explanation: Explanation | None,
    titles: Mapping[str, str],
    clock: Clock,
    *,
    is_operator: bool = False,
) -> Story:
    """Return the story of a task as it is now, with the answers that this reader may give."""
    state = State(task.state)
    if state is State.COMPLETED:
        return Story("ok", "completed", _completed(task, attempts, clock), _runs(attempts))
    if state is State.DEAD_LETTERED:
        return Story("bad", "dead_lettered", _dead(task, clock), _runs(attempts))
    if state is State.CANCELLED:
        return _cancelled(task, clock)
    if state in ACTIVE:
        return Story("run", task.state, _active(task, clock), _runs(attempts))
    lines = [
        ReasonLine(CAUSES[reason.code], linked(reason_sentence(reason), titles, clock), answer)
        for reason in (explanation.reasons if explanation is not None else ())
        for answer in [_answer(task, reason, is_operator=is_operator)]
    ]
    if not lines:
        return Story("wait", task.state, Markup("<b>It starts with the next free slot.</b>"))
    first = lines[0]
    has_run = any(attempt.started_at is not None for attempt in attempts)
    words = "It waits" if has_run else "It has not started"
    text = Markup("<b>{}:</b> {}").format(words, first.text)
    more = None
    if len(lines) > 1:
        others = count(len(lines) - 1, "more reason")
        more = Markup("{} would still hold it back.").format(others)
    sign = "asks" if task.wait_reason == "approval" else task.state
    return Story("wait", sign, text, more, lines)


def linked(text: str, titles: Mapping[str, str], clock: Clock) -> Markup:
    """Return a message with its code, its tasks as links, and its instants in the reader's zone."""
    parts, end = [], 0
    for match in _ID.finditer(text):
        parts.append(_timed(text[end : match.start()], clock))
        title = titles.get(match.group())
        label = (
            Markup("<bdi>{}</bdi>").format(safe_text(title, 120)) if title else match.group()[-6:]
        )
        parts.append(Markup('<a href="/tasks/{}">{}</a>').format(match.group(), label))
        end = match.end()
    parts.append(_timed(text[end:], clock))
    return Markup().join(parts)


def _timed(text: str, clock: Clock) -> Markup:
    parts, end = [], 0
    for match in _INSTANT.finditer(text):
        instant = clock.now.fromisoformat(f"{match[1]}+00:00")
        parts += [prose(text[end : match.start()]), clock.at(instant)]
        end = match.end()
    return Markup().join([*parts, prose(text[end:])])


def ids_in(explanation: Explanation | None) -> set[str]:
    """Return the ids of the tasks that an explanation names."""
    if explanation is None:
        return set()
    return {found for reason in explanation.reasons for found in _ID.findall(reason.message)}


def _completed(task: TaskResponse, attempts: Sequence[Attempt], clock: Clock) -> Markup:
    worked, waited = spans(task, attempts, clock)
    number = len([attempt for attempt in attempts if attempt.started_at is not None])
    run = f" with the {ORDINALS[number - 1]} run" if 1 < number <= len(ORDINALS) else ""
    return Markup("Done {}{}. It worked {} and waited {}.").format(
        clock.when(task.completed_at), run, lasting(worked), lasting(waited)
    )


def spans(task: TaskResponse, attempts: Sequence[Attempt], clock: Clock) -> tuple[float, float]:
    """Return for how many seconds a task has worked and waited, all its life together."""
    worked = sum(
        ((attempt.ended_at or clock.now) - attempt.started_at).total_seconds()
        for attempt in attempts
        if attempt.started_at is not None
    )
    whole = ((task.completed_at or clock.now) - task.created_at).total_seconds()
    return worked, max(0.0, whole - worked)


def _dead(task: TaskResponse, clock: Clock) -> Markup:
    if task.failure_reason == "deadline_exceeded":
        return Markup("It had not started by its deadline, {}.").format(clock.at(task.deadline_at))
    return Markup("Dead since {} after {}: <code>{}</code> {}").format(
        clock.at(task.completed_at),
        count(task.attempts, "attempt"),
        safe_text(task.failure_reason or "failed", 60),
        safe_text(task.error, 500),
    )


def _cancelled(task: TaskResponse, clock: Clock) -> Story:
    why = ENDINGS.get(task.failure_reason or "", task.error or "")
    text = Markup("Cancelled {}. {}").format(clock.when(task.completed_at), safe_text(why, 300))
    return Story("idle", "cancelled", text)


def _active(task: TaskResponse, clock: Clock) -> Markup:
    progress = task.progress or {}
    words = [Markup("It runs since {}.").format(clock.at(task.started_at or task.created_at))]
    if task.state == State.VALIDATING:
        words = [Markup("It has run; its output is checked.")]
    if task.state == State.CLAIMED:
        words = [Markup("It is on its way to a worker.")]
    percent, message = progress.get("percent"), progress.get("message") or progress.get("note")
    if isinstance(percent, int | float):
        words.append(Markup("<b>{:.0f} %</b>").format(percent))
    if message:
        words.append(Markup("{}").format(safe_text(message, 300)))
    if task.cancel_requested_at is not None:
        words.append(Markup("It was asked to stop {}.").format(clock.at(task.cancel_requested_at)))
    return Markup(" ").join(words)


def _runs(attempts: Sequence[Attempt]) -> Markup:
    """Return one sentence on each run that did not succeed, oldest first."""
    failed = [
        attempt
        for attempt in reversed(attempts)
        if attempt.started_at is not None and attempt.outcome not in {None, "completed"}
    ]
    words = []
    for attempt in failed[:4]:
        word = OUTCOMES.get(attempt.outcome or "", ("failed", attempt.outcome))[1]
        spent = "an attempt spent" if attempt.spent else "no attempt spent"
        words.append(Markup("Run {}: {} ({}).").format(attempt.epoch, word, spent))
    return Markup(" ").join(words)


def _answer(task: TaskResponse, reason: Reason, *, is_operator: bool) -> Answer | None:
    """Return the one act that clears a reason now, if this reader may do it."""
    code, address = ReasonCode(reason.code), f"/tasks/{task.id}"
    match code:
        case ReasonCode.START_AT:
            return Answer("Start now", f"{address}/start-now")
        case ReasonCode.APPROVAL:
            # The reason says who can raise a budget that an operator has set.
            if reason.details["raised_by"] == "operator" and not is_operator:
                return None
            more = suggested_raise(reason.details["needs_usd"])
            fields = {"usd": f"{more:.2f}"}
            return Answer(f"Allow {usd(more)} more", f"/approvals/{task.id}/approve", fields)
        case ReasonCode.MONTHLY_HOURS:
            return Answer("Lower its timeout…", f"{address}/edit", is_page=True)
        case ReasonCode.WINDOW:
            return Answer("Change…", "/me", is_page=True)
        case ReasonCode.PAUSED:
            return Answer("Resume", "/resume") if reason.scope == "user" else None
        case ReasonCode.LOCK:
            held_by = reason.details.get("held_by")
            return Answer("Open the holder", f"/tasks/{held_by}", is_page=True) if held_by else None
        case _:
            return None
