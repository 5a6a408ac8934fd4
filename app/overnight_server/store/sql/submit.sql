-- name: find_by_idempotency_keys
-- Tasks of earlier requests with the same keys; with the lane locked the result cannot change.
SELECT idempotency_key, id, dag_id
  FROM tasks
 WHERE user_id = :user_id
   AND idempotency_key = ANY (CAST(:keys AS text[]));

-- name: find_dag_by_idempotency_key
-- The graph of an earlier request with the same key; with the lane locked the result cannot change.
SELECT id
  FROM dags
 WHERE user_id = :user_id
   AND idempotency_key = CAST(:key AS text);

-- name: insert_dag
-- A fork of a graph whose budget an operator set has such a budget too.
INSERT INTO dags (id, user_id, title, created_by, budget_ceiling_usd, budget_by_operator, forked_from, idempotency_key)
VALUES (:dag_id, :user_id, :title,
        coalesce(CAST(:created_by AS text), (SELECT 'human:' || name FROM users WHERE id = :user_id)), CAST(:budget_usd AS numeric),
        coalesce((SELECT budget_by_operator FROM dags WHERE id = CAST(:forked_from AS uuid)), false),
        CAST(:forked_from AS uuid), CAST(:key AS text));

-- name: insert_tasks
-- One statement for one task or ten thousand. `policy` is the index of the task's retry policy in
-- `policies`, because most tasks of a request share one.
INSERT INTO tasks (id, user_id, dag_id, type, name, title, description, project_id, payload, spec, tags, source,
                   created_by, idempotency_key, state, unmet, priority, priority_boost_per_minute, dependency_boost,
                   sort_key, deadline_at, start_at, required_capabilities, locks, timeout_seconds, estimated_cost_usd,
                   max_cost_usd, max_attempts, retry, parent_id, spawn_key, role, context_refs, execution)
SELECT t.id, :user_id, t.dag_id, t.type, t.name, t.title, t.description, t.project_id, t.payload, t.spec, t.tags,
       t.source, coalesce(t.created_by, (SELECT 'human:' || name FROM users WHERE id = :user_id)), t.idempotency_key,
       CASE WHEN t.unmet = 0 THEN 'ready' ELSE 'pending' END, t.unmet, t.priority, t.priority_boost_per_minute,
       t.dependency_boost,
       sort_key(t.priority, t.priority_boost_per_minute, clock(), t.dependency_boost, t.deadline_at, clock()),
       t.deadline_at, t.start_at, t.required_capabilities, t.locks, t.timeout_seconds,
       coalesce(t.estimated_cost_usd, t.max_cost_usd),
       t.max_cost_usd, t.max_attempts, CAST(:policies AS jsonb) -> t.policy, t.parent_id, t.spawn_key, t.role, t.context_refs, t.execution
  FROM jsonb_to_recordset(CAST(:tasks AS jsonb)) AS t(
           id uuid, dag_id uuid, type text, name text, title text, description text, project_id text, payload jsonb,
           spec jsonb, tags text[], source text, created_by text, idempotency_key text, unmet int, priority int,
           priority_boost_per_minute float8, dependency_boost float8, deadline_at timestamptz, start_at timestamptz,
           required_capabilities text[], locks text[], timeout_seconds int, estimated_cost_usd numeric,
           max_cost_usd numeric, max_attempts int, policy int, parent_id uuid, spawn_key text, role text,
           context_refs jsonb, execution jsonb);

-- name: insert_tasks_if_within_limits
-- The same for a submit that is far below every limit and uses no idempotency key again; returns the depth
-- of the queue, and stores it for a view_task of the same transaction. If it returns no row, nothing was
-- inserted, and the caller checks which limit applies. The lane is locked. `inserted` is the same as insert_tasks (tests compare them).
WITH within_limits AS MATERIALIZED (
    SELECT total.depth
      FROM lanes l
      JOIN users u ON u.id = l.user_id
     CROSS JOIN LATERAL (SELECT total_depth() AS depth) total
     WHERE l.user_id = :user_id
       AND l.due_at > clock()
       AND l.waiting + CAST(:count AS int) <= coalesce(u.max_pending, CAST(:max_pending AS int))
       AND total.depth + CAST(:count AS int) + CAST(:near_full AS int) <= CAST(:queue_max_size AS int)
       AND NOT (u.on_exhausted = 'reject' AND coalesce(l.used_seconds >= l.limit_seconds, false))
       AND NOT EXISTS (SELECT 1
                         FROM tasks k
                        WHERE k.user_id = l.user_id
                          AND k.idempotency_key = ANY (CAST(:keys AS text[])))
), inserted AS (
    INSERT INTO tasks (id, user_id, dag_id, type, name, title, description, project_id, payload, spec, tags, source,
                       created_by, idempotency_key, state, unmet, priority, priority_boost_per_minute, dependency_boost,
                       sort_key, deadline_at, start_at, required_capabilities, locks, timeout_seconds, estimated_cost_usd,
                       max_cost_usd, max_attempts, retry, parent_id, spawn_key, role, context_refs, execution)
    SELECT t.id, :user_id, t.dag_id, t.type, t.name, t.title, t.description, t.project_id, t.payload, t.spec, t.tags,
           t.source, coalesce(t.created_by, (SELECT 'human:' || name FROM users WHERE id = :user_id)), t.idempotency_key,
           CASE WHEN t.unmet = 0 THEN 'ready' ELSE 'pending' END, t.unmet, t.priority, t.priority_boost_per_minute,
           t.dependency_boost,
           sort_key(t.priority, t.priority_boost_per_minute, clock(), t.dependency_boost, t.deadline_at, clock()),
           t.deadline_at, t.start_at, t.required_capabilities, t.locks, t.timeout_seconds,
           coalesce(t.estimated_cost_usd, t.max_cost_usd),
           t.max_cost_usd, t.max_attempts, CAST(:policies AS jsonb) -> t.policy, t.parent_id, t.spawn_key, t.role, t.context_refs, t.execution
      FROM jsonb_to_recordset(CAST(:tasks AS jsonb)) AS t(
               id uuid, dag_id uuid, type text, name text, title text, description text, project_id text, payload jsonb,
               spec jsonb, tags text[], source text, created_by text, idempotency_key text, unmet int, priority int,
               priority_boost_per_minute float8, dependency_boost float8, deadline_at timestamptz, start_at timestamptz,
               required_capabilities text[], locks text[], timeout_seconds int, estimated_cost_usd numeric,
               max_cost_usd numeric, max_attempts int, policy int, parent_id uuid, spawn_key text, role text,
               context_refs jsonb, execution jsonb)
     WHERE EXISTS (SELECT 1 FROM within_limits)
)
SELECT depth, set_config('overnight.depth', CAST(depth AS text), true) FROM within_limits;

-- name: insert_edges
-- An edge between tasks that a fork copied as completed is satisfied already.
INSERT INTO task_edges (parent_id, child_id, dag_id, user_id, condition, on_unmet, satisfied_at)
SELECT e.parent_id, e.child_id, e.dag_id, :user_id, e.condition, e.on_unmet, CASE WHEN e.is_met THEN clock() END
  FROM jsonb_to_recordset(CAST(:edges AS jsonb)) AS e(
           parent_id uuid, child_id uuid, dag_id uuid, condition text, on_unmet text, is_met boolean);
