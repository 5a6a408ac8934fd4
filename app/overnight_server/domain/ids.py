"""Names of things: native uuids inside, readable prefixed ULIDs outside."""

from typing import Final, NewType
from uuid import UUID

from ulid import ULID

UserId = NewType("UserId", UUID)
TaskId = NewType("TaskId", UUID)
DagId = NewType("DagId", UUID)
TriggerId = NewType("TriggerId", UUID)
ArtifactId = NewType("ArtifactId", UUID)
BulkId = NewType("BulkId", UUID)

# Ids are written and read several times for every task, so two letters (ten bits) at a time.
_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [first + second for first in _LETTERS for second in _LETTERS]
_VALUES: Final = {pair: value for value, pair in enumerate(_PAIRS)}
_SHIFTS: Final = range(120, -1, -10)
_LENGTH: Final = 26


class MalformedId(ValueError):
    """Text that cannot be the id of anything of ours."""


def new_task_id() -> TaskId:
    """Make the id of a new task; ids made later sort later."""
    return TaskId(ULID().to_uuid())


def new_dag_id() -> DagId:
    """Make the id of a new graph."""
    return DagId(ULID().to_uuid())


def new_trigger_id() -> TriggerId:
    """Make the id of a new trigger."""
    return TriggerId(ULID().to_uuid())


def new_artifact_id() -> ArtifactId:
    """Make the id of a new artifact."""
    return ArtifactId(ULID().to_uuid())


def new_bulk_id() -> BulkId:
    """Make the id of a new bulk operation."""
    return BulkId(ULID().to_uuid())


def new_agent_id() -> str:
    """Make the id of a new agent outside the deployment, as everybody sees it."""
    return f"agent_{_ulid(ULID().to_uuid())}"


def lone_dag_id(task: TaskId) -> DagId:
    """Return the graph of a lone task: it is its own."""
    return DagId(task)


def show_task(task: UUID) -> str:
    """Write a task's id as people see it.

    >>> show_task(UUID(int=1))
    'task_00000000000000000000000001'
    """
    return f"task_{_ulid(task)}"


def show_dag(dag: UUID) -> str:
    """Write a graph's id as people see it."""
    return f"dag_{_ulid(dag)}"


def show_artifact(artifact: UUID) -> str:
    """Write an artifact's id as people see it."""
    return f"art_{_ulid(artifact)}"


def show_bulk(bulk: UUID) -> str:
    """Write a bulk operation's id as people see it."""
    return f"bulk_{_ulid(bulk)}"


def parse_task(text: str) -> TaskId:
    """Read a task's id as people write it, or raise MalformedId."""
    return TaskId(_parse(text, "task_"))


def parse_dag(text: str) -> DagId:
    """Read a graph's id as people write it, or raise MalformedId."""
    return DagId(_parse(text, "dag_"))


def show_trigger(trigger: UUID) -> str:
    """Write a trigger's id as people see it."""
    return f"trigger_{_ulid(trigger)}"


def parse_trigger(text: str) -> TriggerId:
    """Read a trigger's id as people write it, or raise MalformedId."""
    return TriggerId(_parse(text, "trigger_"))


def parse_artifact(text: str) -> ArtifactId:
    """Read an artifact's id as people write it, or raise MalformedId."""
    return ArtifactId(_parse(text, "art_"))


def parse_bulk(text: str) -> BulkId:
    """Read a bulk operation's id as people write it, or raise MalformedId."""
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
            pass  # other ways to write the same id, and none at all, are told apart below
    try:
        return ULID.from_str(_capitals(text.removeprefix(prefix))).to_uuid()
    except ValueError as error:
        raise MalformedId(f"{text!r} is not a ULID after {prefix!r}") from error


def _capitals(text: str) -> str:
    # Beyond ASCII a capital may be another letter: sharp s becomes SS, and would be read.
    return text.upper() if text.isascii() else text
