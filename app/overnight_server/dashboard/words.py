"""The words and signs of states and of causes of waiting, for pages, mail and terminal alike."""

from dataclasses import dataclass

from overnight_server.domain.lifecycle import State
from overnight_server.domain.reasons import ReasonCode


@dataclass(frozen=True)
class CauseOfWaiting:
    """How a cause of waiting is drawn and named; `kind` is its colour and texture."""

    kind: str
    name: str


#: The word of each state. Its sign is the symbol `s-<state>` of the sprite.
STATE_WORDS = {
    State.CREATED: "created",
    State.PENDING: "pending",
    State.READY: "ready",
    State.CLAIMED: "claimed",
    State.RUNNING: "running",
    State.VALIDATING: "checking",
    State.COMPLETED: "done",
    State.FAILED: "failed",
    State.RETRYING: "retrying",
    State.DEAD_LETTERED: "dead",
    State.CANCELLED: "cancelled",
}
#: A pending task that waits for an approval has a word and a sign of its own.
ASKS = "asks"
WORDS = {**{state.value: word for state, word in STATE_WORDS.items()}, ASKS: "asks you"}

_QUEUE = CauseOfWaiting("queue", "Queue")
#: How each reason of `explain` is drawn and named.
CAUSES: dict[str, CauseOfWaiting] = {
    **dict.fromkeys((code.value for code in ReasonCode), _QUEUE),
    ReasonCode.DEPENDENCY.value: CauseOfWaiting("dep", "Other tasks"),
    ReasonCode.START_AT.value: CauseOfWaiting("window", "Its start time"),
    ReasonCode.RETRY_AT.value: CauseOfWaiting("retry", "The next try"),
    ReasonCode.APPROVAL.value: CauseOfWaiting("budget", "Your answer"),
    ReasonCode.DEADLINE.value: CauseOfWaiting("retry", "Its deadline"),
    ReasonCode.BUDGET.value: CauseOfWaiting("budget", "Money"),
    ReasonCode.LOCK.value: CauseOfWaiting("lock", "A lock"),
    ReasonCode.PLAN_CONCURRENCY.value: CauseOfWaiting("plan", "A plan slot"),
    ReasonCode.MONTHLY_HOURS.value: CauseOfWaiting("hours", "Monthly hours"),
    ReasonCode.WINDOW.value: CauseOfWaiting("window", "The night window"),
    ReasonCode.PAUSED.value: CauseOfWaiting("paused", "A pause"),
    ReasonCode.NO_WORKER.value: CauseOfWaiting("queue", "No worker"),
    ReasonCode.NO_CAPABLE_AGENT.value: CauseOfWaiting("queue", "No capable agent"),
    ReasonCode.HANDLER.value: CauseOfWaiting("queue", "A handler"),
    ReasonCode.SLOTS.value: CauseOfWaiting("queue", "A free slot"),
    ReasonCode.SLOTS_MAX.value: CauseOfWaiting("queue", "A free slot"),
    ReasonCode.BEHIND.value: CauseOfWaiting("queue", "Its turn"),
}
#: What each colour of a wait stands for, in the order of the legend.
KIND_WORDS = {
    "dep": "other tasks",
    "lock": "a lock",
    "retry": "the next try",
    "budget": "money",
    "plan": "a plan slot",
    "hours": "monthly hours",
    "window": "its time",
    "paused": "a pause",
    "queue": "the queue",
}
