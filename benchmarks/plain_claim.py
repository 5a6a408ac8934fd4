"""The simplest claim: count the running tasks, take ten users with room, try each in turn.

It is our base line: correct for one claimer, and as slow as the whole backlog is long. Tables,
indexes and statements are as plain as the idea; an index for the pending rows is thrown in.
"""

from collections.abc import Sequence

import psycopg2

from benchmarks.bulk_rows import LARGEST_USER_SHARE
from benchmarks.servers import BenchmarkServers

SCHEMA = """
    CREATE TABLE users (
        id uuid PRIMARY KEY,
        max_concurrent_agents int NOT NULL DEFAULT 10,
        monthly_agent_hours_limit int,
        monthly_agent_hours_used numeric(10, 2) NOT NULL DEFAULT 0
    );
    CREATE TABLE tasks (
        id uuid PRIMARY KEY,
        user_id uuid NOT NULL REFERENCES users (id),
        title text NOT NULL,
        status text NOT NULL,
        priority int NOT NULL,
        created_at timestamptz NOT NULL,
        claimed_at timestamptz
    );
    CREATE INDEX tasks_user_running ON tasks (user_id, status)
        WHERE status IN ('claimed', 'running');
    CREATE INDEX tasks_user_pending ON tasks (user_id, priority, created_at)
        WHERE status = 'pending';
"""
USERS = """
    INSERT INTO users (id)
    SELECT lpad(to_hex(n), 32, '0')::uuid FROM generate_series(0, %(users)s - 1) AS n
"""
TASKS = """
    INSERT INTO tasks (id, user_id, title, status, priority, created_at)
    SELECT lpad(to_hex(n + (1::bigint << 40)), 32, '0')::uuid,
           lpad(to_hex(CASE WHEN random() < %(whale)s THEN 0
                            ELSE 1 + n %% (%(users)s - 1) END), 32, '0')::uuid,
           'nothing', 'pending', 1 + n %% 4, now() - make_interval(mins => (n %% 1440)::int)
      FROM generate_series(%(start)s::bigint, %(stop)s::bigint - 1) AS n
"""
ELIGIBLE = """
    WITH busy AS (
        SELECT user_id, count(*) AS running
          FROM tasks
         WHERE status IN ('claimed', 'running')
         GROUP BY user_id
    ), waiting AS (
        SELECT DISTINCT user_id FROM tasks WHERE status = 'pending'
    )
    SELECT w.user_id
      FROM waiting w
      JOIN users u ON u.id = w.user_id
      LEFT JOIN busy b ON b.user_id = w.user_id
     WHERE coalesce(b.running, 0) < u.max_concurrent_agents
     ORDER BY coalesce(b.running, 0)
     LIMIT 10
"""
HAS_HOURS = """
    SELECT monthly_agent_hours_limit IS NULL
           OR monthly_agent_hours_used < monthly_agent_hours_limit
      FROM users
     WHERE id = %s
"""
CLAIM = """
    UPDATE tasks
       SET status = 'claimed', claimed_at = now()
     WHERE id = (SELECT id
                   FROM tasks
                  WHERE user_id = %s AND status = 'pending'
                  ORDER BY priority, created_at
                  LIMIT 1
                    FOR UPDATE SKIP LOCKED)
    RETURNING id
"""
GIVE_BACK = "UPDATE tasks SET status = 'pending' WHERE id = ANY (%(tasks)s::uuid[])"


def connect(url: str) -> psycopg2.extensions.connection:
    """Open a connection of a claimer."""
    return psycopg2.connect(url)


def claim(connection: psycopg2.extensions.connection) -> str | None:
    """Claim one task for whichever user runs least, and commit."""
    with connection, connection.cursor() as cursor:
        cursor.execute(ELIGIBLE)
        for (user,) in cursor.fetchall():
            cursor.execute(HAS_HOURS, [user])
            if not cursor.fetchall()[0][0]:
                continue
            cursor.execute(CLAIM, [user])
            if claimed := cursor.fetchall():
                return str(claimed[0][0])
    return None


class PlainQueue:
    """A database with the plain tables, and the plain claim."""

    def __init__(self, servers: BenchmarkServers, users: int) -> None:
        self.servers = servers
        self.users = users
        self.pending = 0
        self.url = servers.database("plain")
        self._connection = connect(self.url)
        self._run(SCHEMA)
        self._run(USERS)

    def fill_up(self, pending: int) -> None:
        """Insert pending tasks until there are `pending`, and update the planner's statistics."""
        self._run(TASKS, start=self.pending, stop=pending)
        self.pending = pending
        self.servers.vacuum_and_checkpoint("plain")

    def claim(self) -> str | None:
        """Claim one task, and commit."""
        return claim(self._connection)

    def give_back(self, tasks: Sequence[str]) -> None:
        """Undo claims, so that the next ones find the same queue."""
        self._run(GIVE_BACK, tasks=list(tasks))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _run(self, sql: str, **values: object) -> None:
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(sql, {"users": self.users, "whale": LARGEST_USER_SHARE, **values})
