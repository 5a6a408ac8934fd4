"""Names of things: native uuids inside, readable prefixed ULIDs outside."""

from typing import NewType
from uuid import UUID

from ulid import ULID

UserId = NewType("UserId", UUID)
TaskId = NewType("TaskId", UUID)
DagId = NewType("DagId", UUID)


class MalformedId(ValueError):
    """Text that cannot be the id of anything of ours."""


def new_task_id() -> TaskId:
    """Make the id of a new task; ids made later sort later."""
    return TaskId(ULID().to_uuid())


def new_dag_id() -> DagId:
    """Make the id of a new graph."""
    return DagId(ULID().to_uuid())


def show_task(task: UUID) -> str:
    """Write a task's id as people see it.

    >>> show_task(UUID(int=1))
    'task_00000000000000000000000001'
    """
    return f"task_{ULID.from_uuid(task)}"


def show_dag(dag: UUID) -> str:
    """Write a graph's id as people see it."""
    return f"dag_{ULID.from_uuid(dag)}"


def parse_task(text: str) -> TaskId:
    """Read a task's id as people write it, or raise MalformedId."""
    return TaskId(_parse(text, "task_"))


def parse_dag(text: str) -> DagId:
    """Read a graph's id as people write it, or raise MalformedId."""
    return DagId(_parse(text, "dag_"))


def _parse(text: str, prefix: str) -> UUID:
    if not text.startswith(prefix):
        raise MalformedId(f"{text!r} does not start with {prefix!r}")
    try:
        return ULID.from_str(_capitals(text.removeprefix(prefix))).to_uuid()
    except ValueError as error:
        raise MalformedId(f"{text!r} is not a ULID after {prefix!r}") from error


def _capitals(text: str) -> str:
    # Beyond ASCII a capital may be another letter: sharp s becomes SS, and would be read.
    return text.upper() if text.isascii() else text
