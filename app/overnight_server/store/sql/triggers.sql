-- name: is_over_for_good
-- Whether a graph has completed with nothing left that could be retried. The lane is locked.
SELECT g.status = 'completed' AND g.dead = 0 AND g.cancelled = 0 AS is_over
  FROM graphs g
 WHERE g.id = :dag_id
   AND g.user_id = :user_id;

-- name: add_trigger
-- A trigger whose graph has already ended as required is due immediately. The lane is locked.
INSERT INTO dag_triggers (id, user_id, dag_id, is_lone, condition, graph, created_by, due_at)
SELECT :trigger_id, g.user_id, g.id, NOT EXISTS (SELECT 1 FROM dags WHERE dags.id = g.id), :condition,
       CAST(:graph AS jsonb), :actor,
       CASE WHEN g.finished_at IS NOT NULL AND :condition IN ('finished', g.status) THEN clock() END
  FROM graphs g
 WHERE g.id = :dag_id
   AND g.user_id = :user_id
RETURNING id;

-- name: drop_trigger
UPDATE dag_triggers
   SET dropped_at = clock()
 WHERE id = :trigger_id
   AND user_id = :user_id
   AND fired_at IS NULL
   AND dropped_at IS NULL
RETURNING id;

-- name: make_lone_task_triggers_due
-- Make triggers due that wait for a lone task that has ended as required since the trigger was added. If
-- tasks have joined it since, only events before that count; after that the row in dags does. No lane is
-- locked, so a trigger that another transaction changes is left to the next pass.
WITH ended AS MATERIALIZED (
    SELECT g.id
      FROM dag_triggers g
     WHERE g.is_lone
       AND g.due_at IS NULL
       AND g.dropped_at IS NULL
       AND EXISTS (SELECT 1
                     FROM events e
                     LEFT JOIN dags joined ON joined.id = g.dag_id
                    WHERE e.task_id = g.dag_id
                      AND e.to_state = ANY (CASE g.condition WHEN 'completed' THEN ARRAY['completed']
                                                             WHEN 'failed' THEN ARRAY['dead_lettered']
                                                             ELSE ARRAY['completed', 'dead_lettered', 'cancelled'] END)
                      AND e.at >= g.created_at
                      AND coalesce(e.at < joined.created_at, true))
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dag_triggers t
   SET due_at = clock()
  FROM ended
 WHERE t.id = ended.id;

-- name: due_triggers
-- Due triggers, read without locks; lock_due_trigger checks each again. A refused one waits :gap seconds,
-- one of a disabled user until the user is enabled.
SELECT id, user_id
  FROM dag_triggers g
 WHERE due_at IS NOT NULL
   AND fired_at IS NULL
   AND dropped_at IS NULL
   AND (refused_at IS NULL OR refused_at <= clock() - make_interval(secs => :gap))
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = g.user_id AND u.disabled_at IS NOT NULL)
 ORDER BY due_at
 LIMIT :limit;

-- name: lock_due_trigger
-- Lock a trigger that has not fired; a second caller gets no row.
SELECT graph, created_by
  FROM dag_triggers g
 WHERE id = :trigger_id
   AND due_at IS NOT NULL
   AND fired_at IS NULL
   AND dropped_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = g.user_id AND u.disabled_at IS NOT NULL)
   FOR NO KEY UPDATE;

-- name: mark_trigger_fired
UPDATE dag_triggers
   SET fired_at = clock(), fired_dag_id = :dag_id, refusal = NULL, refused_at = NULL
 WHERE id = :trigger_id;

-- name: mark_trigger_refused
UPDATE dag_triggers
   SET refusal = :reason, refused_at = clock()
 WHERE id = :trigger_id
   AND fired_at IS NULL;

-- name: list_triggers (not prepared)
-- The triggers of a graph or of all graphs of a user, newest first.
SELECT id, dag_id, condition, graph ->> 'title' AS title, jsonb_array_length(graph -> 'tasks') AS tasks, created_by,
       created_at, due_at, refusal, refused_at, fired_at, fired_dag_id, dropped_at
  FROM dag_triggers
 WHERE user_id = :user_id
   AND (CAST(:dag_id AS uuid) IS NULL OR dag_id = CAST(:dag_id AS uuid))
   AND (CAST(:trigger_id AS uuid) IS NULL OR id = CAST(:trigger_id AS uuid))
 ORDER BY created_at DESC, id DESC
 LIMIT :limit;
