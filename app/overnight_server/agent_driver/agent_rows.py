"""What the agent driver reads and writes about its agents, besides their runs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from overnight_server.control.agents import AgentRegistration
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import MalformedId, TaskId, UserId, parse_task, show_task
from overnight_server.domain.lifecycle import State
from overnight_server.store import lanes
from overnight_server.store.batched_statements import StatementCall
from overnight_server.store.db import Db
from overnight_server.store.statements import statement

AgentKey = tuple[UserId, str]
RunKey = tuple[TaskId, int]


@dataclass(frozen=True)
class HttpAgentRow:
    """One HTTP agent: its address, what the gate needs to know of it, and its rights."""

    key: AgentKey
    url: str
    secret: str
    private_allowed: bool
    boot_id: str | None
    registration: AgentRegistration
    slots: int
    capabilities: tuple[str, ...]
    has_budget: bool
    is_authorized: bool

    @property
    def address(self) -> tuple[str, str, bool]:
        """What the requests to the agent depend on."""
        return self.url, self.secret, self.private_allowed

    @property
    def kind(self) -> object:
        """Agents of one kind can run the same tasks; one with a budget is a kind of its own."""
        own = self.key if self.has_budget else None
        return (
            self.registration.serves,
            frozenset(self.registration.types),
            frozenset(self.capabilities),
            own,
        )


@dataclass(frozen=True)
class HealthCheckResult:
    """What a check of an agent has found."""

    key: AgentKey
    health: str
    detail: str | None = None
    boot_id: str | None = None


@dataclass(frozen=True)
class OpenClaim:
    """A claim of an agent that a driver takes over; `same_boot` as in the statement."""

    claim: Claim
    agent_id: str
    has_begun: bool
    ran_seconds: float
    same_boot: bool


def show_key(task_id: TaskId, epoch: int) -> str:
    """Return the idempotency key under which an agent knows a run."""
    return f"{show_task(task_id)}:{epoch}"


def parse_key(text: str) -> RunKey | None:
    """Return the run that a key names; None if it is not a key of this service."""
    task, _, epoch = text.rpartition(":")
    try:
        return parse_task(task), int(epoch)
    except (MalformedId, ValueError):
        return None


def hold_addresses(db: Db, driver: str, *, hold: timedelta, limit: int) -> list[HttpAgentRow]:
    """Hold the addresses that this driver holds or that no live driver holds; return them."""
    params = {"driver": driver, "seconds": hold.total_seconds(), "limit": limit}
    rows = db.atomically(lambda tx: tx.execute(statement("take_http_agents"), params).all())
    return [_agent_row(row) for row in rows]


def release_removed(db: Db, driver: str) -> set[AgentKey]:
    """Return the agents of this driver whose addresses were removed, once."""
    rows = db.run_batch(StatementCall("give_up_removed_http_agents", {"driver": driver}))
    return {(UserId(row.user_id), row.name) for row in rows}


def release_addresses(db: Db, driver: str) -> None:
    """Let another driver hold the addresses of this one."""
    db.run_batch(StatementCall("leave_http_agents", {"driver": driver}))


def record_checks(db: Db, driver: str, checks: Iterable[HealthCheckResult]) -> None:
    """Store what the checks found."""
    rows = [
        {
            "user_id": str(check.key[0]),
            "name": check.key[1],
            "health": check.health,
            "detail": check.detail,
            "boot_id": check.boot_id,
        }
        for check in checks
    ]
    if rows:
        params = {"driver": driver, "checks": json.dumps(rows)}
        db.run_batch(StatementCall("record_http_health", params))


def send_heartbeats(db: Db, registrations: Sequence[AgentRegistration]) -> None:
    """Record that agents answered; one that was offline gets tasks again."""
    if not registrations:
        return
    params = {"agents": [registration.agent_id for registration in registrations]}
    online = {row.id for row in db.run_batch(StatementCall("heartbeat_http_agents", params))}
    for registration in registrations:
        if registration.agent_id not in online:
            db.run_batch(StatementCall("revive_http_agent", {"agent": registration.agent_id}))
            lanes.unskip_lanes(db, registration.pool)


def open_claims(db: Db, agent_ids: Sequence[str]) -> list[OpenClaim]:
    """Return the claims that these agents hold."""
    params = {"agents": list(agent_ids)}
    return [
        OpenClaim(
            Claim(TaskId(row.id), row.epoch, row.token),
            row.claimed_by,
            row.state != State.CLAIMED,
            row.ran_seconds,
            row.same_boot,
        )
        for row in db.run_batch(StatementCall("claims_of_http_agents", params))
    ]


def stop_requests(db: Db, agent_ids: Sequence[str]) -> set[RunKey]:
    """Return the runs of these agents whose owners have asked them to stop."""
    rows = db.run_batch(StatementCall("stop_requests_of_http_agents", {"agents": list(agent_ids)}))
    return {(TaskId(row.id), row.epoch) for row in rows}


def ended_runs(db: Db, agent_id: str, keys: Iterable[str]) -> set[RunKey]:
    """Return those runs among an agent's keys that were its own and have ended."""
    runs = [run for run in map(parse_key, keys) if run is not None]
    if not runs:
        return set()
    params = {
        "agent": agent_id,
        "tasks": [task_id for task_id, _ in runs],
        "epochs": [epoch for _, epoch in runs],
    }
    rows = db.run_batch(StatementCall("ended_runs_of_http_agent", params))
    return {(TaskId(row.task_id), row.epoch) for row in rows}


def _agent_row(row: Row[Any]) -> HttpAgentRow:
    return HttpAgentRow(
        key=(UserId(row.user_id), row.name),
        url=row.url,
        secret=row.secret,
        private_allowed=row.private_allowed,
        boot_id=row.boot_id,
        registration=AgentRegistration(
            agent_id=row.id,
            pool=row.pool,
            serves=None if row.serves is None else UserId(UUID(str(row.serves))),
            types=tuple(row.types),
            is_draining=row.status == "draining",
            claim_ttl=timedelta(seconds=row.claim_ttl_seconds),
            lease=timedelta(seconds=row.stale_after_seconds),
        ),
        slots=row.slots,
        capabilities=tuple(row.capabilities),
        has_budget=row.has_budget,
        is_authorized=row.is_authorized,
    )
