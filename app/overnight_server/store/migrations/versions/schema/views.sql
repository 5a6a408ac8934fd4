-- A user's limits and usage under the names of the plan's documents. The hours used are read
-- from the lane, so there is no second copy that could disagree.
-- Read with the rights of whoever asks, like all views here: behind the walls, not over them.
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

-- Every graph: those of several tasks, and lone tasks, which are their own.
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

-- The runs a task has spent since it was last forgiven: who carried them, and how they ended.
CREATE FUNCTION spent_runs(of_task uuid, after_epoch int) RETURNS jsonb
LANGUAGE sql STABLE
RETURN (SELECT jsonb_agg(jsonb_build_object('agent', agent, 'outcome', outcome) ORDER BY epoch)
          FROM attempts
         WHERE task_id = of_task AND spent AND epoch > after_epoch);

-- Why a pending task that has run before goes on waiting: it asks for money, or it waits for tasks
-- that it spawned.
CREATE FUNCTION wait_reason(task uuid, state text, epoch int, unmet int, awaits_budget text) RETURNS text
LANGUAGE sql STABLE
RETURN CASE WHEN awaits_budget IS NOT NULL THEN 'approval'
            WHEN state = 'pending' AND epoch > 0 AND unmet > 0
                 AND EXISTS (SELECT 1
                               FROM task_edges e
                               JOIN tasks child ON child.id = e.parent_id
                              WHERE e.child_id = task AND e.satisfied_at IS NULL AND child.parent_id = task)
            THEN 'children' END;

-- Everything people did, newest last: what they changed, and what they did with tasks. A person is
-- a user behind a key or an operator; processes act under names without a colon.
CREATE VIEW audit_trail WITH (security_invoker = true) AS
SELECT at, actor, via, key_id, act, user_id, target, detail
  FROM audit_log
UNION ALL
SELECT at, actor, CASE WHEN starts_with(actor, 'user:') THEN 'overnight-api' ELSE 'overnight-cli' END, NULL, kind, user_id,
       task_id::text,
       jsonb_strip_nulls(jsonb_build_object('from', from_state, 'to', to_state, 'reason', reason))
  FROM events
 WHERE starts_with(actor, 'user:') OR starts_with(actor, 'human:');

-- The same for failures of the same kind: numbers, ids and quoted words differ from one to the next.
CREATE FUNCTION error_fingerprint(type text, reason text, error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN left(md5(concat_ws('|', type, reason,
       regexp_replace(regexp_replace(left(error, 500), '''[^'']*''|"[^"]*"', '?', 'g'),
                      '[0-9a-fA-F-]*[0-9][0-9a-zA-Z-]*', '#', 'g'))), 12);
