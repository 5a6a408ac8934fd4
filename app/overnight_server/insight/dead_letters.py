"""Dead letters: tasks that failed for good, with what a person needs to decide about them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import RowMapping

from overnight.errors import TaskNotFound
from overnight.models.account import DeadLetterGroup
from overnight.models.admin import UserDeadLetter
from overnight_server.domain.capabilities import agent_name_in
from overnight_server.domain.ids import TaskId, UserId, parse_task, show_dag, show_task
from overnight_server.mask import mask_names
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

# Groups are built from this many of the newest dead letters, so that the query stays fast.
MAX_GROUPED = 10_000
# A group names so many of its tasks.
MAX_NAMED = 10


def list_dead_letters(
    db: Db,
    *,
    user_id: UserId | None = None,
    resolved: bool = False,
    fingerprint: str | None = None,
    tasks: Collection[str] | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[UserDeadLetter]:
    """Return the newest dead letters of one user or of all; resolved ones only if `resolved`.

    `tasks` selects those of certain tasks, by the ids that users see.
    """
    return _read_dead_letters(
        db,
        user_id=user_id,
        task_ids=None if tasks is None else [parse_task(text) for text in tasks],
        resolved=resolved,
        limit=limit,
        fingerprint=fingerprint,
        before_id=before,
    )


@dataclass(frozen=True)
class GroupedDeadLetters:
    """The largest groups of open dead letters, and the sums over all groups.

    `tasks` has all tasks of each listed group by its fingerprint, the newest first. The sums are of
    the newest `MAX_GROUPED` dead letters; `is_partial` says that there may be more.
    """

    groups: Sequence[DeadLetterGroup] = ()
    tasks: Mapping[str, Sequence[UUID]] = field(default_factory=dict)
    number_of_groups: int = 0
    number_of_letters: int = 0
    cost_usd: float = 0.0

    @property
    def is_partial(self) -> bool:
        """Whether there may be more dead letters than were read."""
        return self.number_of_letters >= MAX_GROUPED


def group_dead_letters(
    db: Db, *, user_id: UserId | None = None, limit: int = 50
) -> list[DeadLetterGroup]:
    """Return the open dead letters grouped by fingerprint, the largest group first."""
    return list(read_dead_letters_by_group(db, user_id=user_id, limit=limit).groups)


def find_dead_letter_group(
    db: Db, fingerprint: str, *, user_id: UserId | None = None
) -> DeadLetterGroup | None:
    """Return one group of open dead letters; None if there is none with this fingerprint."""
    found = read_dead_letters_by_group(db, user_id=user_id, fingerprint=fingerprint, limit=1)
    return found.groups[0] if found.groups else None


def read_dead_letters_by_group(
    db: Db, *, user_id: UserId | None = None, fingerprint: str | None = None, limit: int = 50
) -> GroupedDeadLetters:
    """Return the open dead letters by how they failed, with how many there are in all."""
    params = {
        "user_id": user_id,
        "fingerprint": fingerprint,
        "look": MAX_GROUPED,
        "limit": limit,
    }
    rows = db.atomically(
        lambda tx: tx.execute(statement("group_dead_letters"), params).mappings().all()
    )
    if not rows:
        return GroupedDeadLetters()
    return GroupedDeadLetters(
        groups=[_group(row) for row in rows],
        tasks={row["fingerprint"]: row["task_ids"] for row in rows},
        number_of_groups=rows[0]["all_groups"],
        number_of_letters=int(rows[0]["all_letters"]),
        cost_usd=float(rows[0]["all_cost_usd"]),
    )


def _group(row: RowMapping) -> DeadLetterGroup:
    fields = {name: row[name] for name in DeadLetterGroup.model_fields}
    newest = [show_task(task_id) for task_id in row["task_ids"][:MAX_NAMED]]
    return DeadLetterGroup(**{**fields, "task_ids": newest})


def get_dead_letter(db: Db, task_id: TaskId, *, user_id: UserId | None = None) -> UserDeadLetter:
    """Return a task's newest dead letter, resolved or not; raise TaskNotFound if it has none."""
    letters = _read_dead_letters(db, user_id=user_id, task_ids=[task_id], resolved=True, limit=1)
    if not letters:
        raise TaskNotFound
    return letters[0]


def _read_dead_letters(
    db: Db,
    *,
    user_id: UserId | None,
    task_ids: Sequence[TaskId] | None,
    resolved: bool,
    limit: int,
    fingerprint: str | None = None,
    before_id: int | None = None,
) -> list[UserDeadLetter]:
    params = {
        "user_id": user_id,
        "tasks": None if task_ids is None else list(task_ids),
        "resolved": resolved,
        "limit": limit,
        "fingerprint": fingerprint,
        "before_id": before_id,
    }
    rows = db.atomically(
        lambda tx: tx.execute(statement("view_dead_letters"), params).mappings().all()
    )
    return [
        UserDeadLetter(
            **{
                **row,
                "task_id": show_task(row["task_id"]),
                "dag_id": show_dag(row["dag_id"]),
                "user": row["user_name"],
                "task_type": row["type"],
                "agent_name": agent_name_in(row["required_capabilities"]),
                "payload": mask_names(row["payload"]),
            }
        )
        for row in rows
    ]
