"""The neighbours of a task in its graph, and titles of tasks, for pages that name them."""

from collections.abc import Collection
from dataclasses import dataclass

from overnight_server.domain.ids import MalformedId, TaskId, UserId, parse_task, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MOST = 20
#: Tasks that come back are counted up to here.
MOST_REVIVED = 1_000


@dataclass(frozen=True)
class Neighbour:
    """A task that another one waits for, or that waits for it."""

    id: str
    title: str
    state: str
    is_satisfied: bool


@dataclass(frozen=True)
class Neighbours:
    """The tasks before which, and after which, a task runs."""

    after: tuple[Neighbour, ...] = ()
    before: tuple[Neighbour, ...] = ()


def neighbours(db: Db, user_id: UserId, task_id: TaskId) -> Neighbours:
    """Return the neighbours of one of the user's tasks; the first few of each side."""
    params = {"user_id": user_id, "task_id": task_id, "limit": MOST}
    rows = db.atomically(lambda tx: tx.execute(statement("task_neighbours"), params).all())
    sides: dict[str, list[Neighbour]] = {"after": [], "before": []}
    for row in rows:
        found = Neighbour(show_task(row.id), row.title, row.state, row.satisfied)
        sides[row.side].append(found)
    return Neighbours(tuple(sides["after"]), tuple(sides["before"]))


def titles_of(db: Db, user_id: UserId, task_ids: Collection[str]) -> dict[str, str]:
    """Return titles by ids; what is no task of the user is left out."""
    wanted = []
    for text in task_ids:
        try:
            wanted.append(parse_task(text))
        except MalformedId:
            continue
    if not wanted:
        return {}
    params = {"user_id": user_id, "tasks": wanted}
    rows = db.atomically(lambda tx: tx.execute(statement("task_titles"), params).all())
    return {show_task(row.id): row.title for row in rows}


def count_revived(db: Db, user_id: UserId, task_ids: Collection[str]) -> int:
    """Return how many tasks ended because these did, and would come back with a retry."""
    params = {
        "user_id": user_id,
        "tasks": [parse_task(text) for text in task_ids],
        "most": MOST_REVIVED,
    }
    row = db.atomically(lambda tx: tx.execute(statement("tasks_behind_dead"), params).one())
    return int(row.number)
