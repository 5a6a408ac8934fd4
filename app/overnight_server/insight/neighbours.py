"""The neighbours of a task in its graph, and titles of tasks, for pages that name them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from overnight_server.domain.ids import MalformedId, TaskId, UserId, parse_task, show_task
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

MOST = 20
#: Tasks that come back with a group are counted up to here, on average over the groups.
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


def count_revived(db: Db, user_id: UserId, groups: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return how many tasks ended because those of a group did, and come back with a retry of them.

    `groups` has the ids of tasks by the name of their group; a group without such tasks is left
    out.
    """
    pairs = [(parse_task(text), name) for name, texts in groups.items() for text in texts]
    if not pairs:
        return {}
    params = {
        "user_id": user_id,
        "tasks": [task_id for task_id, _ in pairs],
        "groups": [name for _, name in pairs],
        "most": MOST_REVIVED * len(groups),
    }
    rows = db.atomically(lambda tx: tx.execute(statement("tasks_behind_dead"), params).all())
    return {row.of_group: row.number for row in rows}
