"""When tasks could not start for reasons that are not the order among users.

These are a pause, a closed night window, a used-up limit of hours or money, and the time without
a worker that could run the task. The fairness report leaves these times out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Connection, Row, RowMapping

from overnight_server.domain.fairness_report import Period, gaps, merge_periods
from overnight_server.store.statements import statement


@dataclass(frozen=True)
class _Hold:
    """A time in which tasks created since `created_from` could not start."""

    period: Period
    created_from: float


@dataclass(frozen=True)
class _Session:
    """A time in which one worker accepted tasks; `types` None accepts every type."""

    period: Period
    serves: UUID | None
    capabilities: frozenset[str]
    types: frozenset[str] | None


class HoldHistory:
    """The holds, pauses and workers of a period, in seconds since the Unix epoch.

    A worker is judged by itself: the history does not contain which workers shared a pool at which
    instant. An estimate that does not fit into the rest of a budget is no hold afterwards; only a
    budget that is used up or reserved is recorded.
    """

    def __init__(
        self,
        holds: Mapping[UUID, Sequence[_Hold]],
        pauses: Sequence[Period],
        sessions: Sequence[_Session],
    ) -> None:
        self._holds = holds
        self._pauses = pauses
        self._sessions = sessions
        self._served: dict[tuple[object, ...], list[Period]] = {}

    @classmethod
    def read(cls, tx: Connection, since: float, liveness_seconds: float) -> Self:
        """Read what ended after `since` or has not ended; a silent worker has ended."""
        after = {"since": since}
        holds: dict[UUID, list[_Hold]] = defaultdict(list)
        for row in tx.execute(statement("holds_since"), after):
            created_from = -inf if row.created_from is None else row.created_from
            holds[row.subject].append(_Hold(_period(row), created_from))
        pauses: dict[str | None, list[Period]] = defaultdict(list)
        for row in tx.execute(statement("pauses_since"), after):
            pauses[row.pool].append(_period(row))
        rows = tx.execute(
            statement("worker_sessions_since"), {**after, "liveness": liveness_seconds}
        )
        sessions = [
            _Session(
                period,
                row.serves,
                frozenset(row.capabilities),
                None if row.types is None else frozenset(row.types),
            )
            for row in rows
            for period in gaps(pauses[row.pool], *_period(row))
        ]
        return cls(holds, pauses[None], sessions)

    def held(self, task: RowMapping, begin: float, end: float) -> tuple[Period, ...]:
        """Return the parts of a wait in which the task could not start, in order."""
        own = (
            hold.period
            for subject in {task["user_id"], task["dag_id"]}
            for hold in self._holds.get(subject, ())
            if task["created"] >= hold.created_from
        )
        without_worker = gaps(self._workers_for(task), begin, end)
        return tuple(merge_periods([*own, *self._pauses, *without_worker], begin, end))

    def _workers_for(self, task: RowMapping) -> list[Period]:
        """Return when at least one worker could run the task."""
        needs = frozenset(task["required_capabilities"])
        key = (task["user_id"], task["type"], needs)
        if key not in self._served:
            self._served[key] = list(merge_periods(self._suitable(*key), -inf, inf))
        return self._served[key]

    def _suitable(self, user_id: UUID, task_type: str, needs: frozenset[str]) -> Iterator[Period]:
        return (
            session.period
            for session in self._sessions
            if session.serves in (None, user_id)
            and needs <= session.capabilities
            and (session.types is None or task_type in session.types)
        )


def _period(row: Row[Any]) -> Period:
    return row.began, inf if row.ended is None else row.ended
