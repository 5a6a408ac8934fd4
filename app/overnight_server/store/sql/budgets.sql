-- name: budget_requested_by_task
-- For which budget a task asks, and whether an operator set it. The caller locks the lane and reads it again
-- before acting on it. Only operators set the budget of a night.
SELECT t.user_id, t.dag_id, t.state, asks.budget,
       CASE asks.budget WHEN 'dag' THEN g.budget_by_operator ELSE asks.budget = 'night' END AS by_operator
  FROM tasks t
  JOIN lanes l ON l.user_id = t.user_id
  LEFT JOIN dags g ON g.id = t.dag_id
 CROSS JOIN LATERAL (SELECT requested_budget(t, l, g) AS budget) asks
 WHERE t.id = :task_id;

-- name: list_approvals (not prepared)
-- Tasks that ask for a budget, the longest waiting first. A partial index holds the tasks that a budget stopped;
-- ready tasks are read only of open graphs with a budget and of users with a limit for the night.
WITH candidate AS MATERIALIZED (
    SELECT t.id
      FROM tasks t
     WHERE t.awaits_budget IS NOT NULL
       AND (CAST(:user_id AS uuid) IS NULL OR t.user_id = CAST(:user_id AS uuid))
    UNION
    SELECT t.id
      FROM dags g
      JOIN tasks t ON t.dag_id = g.id AND t.state = 'ready'
     WHERE g.budget_ceiling_usd IS NOT NULL AND g.finished_at IS NULL
       AND (CAST(:user_id AS uuid) IS NULL OR g.user_id = CAST(:user_id AS uuid))
    UNION
    SELECT t.id
      FROM lanes l
      JOIN tasks t ON t.user_id = l.user_id AND t.state = 'ready'
     WHERE l.night_limit_usd IS NOT NULL
       AND next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) > l.night_limit_usd - l.night_spent_usd
       AND (CAST(:user_id AS uuid) IS NULL OR l.user_id = CAST(:user_id AS uuid))
)
SELECT t.id, u.name AS "user", t.title, t.type, asks.budget, t.cost_usd, t.updated_at AS since,
       CASE asks.budget WHEN 'task' THEN t.max_cost_usd WHEN 'dag' THEN g.budget_ceiling_usd
                        ELSE l.night_limit_usd END AS limit_usd,
       CASE asks.budget WHEN 'task' THEN t.cost_usd WHEN 'dag' THEN g.spent_usd
                        ELSE l.night_spent_usd END AS spent_usd,
       CASE asks.budget WHEN 'dag' THEN g.budget_by_operator ELSE asks.budget = 'night' END AS by_operator,
       next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) AS needs_usd,
       t.error, count(*) OVER () AS of_all
  FROM candidate
  JOIN tasks t ON t.id = candidate.id
  JOIN users u ON u.id = t.user_id
  JOIN lanes l ON l.user_id = t.user_id
  LEFT JOIN dags g ON g.id = t.dag_id
 CROSS JOIN LATERAL (SELECT requested_budget(t, l, g) AS budget) asks
 WHERE asks.budget IS NOT NULL
 ORDER BY t.updated_at, t.id
 LIMIT :limit;

-- name: raise_task_budget
-- Raise the ceiling by :usd above its cost or the old ceiling, whichever is more.
UPDATE tasks
   SET max_cost_usd = greatest(max_cost_usd, cost_usd) + CAST(:usd AS numeric)
 WHERE id = :task_id;

-- name: raise_dag_budget
-- Raise the budget by :usd above what is spent and reserved or the old budget, whichever is more.
UPDATE dags
   SET budget_ceiling_usd = greatest(budget_ceiling_usd, spent_usd + reserved_usd) + CAST(:usd AS numeric)
 WHERE id = :dag_id;

-- name: raise_night_budget
-- For this night only; the next one starts with the user's budget.
UPDATE lanes
   SET night_limit_usd = greatest(night_limit_usd, night_spent_usd + night_reserved_usd) + CAST(:usd AS numeric),
       skipped_by_pools = '{}'
 WHERE user_id = :user_id;

-- name: release_budget_waiters
-- Tasks that waited for a budget become ready; the gate decides how many of them it pays for.
UPDATE tasks
   SET state = :target, failure_reason = NULL, error = NULL
 WHERE user_id = :user_id
   AND awaits_budget = :budget
   AND (CAST(:dag_id AS uuid) IS NULL OR dag_id = CAST(:dag_id AS uuid))
   AND (CAST(:task_id AS uuid) IS NULL OR id = CAST(:task_id AS uuid))
   AND state = ANY (CAST(:sources AS text[]))
RETURNING id;

-- name: set_dag_budget
UPDATE dags
   SET budget_ceiling_usd = CAST(:usd AS numeric), budget_by_operator = CAST(:usd AS numeric) IS NOT NULL
 WHERE id = :dag_id
RETURNING spent_usd;

-- name: owner_of_dag
SELECT user_id FROM dags WHERE id = :dag_id;

-- name: set_agent_budget
UPDATE agents SET budget_remaining_usd = CAST(:usd AS numeric) WHERE id = :agent_id RETURNING pool;
