"""Ids: UUIDs inside the service, ULIDs with a prefix such as `task_` for users."""

import time
from collections.abc import Callable
from typing import Final, NewType
from uuid import UUID

from ulid import ULID, ULIDGenerator

UserId = NewType("UserId", UUID)
TaskId = NewType("TaskId", UUID)
DagId = NewType("DagId", UUID)
TriggerId = NewType("TriggerId", UUID)
ArtifactId = NewType("ArtifactId", UUID)
BulkId = NewType("BulkId", UUID)
ScheduleId = NewType("ScheduleId", UUID)
HookId = NewType("HookId", UUID)
RuleId = NewType("RuleId", UUID)

# Ids are converted several times for every task, so the code converts two characters (ten bits) in
# one step.
_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [first + second for first in _LETTERS for second in _LETTERS]
_VALUES: Final = {pair: value for value, pair in enumerate(_PAIRS)}
_SHIFTS: Final = range(120, -1, -10)
_LENGTH: Final = 26
_MAX_STANDSTILL: Final = 1000


class _IdClock:
    """The time in new ids, in milliseconds; it orders them."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.time
        self._last = 0

    def __call__(self) -> int:
        milliseconds = int(self.now() * 1000)
        # A small correction of the clock must not put a new id before an older one.
        if 0 < self._last - milliseconds < _MAX_STANDSTILL:
            return self._last
        self._last = milliseconds
        return milliseconds


_CLOCK: Final = _IdClock()
_GENERATOR: Final = ULIDGenerator(clock=_CLOCK)


def use_clock(now: Callable[[], float]) -> None:
    """Take the time of new ids from this function, in seconds since 1970."""
    _CLOCK.now = now


class MalformedId(ValueError):
    """Text that is not an id of the expected kind."""


def new_task_id() -> TaskId:
    """Return a new task id; later ids sort after earlier ones."""
    return TaskId(_GENERATOR.generate().to_uuid())


def new_dag_id() -> DagId:
    """Return the id of a new graph."""
    return DagId(_GENERATOR.generate().to_uuid())


def new_trigger_id() -> TriggerId:
    """Return the id of a new trigger."""
    return TriggerId(_GENERATOR.generate().to_uuid())


def new_artifact_id() -> ArtifactId:
    """Return the id of a new artifact."""
    return ArtifactId(_GENERATOR.generate().to_uuid())


def new_bulk_id() -> BulkId:
    """Return the id of a new bulk operation."""
    return BulkId(_GENERATOR.generate().to_uuid())


def new_schedule_id() -> ScheduleId:
    """Return the id of a new schedule."""
    return ScheduleId(_GENERATOR.generate().to_uuid())


def new_hook_id() -> HookId:
    """Return the id of a new source of webhooks."""
    return HookId(_GENERATOR.generate().to_uuid())


def new_rule_id() -> RuleId:
    """Return the id of a new improvement rule."""
    return RuleId(_GENERATOR.generate().to_uuid())


def new_agent_id() -> str:
    """Return the id of a new pull agent, in the form that users see."""
    return f"agent_{_ulid(_GENERATOR.generate().to_uuid())}"


def lone_dag_id(task: TaskId) -> DagId:
    """Return the graph id of a lone task, which is its own id."""
    return DagId(task)


def show_task(task: UUID) -> str:
    """Return a task's id as users see it.

    >>> show_task(UUID(int=1))
    'task_00000000000000000000000001'
    """
    return f"task_{_ulid(task)}"


def show_dag(dag: UUID) -> str:
    """Return a graph's id as users see it."""
    return f"dag_{_ulid(dag)}"


def show_artifact(artifact: UUID) -> str:
    """Return an artifact's id as users see it."""
    return f"art_{_ulid(artifact)}"


def show_bulk(bulk: UUID) -> str:
    """Return a bulk operation's id as users see it."""
    return f"bulk_{_ulid(bulk)}"


def show_schedule(schedule: UUID) -> str:
    """Return a schedule's id as users see it."""
    return f"schedule_{_ulid(schedule)}"


def show_hook(hook: UUID) -> str:
    """Return the id of a source of webhooks as users see it."""
    return f"hook_{_ulid(hook)}"


def parse_task(text: str) -> TaskId:
    """Parse a task's id in the form that users see, or raise MalformedId."""
    return TaskId(_parse(text, "task_"))


def parse_dag(text: str) -> DagId:
    """Parse a graph's id in the form that users see, or raise MalformedId."""
    return DagId(_parse(text, "dag_"))


def show_trigger(trigger: UUID) -> str:
    """Return a trigger's id as users see it."""
    return f"trigger_{_ulid(trigger)}"


def parse_trigger(text: str) -> TriggerId:
    """Parse a trigger's id in the form that users see, or raise MalformedId."""
    return TriggerId(_parse(text, "trigger_"))


def parse_artifact(text: str) -> ArtifactId:
    """Parse an artifact's id in the form that users see, or raise MalformedId."""
    return ArtifactId(_parse(text, "art_"))


def parse_bulk(text: str) -> BulkId:
    """Parse a bulk operation's id in the form that users see, or raise MalformedId."""
    return BulkId(_parse(text, "bulk_"))


def parse_schedule(text: str) -> ScheduleId:
    """Parse a schedule's id in the form that users see, or raise MalformedId."""
    return ScheduleId(_parse(text, "schedule_"))


def show_rule(rule: UUID) -> str:
    """Return the id of an improvement rule as users see it."""
    return f"rule_{_ulid(rule)}"


def parse_rule(text: str) -> RuleId:
    """Parse the id of an improvement rule in the form that users see, or raise MalformedId."""
    return RuleId(_parse(text, "rule_"))


def parse_hook(text: str) -> HookId:
    """Parse the id of a source of webhooks in the form that users see, or raise MalformedId."""
    return HookId(_parse(text, "hook_"))


def _ulid(uuid: UUID) -> str:
    number = uuid.int
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def _parse(text: str, prefix: str) -> UUID:
    if not text.startswith(prefix):
        raise MalformedId(f"{text!r} does not start with {prefix!r}")
    if len(text) == len(prefix) + _LENGTH:
        number = 0
        try:
            for place in range(len(prefix), len(text), 2):
                number = number << 10 | _VALUES[text[place : place + 2]]
            return UUID(int=number)
        except (KeyError, ValueError):
            pass  # other spellings of an id, and malformed ids, are handled below
    try:
        return ULID.from_str(_capitals(text.removeprefix(prefix))).to_uuid()
    except ValueError as error:
        raise MalformedId(f"{text!r} is not a ULID after {prefix!r}") from error


def _capitals(text: str) -> str:
    # Outside ASCII upper() may change letters: sharp s becomes SS, which would be accepted.
    return text.upper() if text.isascii() else text
