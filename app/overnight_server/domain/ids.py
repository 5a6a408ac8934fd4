"""Ids: UUIDs inside the service, ULIDs with a prefix such as `task_` for users."""

from typing import Final, NewType
from uuid import UUID

from ulid import ULID

UserId = NewType("UserId", UUID)
TaskId = NewType("TaskId", UUID)
DagId = NewType("DagId", UUID)
TriggerId = NewType("TriggerId", UUID)
ArtifactId = NewType("ArtifactId", UUID)
BulkId = NewType("BulkId", UUID)

# Ids are converted several times for every task, so the code converts two characters (ten bits) in
# one step.
_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [first + second for first in _LETTERS for second in _LETTERS]
_VALUES: Final = {pair: value for value, pair in enumerate(_PAIRS)}
_SHIFTS: Final = range(120, -1, -10)
_LENGTH: Final = 26


class MalformedId(ValueError):
    """Text that is not an id of the expected kind."""


def new_task_id() -> TaskId:
    """Return a new task id; later ids sort after earlier ones."""
    return TaskId(ULID().to_uuid())


def new_dag_id() -> DagId:
    """Return the id of a new graph."""
    return DagId(ULID().to_uuid())


def new_trigger_id() -> TriggerId:
    """Return the id of a new trigger."""
    return TriggerId(ULID().to_uuid())


def new_artifact_id() -> ArtifactId:
    """Return the id of a new artifact."""
    return ArtifactId(ULID().to_uuid())


def new_bulk_id() -> BulkId:
    """Return the id of a new bulk operation."""
    return BulkId(ULID().to_uuid())


def new_agent_id() -> str:
    """Return the id of a new pull agent, in the form that users see."""
    return f"agent_{_ulid(ULID().to_uuid())}"


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
