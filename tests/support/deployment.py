"""A deployment for tests: users, workers, tasks and a clock that can be moved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text

from overnight.models.enums import PlanTier
from overnight_server.domain.claims import Claimed, Run
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.plans import PLAN_LIMITS
from overnight_server.domain.results import Result
from overnight_server.gate.claim import ClaimPass, ClaimSettings, claim
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit
from overnight_server.outcome.presence import WorkerDescription, join
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.store.db import Db

LEASE = timedelta(seconds=30)
CLAIM_TTL = timedelta(seconds=60)
LIVENESS = timedelta(days=3650)  # test agents beat once, at joining
CLAIM_SETTINGS = ClaimSettings(CLAIM_TTL, LIVENESS)
LOOSE = Caps(max_pending_per_user=1_000_000)
POOL = "default"
AGENT = "test-host:1:boot"


@dataclass
class Deployment:
    """One database with connections of three roles, and methods for common steps."""

    owner: Db
    dispatcher: Db
    app: Db

    def user(self, plan: PlanTier = PlanTier.TEAM, **columns: object) -> UserId:
        """Make a user; columns override the plan's template."""
        limits = PLAN_LIMITS[plan]
        values: dict[str, object] = {
            "id": uuid4(),
            "name": f"user-{uuid4().hex[:8]}",
            "plan_tier": plan.value,
            "max_concurrent_agents": limits.max_concurrent_agents,
            "max_task_duration_minutes": limits.max_task_duration_minutes,
            "monthly_agent_hours_limit": limits.monthly_agent_hours,
            **columns,
        }
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        self.run(f"INSERT INTO users ({names}) VALUES ({marks})", **values)
        return UserId(values["id"])  # type: ignore[arg-type]

    def agent(
        self,
        slots: int = 100,
        *,
        agent_id: str = AGENT,
        pool: str = POOL,
        capabilities: Sequence[str] = (),
        types: Sequence[str] | None = None,
    ) -> str:
        """Register a worker."""
        join(self.dispatcher, WorkerDescription(agent_id, pool, capabilities, slots, types=types))
        return agent_id

    def task(self, user: UserId, caps: Caps = LOOSE, **fields: Any) -> TaskId:
        """Submit one task."""
        task = NewTask(**{"title": "a task", "type": "echo", **fields})
        return submit(self.app, user, task, caps).task_id

    def claim(
        self, *, pool: str = POOL, limit: int = 100, slots_max: int | None = None
    ) -> ClaimPass:
        """Run one pass of the gate."""
        return claim(
            self.dispatcher,
            pool,
            holder="test-dispatcher",
            claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, slots_max=slots_max),
            limit=limit,
        )

    def start(self, claimed: Claimed, agent: str = AGENT) -> Run | None:
        """Start a claim as a worker would."""
        return start(self.dispatcher, claimed.claim, holder=agent, lease=LEASE)

    def running(self, user: UserId, **fields: Any) -> Run:
        """Submit, claim and start one task."""
        task_id = self.task(user, **fields)
        [claimed] = [one for one in self.claim().claims if one.claim.task_id == task_id]
        run = self.start(claimed)
        assert run is not None
        return run

    def settle(self, run: Run, result: Result, agent: str = AGENT) -> bool:
        """End a run."""
        return settle(self.dispatcher, run, result, agent=agent)

    def row(self, task_id: UUID) -> Mapping[str, Any]:
        """Return a task's row."""
        return self.one("SELECT * FROM tasks WHERE id = :id", id=task_id)

    def state(self, task_id: UUID) -> str:
        """Return the state of a task."""
        return str(self.row(task_id)["state"])

    def lane(self, user: UserId) -> Mapping[str, Any]:
        """Return a user's lane."""
        return self.one("SELECT * FROM lanes WHERE user_id = :id", id=user)

    def rows(self, sql: str, **values: object) -> list[Mapping[str, Any]]:
        """Read rows as the owner."""
        with self.owner.engine.begin() as tx:
            return [dict(row) for row in tx.execute(text(sql), values).mappings()]

    def one(self, sql: str, **values: object) -> Mapping[str, Any]:
        """Read exactly one row as the owner."""
        [row] = self.rows(sql, **values)
        return row

    def run(self, sql: str, **values: object) -> None:
        """Execute SQL as the owner."""
        with self.owner.engine.begin() as tx:
            tx.execute(text(sql), values)

    def move_clock_to_hour(self, hour: int) -> None:
        """Move the database's clock to the next time of day in UTC, so that no night ends soon.

        Without a window, a night is a day in UTC.
        """
        row = self.one("SELECT clock() - date_trunc('day', clock(), 'UTC') AS since_midnight")
        since_midnight: timedelta = row["since_midnight"]
        self.move_clock((timedelta(hours=hour) - since_midnight) % timedelta(days=1))

    def set_clock(self, at: datetime) -> None:
        """Stop the database's clock at an instant."""
        self.run(
            "CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE AS"
            f" $$SELECT timestamptz '{at.isoformat()}'$$;"
            "CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql AS"
            " 'SELECT public.clock()'"
        )

    def move_clock(self, by: timedelta) -> None:
        """Move the database's clock forward without sleeping."""
        self.run(
            "CREATE TABLE IF NOT EXISTS moved_clock (by interval NOT NULL);"
            "GRANT SELECT ON moved_clock TO PUBLIC;"
            "INSERT INTO moved_clock SELECT interval '0'"
            " WHERE NOT EXISTS (SELECT 1 FROM moved_clock);"
            "UPDATE moved_clock SET by = by + CAST(:by AS interval);"
            "CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE AS"
            " 'SELECT statement_timestamp() + (SELECT by FROM public.moved_clock)'",
            by=by,
        )
