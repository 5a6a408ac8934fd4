"""The one sentence of a task that does not wait: the thing that matters now, from its row."""

from markupsafe import Markup

from overnight.models.explain import Reason
from overnight.models.tasks import TaskResponse
from overnight_server.dashboard.clocks import Clock
from overnight_server.dashboard.render import safe_text
from overnight_server.dashboard.words import ASKS
from overnight_server.domain.lifecycle import State

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


def sentence(task: TaskResponse, clock: Clock) -> Markup:
    """Return what there is to say of a task that does not wait."""
    state = State(task.state)
    if state is State.COMPLETED:
        return _text(task.result_summary or "Done.")
    if state is State.DEAD_LETTERED:
        return failure(task)
    if state is State.CANCELLED:
        return _text(ENDINGS.get(task.failure_reason or "", task.error or "Cancelled."))
    return _activity(task, clock)


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


def failure(task: TaskResponse) -> Markup:
    """Return why the last run of a task failed, or why it ended."""
    if task.failure_reason in ENDINGS:
        return _text(ENDINGS[task.failure_reason or ""])
    return Markup("<code>{}</code> {}").format(
        safe_text(task.failure_reason or "failed", 60), safe_text(task.error, MAX_SENTENCE)
    )


def _text(text: object) -> Markup:
    return Markup("{}").format(safe_text(text, MAX_SENTENCE))


def reason_sentence(reason: Reason) -> str:
    """Return the message of a reason as a sentence."""
    text = safe_text(reason.message, 500)
    # A message on a lock begins with its key.
    first = text[:1] if reason.code == "lock" else text[:1].upper()
    return first + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
