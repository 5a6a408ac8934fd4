-- The inbox: tasks that programs inserted in their own transactions. Rows of a user are processed in order
-- of their ids with the user's lane locked; a row that must wait delays those after it.

-- name: inbox_heads
-- The users whose oldest row is due: one index step per user, however many rows wait. Rows of disabled users
-- wait.
WITH RECURSIVE heads AS (
    (SELECT user_id, id, due_at FROM inbox WHERE outcome IS NULL ORDER BY user_id, id LIMIT 1)
    UNION ALL
    SELECT following.user_id, following.id, following.due_at
      FROM heads
     CROSS JOIN LATERAL (SELECT i.user_id, i.id, i.due_at FROM inbox i
                          WHERE i.outcome IS NULL AND i.user_id > heads.user_id
                          ORDER BY i.user_id, i.id LIMIT 1) following
)
SELECT user_id
  FROM heads
 WHERE due_at <= clock()
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = heads.user_id AND u.disabled_at IS NOT NULL)
 ORDER BY due_at, id
 LIMIT :limit;

-- name: read_inbox
-- As text, so that a row that cannot be parsed does not fail the others.
SELECT id, key_id, CAST(task AS text) AS task
  FROM inbox
 WHERE user_id = :user_id AND outcome IS NULL
   AND NOT EXISTS (SELECT 1 FROM users WHERE users.id = :user_id AND users.disabled_at IS NOT NULL)
 ORDER BY id
 LIMIT :limit
   FOR NO KEY UPDATE;

-- name: settle_inbox
-- Refused rows have no tasks; unnest fills the shorter array with NULL.
UPDATE inbox
   SET outcome = :outcome,
       settled_at = clock(),
       settled_by = current_actor(),
       task_id = settled.task_id,
       error = CAST(:error AS text)
  FROM unnest(CAST(:rows AS bigint[]), CAST(:tasks AS uuid[])) AS settled(row_id, task_id)
 WHERE inbox.id = settled.row_id;

-- name: delay_inbox
UPDATE inbox
   SET due_at = clock() + make_interval(secs => :seconds),
       held_by = :reason
 WHERE id = :row_id;

-- name: retry_inbox
UPDATE inbox
   SET outcome = NULL, settled_at = NULL, settled_by = NULL, error = NULL, due_at = clock()
 WHERE id = :row_id AND outcome = 'refused'
RETURNING id;

-- name: drop_inbox
UPDATE inbox
   SET outcome = 'dropped', settled_at = clock(), settled_by = :actor
 WHERE id = :row_id AND (outcome IS NULL OR outcome = 'refused')
RETURNING id;

-- name: view_inbox (not prepared)
-- Waiting and refused rows, oldest first; with :resolved all rows.
SELECT i.id, u.name AS "user", i.key_id, i.task ->> 'title' AS title, CAST(i.task AS text) AS task, i.arrived_at, i.due_at,
       i.held_by, i.outcome, i.settled_at, i.settled_by, i.task_id, i.error
  FROM inbox i
  JOIN users u ON u.id = i.user_id
 WHERE CAST(:resolved AS boolean) OR i.outcome IS NULL OR i.outcome = 'refused'
 ORDER BY i.id
 LIMIT :limit;
