"""What the rows of a list of tasks say besides the tasks themselves: graph and runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import TextClause

from overnight_server.domain.ids import DagId, TaskId, UserId, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

#: Runs that are counted; of a task with more, the latest.
MOST_RUNS = 20
#: Among so many of the latest tasks or graphs an id is found by its end.
LOOK = 20_000
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BITS_PER_LETTER = 5
#: The length of the endings by which people name tasks.
ENDING = 6


@dataclass(frozen=True)
class RowFacts:
    """What a list says of one task besides the task itself: its graph and its runs."""

    graph: str | None
    graph_size: int | None
    worked: float
    runs: int


def row_facts(db: Db, user_id: UserId, task_ids: Sequence[TaskId]) -> dict[str, RowFacts]:
    """Return the facts of the user's tasks by the ids that users see, in one statement."""
    params = {"user_id": user_id, "tasks": list(task_ids), "most_runs": MOST_RUNS}
    rows = db.atomically(lambda tx: tx.execute(statement("task_row_facts"), params).all())
    return {
        show_task(row.id): RowFacts(
            graph=row.graph,
            graph_size=row.graph_size,
            worked=float(row.worked),
            runs=row.runs,
        )
        for row in rows
    }


def find_by_ending(db: Db, user_id: UserId, text: str) -> TaskId | None:
    """Return the user's newest task whose id ends with a text of six letters; None for none."""
    found = _find_by_ending(db, user_id, text, statement("task_by_ending"))
    return None if found is None else TaskId(found)


def find_graph_by_ending(db: Db, user_id: UserId, text: str) -> DagId | None:
    """Return the user's newest graph whose id ends with a text of six letters; None for none."""
    found = _find_by_ending(db, user_id, text, statement("dag_by_ending"))
    return None if found is None else DagId(found)


def _find_by_ending(db: Db, user_id: UserId, text: str, query: TextClause) -> UUID | None:
    letters = text.upper()
    if len(letters) != ENDING or any(letter not in _LETTERS for letter in letters):
        return None
    ending = 0
    for letter in letters:
        ending = ending << _BITS_PER_LETTER | _LETTERS.index(letter)
    params = {"user_id": user_id, "ending": ending, "look": LOOK}
    found: UUID | None = db.atomically(lambda tx: tx.execute(query, params).scalar_one_or_none())
    return found
