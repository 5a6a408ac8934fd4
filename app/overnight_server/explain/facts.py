"""What the judgement of one task rests on: the facts, as they were read at one instant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from overnight_server.domain.pauses import Scope
from overnight_server.explain.next_pass import Offer


@dataclass(frozen=True)
class Pause:
    """A pause in force; `target` names the pool or the user.

    `is_own` tells a pause that the user began, and may end without an operator.
    """

    scope: Scope
    target: str | None
    note: str | None
    since: datetime
    is_own: bool = False


@dataclass(frozen=True)
class Pool:
    """A pool: its slots as a pass counts them, and whether it is paused.

    `draining` names the workers that drain, `knowing` counts those, draining or not, that know the
    task's type.
    """

    offer: Offer
    paused: bool
    draining: Sequence[str] = ()
    knowing: int = 0

    @property
    def name(self) -> str:
        """What it is called."""
        return self.offer.pool

    @property
    def is_live(self) -> bool:
        """Whether any worker of it is alive and takes on work."""
        return bool(self.offer.capabilities)

    @property
    def has_room(self) -> bool:
        """Whether a slot of its own is free; the deployment's cap is judged by itself."""
        return self.offer.slots > self.offer.busy


@dataclass(frozen=True)
class Facts:
    """All that the judgement of one task rests on, read at one instant.

    `task` holds the columns of the task, its user's lane and window; see `explain_task`.
    """

    task: Mapping[str, Any]
    parents: Sequence[Mapping[str, Any]] = ()
    locks: Sequence[Mapping[str, Any]] = ()
    pauses: Sequence[Pause] = ()
    pools: Sequence[Pool] = ()
    slots_max: int | None = None
    # What the user said of the night, and whether this server can read its zone.
    window: str = ""
    zone_is_known: bool = True
    needs: frozenset[str] = field(default=frozenset())
