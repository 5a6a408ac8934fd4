-- name: set_actor
-- Record this actor in every event of the transaction.
SELECT set_config('overnight.actor', :actor, true);

-- name: set_acting_user
-- Act for one user until the transaction ends: row-level security shows that user's rows, and events and
-- the audit log record the actor and the key.
SELECT set_config('overnight.user_id', :user_id, true), set_config('overnight.actor', :actor, true),
       set_config('overnight.key_id', :key_id, true);

-- name: set_traceparent
-- New tasks of the transaction get this trace context.
SELECT set_config('overnight.traceparent', :traceparent, true);

-- name: owner_of_task
SELECT user_id, state, failure_reason FROM tasks WHERE id = :task_id;

-- name: task_to_revive
-- The lock keeps retention from deleting the task before it is revived.
SELECT user_id, state, failure_reason FROM tasks WHERE id = :task_id FOR KEY SHARE;

-- name: owners_of_tasks
SELECT id, user_id FROM tasks WHERE id = ANY (CAST(:tasks AS uuid[]));

-- name: cancel
-- Cancel tasks that do not run yet; a claim that was not started ends with its task. :asked_at is the instant
-- of the request, if an earlier transaction cancelled other tasks of it.
WITH target AS MATERIALIZED (
    SELECT id, epoch, state FROM tasks
     WHERE id = ANY (CAST(:tasks AS uuid[])) AND user_id = :user_id AND state = ANY (CAST(:sources AS text[]))
     ORDER BY id
       FOR NO KEY UPDATE
), ended AS (
    UPDATE tasks t
       SET state = :target,
           token = NULL, claimed_by = NULL, pool = NULL, claimed_at = NULL, expires_at = NULL,
           reserved_seconds = NULL, bundle = NULL, retry_at = NULL,
           finished_at = clock(),
           cancel_requested_at = coalesce(t.cancel_requested_at, CAST(:asked_at AS timestamptz), clock()),
           failure_reason = :reason
      FROM target
     WHERE t.id = target.id
    RETURNING t.id, t.cancel_requested_at AS at
), closed AS (
    UPDATE attempts a
       SET ended_at = clock(), outcome = 'cancelled'
      FROM target
     WHERE a.task_id = target.id AND a.epoch = target.epoch AND a.ended_at IS NULL
)
SELECT id, at FROM ended;

-- name: request_cancel
-- Request the stop of running tasks; the next heartbeat of each returns the request. :asked_at is the
-- instant of tasks that were cancelled by the same request.
UPDATE tasks t
   SET cancel_requested_at = coalesce(t.cancel_requested_at, CAST(:asked_at AS timestamptz), clock())
  FROM (SELECT * FROM unnest(CAST(:tasks AS uuid[])) id ORDER BY id) named
 -- OFFSET 0: each row is found by its key and read after it is locked.
 CROSS JOIN LATERAL (SELECT id, user_id, state FROM tasks WHERE id = named.id OFFSET 0 FOR NO KEY UPDATE) held
 WHERE t.id = held.id AND held.user_id = :user_id AND held.state IN ('running', 'validating')
RETURNING t.id;

-- name: begin_pause
-- A pause that is already in force stays.
INSERT INTO pauses (scope, target, note, paused_by)
VALUES (:scope, CAST(:key AS text), nullif(:note, ''), :actor)
    ON CONFLICT (scope, coalesce(target, '')) WHERE resumed_at IS NULL DO NOTHING
RETURNING id;

-- name: update_pause_note
UPDATE pauses
   SET note = :note
 WHERE scope = :scope
   AND coalesce(target, '') = coalesce(CAST(:key AS text), '')
   AND resumed_at IS NULL;

-- name: take_over_pause
-- An operator pauses a user who has paused themselves: from now on only an operator can end it.
UPDATE pauses
   SET paused_by = :actor
 WHERE scope = :scope
   AND coalesce(target, '') = coalesce(CAST(:key AS text), '')
   AND resumed_at IS NULL
   AND paused_by = 'user:' || CAST(:key AS text)
   AND paused_by <> :actor;

-- name: end_pause
-- With :own only a pause that the same actor began.
UPDATE pauses
   SET resumed_at = clock(), resumed_by = :actor
 WHERE scope = :scope
   AND coalesce(target, '') = coalesce(CAST(:key AS text), '')
   AND resumed_at IS NULL
   AND (NOT :own OR paused_by = :actor)
RETURNING id;

-- name: pause_lane
UPDATE lanes SET paused = :paused WHERE user_id = :user_id;

-- name: pause_pool
UPDATE pools SET paused = :paused WHERE name = :pool RETURNING name;

-- name: revive
-- An operator revives ended tasks with more attempts; unmet edges keep them waiting. Tasks that were
-- cancelled along with others keep their attempts if any are left.
UPDATE tasks
   SET state = :target,
       finished_at = NULL,
       cancel_requested_at = NULL,
       failure_reason = NULL,
       error = NULL,
       -- A passed deadline would end the task again.
       deadline_at = CASE WHEN deadline_at > clock() THEN deadline_at END,
       sort_key = sort_key(priority, priority_boost_per_minute, coalesce(requeued_at, created_at), dependency_boost,
                           CASE WHEN deadline_at > clock() THEN deadline_at END, clock()),
       max_attempts = CASE WHEN state = 'dead_lettered' THEN attempts + :budget
                           WHEN id = CAST(:task_id AS uuid) THEN greatest(max_attempts, attempts + :budget)
                           WHEN attempts >= max_attempts THEN attempts + :budget
                           ELSE max_attempts END,
       original_max_attempts = coalesce(original_max_attempts, max_attempts),
       -- Earlier failures of a dead-lettered task no longer count towards poison.
       failures_reset_epoch = CASE WHEN state = 'dead_lettered' THEN epoch ELSE failures_reset_epoch END
 WHERE id = ANY (CAST(:tasks AS uuid[]))
   AND state = ANY (CAST(:sources AS text[]))
RETURNING id;

-- name: make_unblocked_ready
-- Tasks without unmet edges become ready; one that has used up its budget waits for a raise first.
UPDATE tasks
   SET state = CASE WHEN cost_usd > 0 AND cost_usd >= max_cost_usd THEN state ELSE :target END,
       awaits_budget = CASE WHEN cost_usd > 0 AND cost_usd >= max_cost_usd THEN 'task' END
 WHERE id = ANY (CAST(:tasks AS uuid[]))
   AND state = ANY (CAST(:sources AS text[]))
   AND unmet = 0;

-- name: tasks_to_revive
-- These tasks, and those below them that were cancelled because of them or by the same request; without
-- those that depend on another task that has ended otherwise than required, because they could never run.
WITH RECURSIVE cancel_requests AS MATERIALIZED (
    SELECT DISTINCT t.cancel_requested_at AS at
      FROM unnest(CAST(:tasks AS uuid[])) named(id)
     CROSS JOIN LATERAL (SELECT state, cancel_requested_at FROM tasks WHERE id = named.id OFFSET 0) t
     WHERE t.state = 'cancelled'
), below (id) AS (
    SELECT id FROM unnest(CAST(:tasks AS uuid[])) id
    UNION
    SELECT child.id
      FROM below b
     CROSS JOIN LATERAL (SELECT child_id, satisfied_at FROM task_edges WHERE parent_id = b.id OFFSET 0) e
     CROSS JOIN LATERAL (SELECT id, state, failure_reason, cancel_requested_at
                           FROM tasks WHERE id = e.child_id OFFSET 0) child
     WHERE child.state = 'cancelled'
       AND (e.satisfied_at IS NULL AND NOT was_stopped(child.state, child.failure_reason)
            OR child.cancel_requested_at IN (SELECT at FROM cancel_requests))
), selected AS MATERIALIZED (
    -- Through arrays, here and below, because the planner estimates few rows for them, but millions for a
    -- recursion. It then looks up NOT IN in a hash table; otherwise it would compare each row with all others.
    SELECT id FROM unnest(ARRAY(SELECT id FROM below)) id
), unreachable AS (
    SELECT d.id AS child_id
      FROM selected d
     CROSS JOIN LATERAL (SELECT parent_id FROM task_edges
                          WHERE child_id = d.id AND satisfied_at IS NULL OFFSET 0) e
     CROSS JOIN LATERAL (SELECT state FROM tasks WHERE id = e.parent_id OFFSET 0) parent
     WHERE e.parent_id NOT IN (SELECT id FROM selected)
       AND parent.state IN ('completed', 'cancelled', 'dead_lettered')
    UNION
    SELECT e.child_id
      FROM unreachable h
     CROSS JOIN LATERAL (SELECT child_id FROM task_edges
                          WHERE parent_id = h.child_id AND satisfied_at IS NULL OFFSET 0) e
)
SELECT id FROM selected WHERE id NOT IN (SELECT unnest(ARRAY(SELECT child_id FROM unreachable)));

-- name: reopen_edges
-- Tasks that are revived together depend on each other as before; earlier claims of the child do not count
-- for the edge.
WITH again AS MATERIALIZED (
    -- OFFSET 0: the edges of each parent are found by the parent, because there may be many children. IS TRUE
    -- keeps the planner from making the lookup a loop over the children.
    SELECT edge.parent_id, edge.child_id
      FROM unnest(CAST(:parents AS uuid[])) parent(id)
     CROSS JOIN LATERAL (SELECT parent_id, child_id FROM task_edges
                          WHERE parent_id = parent.id AND satisfied_at IS NOT NULL OFFSET 0) edge
     WHERE (edge.child_id IN (SELECT unnest(CAST(:tasks AS uuid[])))) IS TRUE
), reopened AS (
    UPDATE task_edges e
       SET satisfied_at = NULL, since_epoch = (SELECT epoch FROM tasks WHERE id = e.child_id)
      FROM again
     WHERE e.parent_id = again.parent_id
       AND e.child_id = again.child_id
    RETURNING e.child_id
)
UPDATE tasks t
   SET unmet = t.unmet + r.edges
  FROM (SELECT child_id, count(*)::int AS edges FROM reopened GROUP BY child_id) r
 WHERE t.id = r.child_id;

-- name: unsatisfiable_parent
-- One parent that has ended, but not as its edge requires; no row if there is none.
SELECT p.id, p.state, e.condition
  FROM task_edges e
  JOIN tasks p ON p.id = e.parent_id
 WHERE e.child_id = :task_id
   AND e.satisfied_at IS NULL
   AND p.state IN ('completed', 'cancelled', 'dead_lettered')
 ORDER BY p.id
 LIMIT 1;

-- name: retryable_tasks_of_graph
-- The tasks of a graph that a person cancelled, the tasks with an unresolved dead letter, and tasks that were
-- cancelled because of others that a retry has revived without them, because it was interrupted.
SELECT t.id
  FROM tasks t
 WHERE t.dag_id = :dag_id AND t.user_id = :user_id
   AND (was_stopped(t.state, t.failure_reason) AND t.failure_reason IS DISTINCT FROM 'discarded'
        OR t.state = 'dead_lettered'
           AND EXISTS (SELECT 1 FROM dead_letters d WHERE d.task_id = t.id AND d.resolution IS NULL)
        OR t.state = 'cancelled' AND t.failure_reason IN ('upstream_cancelled', 'upstream_failed')
           -- OFFSET 0: the parents of each task are found by their keys, whatever the planner estimates.
           AND NOT EXISTS (SELECT 1
                             FROM (SELECT parent_id FROM task_edges
                                    WHERE child_id = t.id AND satisfied_at IS NULL OFFSET 0) e
                            CROSS JOIN LATERAL (SELECT state FROM tasks WHERE id = e.parent_id OFFSET 0) parent
                            WHERE is_final(parent.state)));

-- name: parents_not_met
-- The parents that these tasks still wait for.
SELECT DISTINCT parent_id
  FROM task_edges
 WHERE child_id = ANY (CAST(:tasks AS uuid[]))
   AND satisfied_at IS NULL;

-- name: tasks_of_graph
SELECT id, state, parent_id FROM tasks WHERE dag_id = :dag_id AND user_id = :user_id;

-- name: status_of_graph
SELECT status FROM graphs WHERE id = :dag_id;

-- name: resolve_dead_letter
UPDATE dead_letters
   SET resolution = :resolution, resolved_at = clock(), resolved_by = :actor, reviewed = true,
       note = nullif(:note, '')
 WHERE task_id = ANY (CAST(:tasks AS uuid[])) AND resolution IS NULL
RETURNING id;

-- name: overrule
-- A person accepts the output that a validator rejected in the latest run of a task: the task is completed with it.
WITH accepted AS MATERIALIZED (
    SELECT a.task_id, a.epoch, a.rejected
      FROM (SELECT id, epoch, state, user_id FROM tasks WHERE id = :task_id FOR NO KEY UPDATE) t
      JOIN attempts a ON a.task_id = t.id AND a.epoch = t.epoch
     WHERE t.user_id = :user_id
       AND t.state = ANY (CAST(:sources AS text[]))
       AND a.rejected IS NOT NULL
), attempt AS (
    UPDATE attempts a
       SET outcome = 'overruled'
      FROM accepted
     WHERE a.task_id = accepted.task_id AND a.epoch = accepted.epoch
)
UPDATE tasks t
   SET state = :target, finished_at = clock(), retry_at = NULL, cancel_requested_at = NULL,
       failure_reason = NULL, error = NULL,
       output = nullif(a.rejected -> 'output', 'null'),
       result_summary = a.rejected ->> 'summary',
       files_changed = nullif(a.rejected -> 'files_changed', 'null')
  FROM accepted a
 WHERE t.id = a.task_id
RETURNING t.id;

-- name: discard
-- End a task whose dead letter was resolved by `cancel`. Nothing is left to do for those that depend on it: they
-- were resolved when it failed. It was not cancelled together with others, so no retry revives it with them.
UPDATE tasks
   SET state = :target, failure_reason = :reason, cancel_requested_at = NULL
 WHERE id = :task_id
   AND state = ANY (CAST(:sources AS text[]));

-- name: lock_task
-- Read a user's task and lock it until the transaction ends.
SELECT id, state, title, description, priority, deadline_at, tags, timeout_seconds, payload, start_at,
       execution ->> 'agent' AS agent, has_started(id) AS has_started
  FROM tasks
 WHERE user_id = :user_id
   AND id = :task_id
   FOR NO KEY UPDATE;

-- name: execution_of_task
-- How a task runs; the task is locked.
SELECT execution, spec, required_capabilities FROM tasks WHERE user_id = :user_id AND id = :task_id;

-- name: edit_task
-- Change fields of a task that does not run; its order changes with priority and deadline. A task that waited for
-- nothing but its start becomes ready if the new start has come; a database trigger makes a ready task pending if it has not.
UPDATE tasks
   SET title = coalesce(CAST(:title AS text), title),
       description = coalesce(CAST(:description AS text), description),
       priority = coalesce(CAST(:priority AS smallint), priority),
       tags = coalesce(CAST(:tags AS text[]), tags),
       payload = coalesce(CAST(:payload AS jsonb), payload),
       spec = coalesce(CAST(:spec AS jsonb), spec),
       execution = coalesce(CAST(:execution AS jsonb), execution),
       timeout_seconds = CASE WHEN :with_timeout THEN CAST(:timeout_seconds AS int) ELSE timeout_seconds END,
       deadline_at = CASE WHEN :with_deadline THEN CAST(:deadline_at AS timestamptz) ELSE deadline_at END,
       start_at = CASE WHEN :with_start THEN CAST(:start_at AS timestamptz) ELSE start_at END,
       state = CASE WHEN :with_start AND awaits_start AND coalesce(CAST(:start_at AS timestamptz) <= clock(), true)
                    THEN :ready ELSE state END,
       sort_key = sort_key(coalesce(CAST(:priority AS smallint), priority), priority_boost_per_minute,
                           coalesce(requeued_at, created_at), dependency_boost,
                           CASE WHEN :with_deadline THEN CAST(:deadline_at AS timestamptz) ELSE deadline_at END, clock())
 WHERE id = :task_id
   AND user_id = :user_id
   AND state = ANY (CAST(:sources AS text[]));
