-- Views. They run with the rights of the role that reads them, so row-level security applies.

-- A user's limits and usage under the names of the original interface specification. The hours used are read from the
-- lane; there is no second copy.
CREATE VIEW user_limits WITH (security_invoker = true) AS
SELECT u.id AS user_id,
       u.name,
       u.plan_tier,
       u.max_concurrent_agents,
       u.max_task_duration_minutes,
       u.monthly_agent_hours_limit,
       round(l.used_seconds / 3600, 4) AS monthly_agent_hours_used,
       l.resets_at AS billing_cycle_reset_at
  FROM users u
  JOIN lanes l ON l.user_id = u.id;

-- All graphs: rows of dags, and lone tasks, each of which is its own graph.
CREATE VIEW graphs WITH (security_invoker = true) AS
SELECT id, user_id, title, created_by, total, open, completed, dead, cancelled, status,
       budget_ceiling_usd, spent_usd, forked_from, created_at, finished_at
  FROM dags
UNION ALL
SELECT id, user_id, title, created_by, 1,
       (is_waiting(state) OR is_active(state))::int, (state = 'completed')::int, (state = 'dead_lettered')::int, (state = 'cancelled')::int,
       CASE state WHEN 'completed' THEN 'completed' WHEN 'dead_lettered' THEN 'failed' WHEN 'cancelled' THEN 'cancelled'
                  ELSE 'running' END,
       max_cost_usd, cost_usd, NULL::uuid, created_at, finished_at
  FROM tasks
 WHERE dag_id = id AND NOT has_dag_row;
