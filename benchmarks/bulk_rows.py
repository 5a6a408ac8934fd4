"""Inserts millions of rows as a submit would write them, with correct lanes."""

import psycopg2

from benchmarks.deployment import BenchmarkDeployment

#: One user owns this share of all work; the others share the rest evenly.
LARGEST_USER_SHARE = 0.3

USERS = """
    INSERT INTO users (id, name, plan_tier, max_concurrent_agents, max_task_duration_minutes,
                       monthly_agent_hours_limit)
    SELECT lpad(to_hex(n), 32, '0')::uuid, 'user-' || n, 'team', 10, 240, NULL
      FROM generate_series(0, %(users)s - 1) AS n
"""
# Ids rise with time as ours do; arrival is spread over the last day.
TASKS = """
    WITH new AS MATERIALIZED (
        SELECT n,
               lpad(to_hex(n + (1::bigint << 40)), 32, '0')::uuid AS id,
               lpad(to_hex(CASE WHEN random() < %(whale)s THEN 0
                                ELSE n %% %(users)s END), 32, '0')::uuid AS user_id,
               20 + 20 * (n %% 4) AS priority
          FROM generate_series(%(start)s::bigint, %(stop)s::bigint - 1) AS n
    )
    INSERT INTO tasks (id, user_id, dag_id, type, title, created_by, state, priority, sort_key)
    SELECT id, user_id, id, 'noop', 'nothing', 'human:local', 'ready', priority,
           priority + 0.1 * (extract(epoch FROM clock())::float8 / 60 - 1440 + n %% 1440)
      FROM new
"""
COUNT = """
    UPDATE lanes l
       SET ready = t.ready, waiting = t.ready
      FROM (SELECT user_id, count(*) AS ready FROM tasks WHERE state = 'ready' GROUP BY user_id) t
     WHERE t.user_id = l.user_id
"""


class FilledDatabase:
    """A deployment that is filled by SQL: users once, then ready tasks up to any number."""

    def __init__(self, deployment: BenchmarkDeployment, users: int) -> None:
        self.deployment = deployment
        self.users = users
        self.ready = 0
        self._run(USERS, triggers=True)

    def fill_up(self, ready: int) -> None:
        """Insert ready tasks until there are `ready`, and update the planner's statistics."""
        self._run(TASKS, start=self.ready, stop=ready)
        self._run(COUNT, triggers=True)
        self._run("SELECT repair_depth()")
        self.ready = ready
        self.deployment.servers.vacuum_and_checkpoint(self.deployment.database)

    def _run(self, sql: str, *, triggers: bool = False, **values: object) -> None:
        url = self.deployment.servers.superuser_url(self.deployment.database)
        connection = psycopg2.connect(url)
        try:
            with connection, connection.cursor() as cursor:
                if not triggers:
                    # Triggers and foreign keys are for writers who can err; here they cost minutes.
                    cursor.execute("SET LOCAL session_replication_role = replica")
                cursor.execute(sql, {"users": self.users, "whale": LARGEST_USER_SHARE, **values})
        finally:
            connection.close()
