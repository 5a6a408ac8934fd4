-- name: view_dag
-- One graph as its owner sees it; a lone task is its own graph.
SELECT id, title, status, total, open, completed, dead, cancelled, budget_ceiling_usd, spent_usd,
       created_by, forked_from, created_at, finished_at
  FROM graphs
 WHERE id = :dag_id
   AND user_id = :user_id;

-- name: view_dags (not prepared)
-- The newest of a user's graphs of several tasks, a page at a time; lone tasks are listed as tasks.
SELECT id, title, status, total, open, completed, dead, cancelled, budget_ceiling_usd, spent_usd,
       created_by, forked_from, created_at, finished_at
  FROM dags
 WHERE user_id = :user_id
   AND (CAST(:status AS text) IS NULL OR status = CAST(:status AS text))
   AND (CAST(:before AS uuid) IS NULL OR id < CAST(:before AS uuid))
 ORDER BY id DESC
 LIMIT :limit;

-- name: view_dag_tasks
-- The tasks of one graph, oldest first, with the columns that a drawing of the graph shows.
SELECT id, name, title, type, state, attempts, max_attempts, started_at, finished_at, progress,
       failure_reason, error, cost_usd, wait_reason(id, state, epoch, unmet, awaits_budget) AS wait_reason,
       CASE WHEN state IN ('running', 'validating') THEN extract(epoch FROM clock() - started_at)
            WHEN finished_at IS NOT NULL THEN extract(epoch FROM finished_at - started_at) END::float8 AS run_seconds
  FROM tasks
 WHERE dag_id = :dag_id
   AND user_id = :user_id
 ORDER BY id;

-- name: view_dag_edges
SELECT e.parent_id, e.child_id, e.condition, e.on_unmet, e.satisfied_at IS NOT NULL AS satisfied
  FROM tasks t
  JOIN task_edges e ON e.child_id = t.id
 WHERE t.dag_id = :dag_id
   AND t.user_id = :user_id
 ORDER BY e.child_id, e.parent_id;
