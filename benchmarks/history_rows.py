"""Inserts a month of finished work for many users, beside what waits and runs now.

One user owns a tenth of all tasks. The newest tenth of all tasks waits, mixed with tasks that have
ended; each ended task has an attempt, a charge and events. Some tasks of the large user are dead, a
few of the oldest are cancelled or match what a search may ask for, and some belong to graphs.
"""

from pathlib import Path

import psycopg2

from benchmarks.bulk_rows import USERS
from benchmarks.deployment import BenchmarkDeployment

ROWS = Path(__file__).with_suffix(".sql")
OWNER_OF = """
    CREATE FUNCTION pg_temp.user_of(n bigint, users int) RETURNS uuid LANGUAGE sql IMMUTABLE
    RETURN lpad(to_hex(CASE WHEN n % 10 = 0 THEN 0 ELSE 1 + n % (users - 1) END), 32, '0')::uuid
"""
LANES = """
    UPDATE lanes l
       SET ready = t.ready, waiting = t.ready, active = t.active,
           reserved_seconds = 3600 * t.active, used_seconds = t.used
      FROM (SELECT user_id, count(*) FILTER (WHERE state = 'ready') AS ready,
                   count(*) FILTER (WHERE state = 'running') AS active,
                   600 * count(*) FILTER (WHERE epoch = 1 AND finished_at IS NOT NULL) AS used
              FROM tasks
             GROUP BY user_id) t
     WHERE t.user_id = l.user_id
"""


def fill_history(deployment: BenchmarkDeployment, *, users: int, tasks: int) -> None:
    """Insert the users and their tasks, and update the planner's statistics."""
    url = deployment.servers.superuser_url(deployment.database)
    values = {"users": users, "tasks": tasks}
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(OWNER_OF)
            cursor.execute(USERS, values)
        # Triggers and foreign keys are for writers who can err; here they cost minutes.
        with connection, connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(ROWS.read_text("utf-8"), values)
        with connection, connection.cursor() as cursor:
            cursor.execute(LANES)
            cursor.execute("SELECT repair_depth()")
    finally:
        connection.close()
    deployment.servers.vacuum_and_checkpoint(deployment.database)
