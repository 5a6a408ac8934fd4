"""Stop the clock of a deployment, so that its history can be repeated exactly."""

from tests.support.deployment import Deployment
from tests.support.invariants import record_plan_history

STOP_CLOCK = """
    CREATE TABLE stopped_clock (at timestamptz NOT NULL);
    GRANT SELECT ON stopped_clock TO PUBLIC;
    INSERT INTO stopped_clock VALUES (clock());
    CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT at FROM public.stopped_clock';
    CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql
    AS 'SELECT public.clock()';
"""
# Deleting is much quicker than truncating tables that hold a few rows.
DELETE_ALL = "; ".join(
    f"DELETE FROM {table}"
    for table in (
        *(
            "plan_history",
            "sweeps",
            "audit_findings",
            "audit_positions",
            "stale_results",
            "dead_letters",
            "events",
            "dag_events",
            "usage_ledger",
        ),
        *("spending", "notices", "held_locks"),
        *(
            "attempts",
            "task_edges",
            "tasks",
            "dags",
            "lanes",
            "users",
            "agents",
            "pools",
            "type_durations",
        ),
    )
)


def prepare(deployment: Deployment) -> None:
    """Stop the clock of a deployment and record every change of a plan."""
    record_plan_history(deployment.owner)
    deployment.run(STOP_CLOCK)
