"""The facts from which the reasons of one task are derived, all read at one instant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overnight.models.account import Pause
from overnight_server.explain.audience import OWNER, Audience
from overnight_server.explain.next_pass import PoolSlots


@dataclass(frozen=True)
class PauseFacts:
    """A pause in force; `is_own` if the user began it, and so may end it without an operator."""

    pause: Pause
    is_own: bool = False


@dataclass(frozen=True)
class PoolFacts:
    """A pool's slots as a pass of the gate counts them, and whether the pool is paused.

    `draining` are the ids of its draining workers; `known_types` are those types, among the types
    of the explained tasks, for which a worker of it, draining or not, has a handler.
    """

    slots: PoolSlots
    paused: bool
    draining: Sequence[str] = ()
    known_types: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.slots.pool

    @property
    def is_live(self) -> bool:
        """Whether the pool has a live worker that accepts new tasks."""
        return bool(self.slots.capabilities)

    @property
    def has_free_slot(self) -> bool:
        """Whether the pool has a free slot; the cap on all pools together is another reason."""
        return self.slots.slots > self.slots.busy


@dataclass(frozen=True)
class TaskFacts:
    """All facts about one task, its user and the pools.

    `task` holds the columns of the statement `explain_tasks`: those of the task, of its user's
    lane and of the user's window.
    """

    task: Mapping[str, Any]
    parents: Sequence[Mapping[str, Any]] = ()
    locks: Sequence[Mapping[str, Any]] = ()
    pauses: Sequence[PauseFacts] = ()
    pools: Sequence[PoolFacts] = ()
    slots_max: int | None = None
    # The user's window as text, and whether this server has the data of its time zone.
    window: str = ""
    zone_is_known: bool = True
    needs: frozenset[str] = field(default=frozenset())
    audience: Audience = OWNER
