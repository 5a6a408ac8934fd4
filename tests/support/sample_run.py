"""A run for tests that need no database."""

from uuid import UUID

from overnight_server.domain.claims import Claim, Run
from overnight_server.domain.ids import DagId, TaskId, UserId
from overnight_server.domain.retry import RetryRules

RUN = Run(
    claim=Claim(TaskId(UUID(int=1)), 1, UUID(int=2)),
    user_id=UserId(UUID(int=3)),
    dag_id=DagId(UUID(int=4)),
    type="test",
    title="a test",
    payload={},
    spec={},
    attempts=0,
    max_attempts=3,
    retry=RetryRules(),
    granted_seconds=60,
    plan_limited=False,
)
