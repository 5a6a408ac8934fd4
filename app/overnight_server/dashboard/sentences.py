"""The one sentence of a task in a list: the thing that matters now, built from its row."""

from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup

from overnight.models.explain import Reason
from overnight.models.tasks import QueueBlock, TaskResponse
from overnight_server.dashboard.clocks import Clock, count, usd
from overnight_server.dashboard.render import prose, safe_text
from overnight_server.dashboard.words import ASKS
from overnight_server.domain.lifecycle import ACTIVE, State
from overnight_server.insight.task_rows import RowFacts

MAX_SENTENCE = 300
#: What ended a task that nobody's code failed.
ENDINGS = {
    "cancelled": "Cancelled on request.",
    "discarded": "Its dead letter was closed.",
    "not_needed": "Nothing needed it any more.",
    "upstream_cancelled": "A task that it needed was cancelled.",
    "upstream_failed": "A task that it needed failed.",
    "deadline_exceeded": "It had not started by its deadline.",
}


def shown_state(task: TaskResponse) -> str:
    """Return the state as pages show it: a task that waits for an approval asks."""
    return ASKS if task.wait_reason == "approval" else task.state


def sentence(
    task: TaskResponse, facts: RowFacts | None, blocks: Sequence[QueueBlock], clock: Clock
) -> Markup:
    """Return what there is to say of a task; `blocks` keep every task of the user waiting."""
    state = State(task.state)
    if state is State.COMPLETED:
        return _text(task.result_summary or "Done.")
    if state is State.DEAD_LETTERED:
        return _failure(task)
    if state is State.CANCELLED:
        return _text(ENDINGS.get(task.failure_reason or "", task.error or "Cancelled."))
    if state in ACTIVE:
        return _activity(task, clock)
    if state is State.RETRYING:
        return Markup("{} {}").format(_failure(task), _until("again at", task.retry_at, clock))
    if task.wait_reason == "approval":
        spent = usd(task.cost_usd) or "$0.00"
        return Markup("Asks for more money <span class='until'>· {} spent so far</span>").format(
            spent
        )
    return _wait(task, facts, blocks, clock)


def _wait(
    task: TaskResponse, facts: RowFacts | None, blocks: Sequence[QueueBlock], clock: Clock
) -> Markup:
    if task.wait_reason == "children":
        return Markup("Waits for the tasks that it spawned")
    if facts is not None and facts.parent is not None:
        more = f" and {count(facts.unmet - 1, 'other task')}" if facts.unmet > 1 else ""
        return Markup("Waits for <em>{}</em>{}").format(_bdi(facts.parent), more)
    if task.start_at is not None and task.start_at > clock.now:
        return Markup("Starts {}").format(clock.at(task.start_at))
    if facts is not None and facts.lock is not None:
        return Markup("<em>{}</em> holds the lock <code>{}</code>").format(
            _bdi(facts.holder), safe_text(facts.lock, 80)
        )
    if blocks:
        return prose(f"Waits: {blocks[0].message}", MAX_SENTENCE)
    if task.position is not None:
        return Markup("Place {} in your queue").format(task.position)
    return Markup("Ready to start") if task.state == State.READY else Markup("Waits")


def _activity(task: TaskResponse, clock: Clock) -> Markup:
    progress = task.progress or {}
    percent, message = progress.get("percent"), progress.get("message") or progress.get("note")
    words = []
    if isinstance(percent, int | float):
        words.append(Markup("<em>{:.0f} %</em>").format(percent))
    if message:
        words.append(_text(message))
    if task.cancel_requested_at is not None:
        words.append(Markup("asked to stop {}").format(clock.at(task.cancel_requested_at)))
    since = Markup("<span class='until'>since {}</span>").format(clock.at(task.started_at))
    if task.started_at is not None:
        words.append(since)
    return Markup(" · ").join(words) if words else Markup("On its way to a worker")


def _failure(task: TaskResponse) -> Markup:
    if task.failure_reason in ENDINGS:
        return _text(ENDINGS[task.failure_reason or ""])
    return Markup("<code>{}</code> {}").format(
        safe_text(task.failure_reason or "failed", 60), safe_text(task.error, MAX_SENTENCE)
    )


def _until(words: str, at: datetime | None, clock: Clock) -> Markup:
    return Markup("<span class='until'>· {} {}</span>").format(words, clock.at(at))


def _text(text: object) -> Markup:
    return Markup("{}").format(safe_text(text, MAX_SENTENCE))


def _bdi(text: object) -> Markup:
    return Markup("<bdi>{}</bdi>").format(safe_text(text, 200))


def reason_sentence(reason: Reason) -> str:
    """Return the message of a reason as a sentence."""
    text = safe_text(reason.message, 500)
    # A message on a lock begins with its key.
    first = text[:1] if reason.code == "lock" else text[:1].upper()
    return first + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
