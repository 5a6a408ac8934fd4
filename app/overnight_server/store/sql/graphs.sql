-- name: resolve_dependents
-- After tasks have ended: satisfy each of their edges that is met, once, and subtract the edges that this
-- statement satisfied from the child's `unmet`; a child that reaches 0 becomes ready. A child with an edge
-- that can never be met is cancelled, and so are those below it. The lane's lock serializes two parents.
WITH RECURSIVE ended AS MATERIALIZED (
    -- OFFSET 0, here and below, makes the planner find each row by its key whatever its estimates are.
    SELECT t.id, t.state
      FROM unnest(CAST(:ended AS uuid[])) named(id)
     CROSS JOIN LATERAL (SELECT id, state FROM tasks WHERE id = named.id OFFSET 0) t
     WHERE t.state IN ('completed', 'dead_lettered', 'cancelled')
), unreachable (id, reason) AS (
    SELECT e.child_id,
           CASE p.state WHEN 'dead_lettered' THEN 'upstream_failed' WHEN 'completed' THEN 'not_needed'
                        ELSE 'upstream_cancelled' END
      FROM ended p
     CROSS JOIN LATERAL (SELECT child_id
                           FROM task_edges
                          WHERE parent_id = p.id AND satisfied_at IS NULL
                            AND NOT is_met(condition, on_unmet, p.state) OFFSET 0) e
     CROSS JOIN LATERAL (SELECT state FROM tasks WHERE id = e.child_id OFFSET 0) child
     WHERE child.state = ANY (CAST(:sources AS text[]))
    UNION
    SELECT e.child_id, d.reason
      FROM unreachable d
     CROSS JOIN LATERAL (SELECT child_id
                           FROM task_edges
                          WHERE parent_id = d.id AND satisfied_at IS NULL
                            AND NOT is_met(condition, on_unmet, 'cancelled') OFFSET 0) e
     CROSS JOIN LATERAL (SELECT state FROM tasks WHERE id = e.child_id OFFSET 0) child
     WHERE child.state = ANY (CAST(:sources AS text[]))
), cancelled AS MATERIALIZED (
    -- Through arrays, because the planner estimates few rows for them, but millions for a recursion.
    SELECT id, reason FROM unnest(ARRAY(SELECT id FROM unreachable), ARRAY(SELECT reason FROM unreachable)) f(id, reason)
), satisfied AS (
    UPDATE task_edges e
       SET satisfied_at = clock()
     WHERE e.parent_id = ANY (ARRAY(SELECT id FROM ended UNION ALL SELECT id FROM cancelled))
       AND e.satisfied_at IS NULL
       AND is_met(e.condition, e.on_unmet,
                  CASE WHEN e.parent_id = ANY (ARRAY(SELECT id FROM ended WHERE state = 'completed')) THEN 'completed'
                       WHEN e.parent_id = ANY (ARRAY(SELECT id FROM ended WHERE state = 'dead_lettered')) THEN 'dead_lettered'
                       ELSE 'cancelled' END)
    RETURNING e.child_id
), change AS MATERIALIZED (
    -- Of several reasons the first in this order is recorded.
    SELECT id, sum(edges)::int AS edges,
           (array_agg(reason ORDER BY array_position(
               ARRAY['upstream_failed', 'upstream_cancelled', 'not_needed'], reason)))[1] AS reason
      FROM (SELECT child_id AS id, 1 AS edges, CAST(NULL AS text) AS reason FROM satisfied
            UNION ALL
            SELECT id, 0, reason FROM cancelled) changed_edges
     GROUP BY id
)
UPDATE tasks t
   SET unmet = t.unmet - c.edges,
       -- A task that has used up its budget waits for a raise before it continues.
       state = CASE WHEN c.reason IS NOT NULL THEN :cancelled
                    WHEN t.unmet > c.edges OR t.state <> ALL (CAST(:sources AS text[])) THEN t.state
                    WHEN t.cost_usd > 0 AND t.cost_usd >= t.max_cost_usd THEN t.state
                    ELSE :target END,
       awaits_budget = CASE WHEN c.reason IS NULL AND t.unmet = c.edges AND t.state = ANY (CAST(:sources AS text[]))
                             AND t.cost_usd > 0 AND t.cost_usd >= t.max_cost_usd THEN 'task'
                            ELSE t.awaits_budget END,
       finished_at = CASE WHEN c.reason IS NOT NULL THEN clock() ELSE t.finished_at END,
       failure_reason = coalesce(c.reason, t.failure_reason)
  FROM change c
 WHERE t.id = c.id;

-- name: edges_of_graph
SELECT e.parent_id, e.child_id, e.condition, e.on_unmet
  FROM tasks t
  JOIN task_edges e ON e.child_id = t.id
 WHERE t.dag_id = :dag_id
   AND t.user_id = :user_id;

-- name: graph_to_fork
-- A task, its graph and the graph's budget; no row for a task of another user. The lock keeps retention from deleting the
-- graph while it is copied.
SELECT g.id, g.title, g.budget_ceiling_usd
  FROM tasks t
  JOIN graphs g ON g.id = t.dag_id
 WHERE t.id = :task_id
   AND t.user_id = :user_id
   FOR KEY SHARE OF t;

-- name: specs_of_graph
SELECT id, spec FROM tasks WHERE dag_id = :dag_id AND user_id = :user_id AND spec ? 'context_refs';

-- name: refs_of_graph
SELECT id, context_refs FROM tasks WHERE dag_id = :dag_id AND user_id = :user_id AND context_refs IS NOT NULL;

-- name: fork_tasks
-- Copy tasks into another graph: completed ones with their result, at no cost; the others as new tasks,
-- with the max_attempts that were submitted, and with a deadline only if it has not passed.
INSERT INTO tasks (id, user_id, dag_id, copied_from, parent_id, spawn_key, role, context_refs, execution, type, name, title,
                   description, project_id, payload, spec, tags, source,
                   created_by, state, unmet, priority, priority_boost_per_minute, dependency_boost, sort_key,
                   deadline_at, start_at, required_capabilities, locks, timeout_seconds, estimated_cost_usd, max_cost_usd,
                   max_attempts, retry, output, result_summary, files_changed, finished_at)
SELECT c.id, o.user_id, :dag_id, CASE WHEN c.is_copied THEN o.id END,
       c.parent_id, CASE WHEN c.parent_id IS NOT NULL THEN o.spawn_key END, o.role, c.context_refs, o.execution, o.type, o.name,
       o.title, o.description, o.project_id,
       o.payload, coalesce(c.spec, o.spec), o.tags, 'fork',
       (SELECT 'human:' || u.name FROM users u WHERE u.id = o.user_id),
       CASE WHEN c.is_copied THEN 'completed' WHEN c.unmet = 0 THEN 'ready' ELSE 'pending' END, c.unmet,
       o.priority, o.priority_boost_per_minute, o.dependency_boost,
       sort_key(o.priority, o.priority_boost_per_minute, clock(), o.dependency_boost, due.at, clock()),
       due.at, CASE WHEN NOT c.is_copied THEN o.start_at END, o.required_capabilities, o.locks, o.timeout_seconds, o.estimated_cost_usd, o.max_cost_usd,
       coalesce(o.original_max_attempts, o.max_attempts), o.retry,
       CASE WHEN c.is_copied THEN o.output END, CASE WHEN c.is_copied THEN o.result_summary END,
       CASE WHEN c.is_copied THEN o.files_changed END, CASE WHEN c.is_copied THEN clock() END
  FROM jsonb_to_recordset(CAST(:copies AS jsonb)) AS c(
           old_id uuid, id uuid, is_copied boolean, unmet int, spec jsonb, context_refs jsonb, parent_id uuid)
  JOIN tasks o ON o.id = c.old_id
 CROSS JOIN LATERAL (SELECT CASE WHEN o.deadline_at > clock() THEN o.deadline_at END AS at) due;
