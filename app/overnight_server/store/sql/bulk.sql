-- Bulk operations: one action on all tasks that a filter of the task list selects. A chunk reads and changes
-- a limited number of rows, and the cursor is where the next chunk starts.

-- name: count_selected_tasks (not prepared)
-- How many tasks are selected, and to how many of them the action applies.
SELECT count(*) AS total,
       count(*) FILTER (WHERE c.state = ANY (CAST(:applies_to AS text[]))
                          AND (CAST(:priority AS smallint) IS NULL OR c.priority <> CAST(:priority AS smallint)))
       AS applies
  FROM selected_tasks(:user_id, CAST(:states AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                      CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                      CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                      CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                      CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                      CAST(:attempts_from AS int), CAST(:of_wait AS text),
                      CAST(:of_fingerprint AS text)) c;

-- name: count_some_selected_tasks (not prepared)
-- The same, as far as `most` of each: a count of all tasks of a user who has very many takes a second. `changeable`
-- are the states in which the action applies, of those that are selected. With `only_open` they are those of
-- open tasks, which an index finds.
SELECT (SELECT count(*)
          FROM (SELECT 1
                  FROM selected_tasks(:user_id, CAST(:states AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                              CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                              CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                              CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                              CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                              CAST(:attempts_from AS int), CAST(:of_wait AS text),
                              CAST(:of_fingerprint AS text))
                 LIMIT :most) c) AS total,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM selected_tasks(:user_id, CAST(:changeable AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                              CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                              CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                              CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                              CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                              CAST(:attempts_from AS int), CAST(:of_wait AS text),
                              CAST(:of_fingerprint AS text)) c
                 WHERE (NOT CAST(:only_open AS boolean) OR c.finished_at IS NULL)
                   AND (CAST(:priority AS smallint) IS NULL OR c.priority <> CAST(:priority AS smallint))
                 LIMIT :most) c) AS applies;

-- name: sample_selected_tasks (not prepared)
SELECT c.id
  FROM selected_tasks(:user_id, CAST(:states AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                      CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                      CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                      CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                      CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                      CAST(:attempts_from AS int), CAST(:of_wait AS text),
                      CAST(:of_fingerprint AS text)) c
 WHERE c.state = ANY (CAST(:applies_to AS text[]))
   AND (CAST(:priority AS smallint) IS NULL OR c.priority <> CAST(:priority AS smallint))
 ORDER BY c.id DESC
 LIMIT :limit;

-- name: bulk_by_idempotency_key
SELECT id FROM bulk_operations WHERE user_id = :user_id AND idempotency_key = :key;

-- name: start_bulk
-- The lane is locked: no task is inserted between reading the newest task and the commit.
INSERT INTO bulk_operations (id, user_id, action, filter, priority, created_by, key_id, idempotency_key, total, ceiling,
                             last_event)
SELECT :bulk_id, :user_id, :action, CAST(:filter AS jsonb), CAST(:priority AS smallint), :actor, :key_id,
       CAST(:key AS text), :total,
       (SELECT id FROM tasks WHERE user_id = :user_id ORDER BY id DESC LIMIT 1),
       coalesce((SELECT id FROM events WHERE user_id = :user_id ORDER BY id DESC LIMIT 1), 0);

-- name: running_bulks
-- The oldest running operation of each user, the longest idle first; without disabled users.
SELECT id, user_id
  FROM (SELECT DISTINCT ON (user_id) id, user_id, worked_at
          FROM bulk_operations
         WHERE state = 'running'
         ORDER BY user_id, id) oldest
 WHERE NOT EXISTS (SELECT 1 FROM users u WHERE u.id = oldest.user_id AND u.disabled_at IS NOT NULL)
 ORDER BY worked_at NULLS FIRST, id
 LIMIT :limit;

-- name: lock_bulk
-- Lock a running operation until the transaction ends. The lane is locked too, so the user cannot be
-- disabled meanwhile.
SELECT action, filter, priority, created_by, key_id, cursor, ceiling, last_event, refused, created_at
  FROM bulk_operations b
 WHERE id = :bulk_id
   AND state = 'running'
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = b.user_id AND u.disabled_at IS NOT NULL)
   FOR NO KEY UPDATE;

-- name: bulk_chunk_newest_first (not prepared)
-- The next chunk: the tasks to change, the new cursor, and how many tasks were skipped. A NULL cursor means
-- that nothing is left.
WITH reach AS MATERIALIZED (
    SELECT id
      FROM tasks
     WHERE user_id = :user_id
       AND id <= CAST(:ceiling AS uuid)
       AND (CAST(:cursor AS uuid) IS NULL OR id < CAST(:cursor AS uuid))
     ORDER BY id DESC
    OFFSET :look - 1
     LIMIT 1
), found AS MATERIALIZED (
    SELECT c.id, c.state = ANY (CAST(:applies_to AS text[]))
                 AND (CAST(:priority AS smallint) IS NULL OR c.priority <> CAST(:priority AS smallint)) AS applies
      FROM selected_tasks(:user_id, CAST(:states AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                          CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                          CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                          CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                          CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                          CAST(:attempts_from AS int), CAST(:of_wait AS text),
                          CAST(:of_fingerprint AS text)) c
     WHERE c.id <= CAST(:ceiling AS uuid)
       AND (CAST(:cursor AS uuid) IS NULL OR c.id < CAST(:cursor AS uuid))
       AND c.id >= coalesce((SELECT id FROM reach), CAST('00000000-0000-0000-0000-000000000000' AS uuid))
       -- Tasks submitted later have a later first event, whatever their id is.
       AND NOT EXISTS (SELECT 1 FROM events e
                        WHERE e.task_id = c.id AND e.from_state IS NULL AND e.id > :last_event)
), due AS MATERIALIZED (
    SELECT id FROM found WHERE applies ORDER BY id DESC LIMIT :limit
), last AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM due) < :limit THEN (SELECT id FROM reach)
                ELSE (SELECT id FROM due ORDER BY id LIMIT 1) END AS id
)
SELECT ARRAY(SELECT id FROM due ORDER BY id DESC) AS tasks,
       last.id AS cursor,
       (SELECT count(*) FROM found f WHERE NOT f.applies AND (last.id IS NULL OR NOT f.id < last.id)) AS passed_over
  FROM last;

-- name: bulk_chunk_oldest_first (not prepared)
-- The same from the oldest task on, for retries. Tasks that changed since the operation began are left
-- alone; a task that was revived with another could otherwise be retried twice.
WITH reach AS MATERIALIZED (
    SELECT id
      FROM tasks
     WHERE user_id = :user_id
       AND id <= CAST(:ceiling AS uuid)
       AND (CAST(:cursor AS uuid) IS NULL OR id > CAST(:cursor AS uuid))
     ORDER BY id
    OFFSET :look - 1
     LIMIT 1
), found AS MATERIALIZED (
    SELECT c.id, c.state = ANY (CAST(:applies_to AS text[]))
                 AND (CAST(:priority AS smallint) IS NULL OR c.priority <> CAST(:priority AS smallint)) AS applies
      FROM selected_tasks(:user_id, CAST(:states AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                          CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                          CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                          CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                          CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                          CAST(:attempts_from AS int), CAST(:of_wait AS text),
                          CAST(:of_fingerprint AS text)) c
     WHERE c.id <= coalesce((SELECT id FROM reach), CAST(:ceiling AS uuid))
       AND c.updated_at <= CAST(:began_at AS timestamptz)
       AND (CAST(:cursor AS uuid) IS NULL OR c.id > CAST(:cursor AS uuid))
       -- Tasks submitted later have a later first event, whatever their id is.
       AND NOT EXISTS (SELECT 1 FROM events e
                        WHERE e.task_id = c.id AND e.from_state IS NULL AND e.id > :last_event)
), due AS MATERIALIZED (
    SELECT id FROM found WHERE applies ORDER BY id LIMIT :limit
), last AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM due) < :limit THEN (SELECT id FROM reach)
                ELSE (SELECT id FROM due ORDER BY id DESC LIMIT 1) END AS id
)
SELECT ARRAY(SELECT id FROM due ORDER BY id) AS tasks,
       last.id AS cursor,
       (SELECT count(*) FROM found f WHERE NOT f.applies AND (last.id IS NULL OR NOT f.id > last.id)) AS passed_over
  FROM last;

-- name: advance_bulk
UPDATE bulk_operations
   SET cursor = coalesce(CAST(:cursor AS uuid), cursor),
       done = done + :done,
       changed = changed + :changed,
       skipped = skipped + :skipped,
       refused = CAST(:refused AS jsonb),
       worked_at = clock()
 WHERE id = :bulk_id;

-- name: end_bulk
-- Tasks that were counted at the start and no longer matched count as skipped.
UPDATE bulk_operations
   SET state = 'completed',
       finished_at = clock(),
       skipped = skipped + greatest(total - done, 0),
       done = greatest(total, done),
       total = greatest(total, done)
 WHERE id = :bulk_id
   AND state = 'running'
RETURNING changed, skipped, refused;

-- name: cancel_bulk
UPDATE bulk_operations
   SET state = 'cancelled', finished_at = clock(), cancelled_by = :actor
 WHERE id = :bulk_id
   AND user_id = :user_id
   AND state = 'running'
RETURNING id;

-- name: view_bulks (not prepared)
-- A user's bulk operations or one of them, newest first, a page at a time.
SELECT id, action, filter, priority, state, greatest(total, done) AS total, done, changed, skipped, refused, created_by,
       created_at, finished_at
  FROM bulk_operations
 WHERE user_id = :user_id
   AND (CAST(:bulk_id AS uuid) IS NULL OR id = CAST(:bulk_id AS uuid))
   AND (CAST(:before AS uuid) IS NULL OR id < CAST(:before AS uuid))
 ORDER BY id DESC
 LIMIT :limit;
