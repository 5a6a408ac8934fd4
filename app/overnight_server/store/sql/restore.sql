-- After the database was restored to an earlier instant.

-- name: other_connections
-- The logins of other processes that are connected to the database. Only these are shown to every role.
SELECT DISTINCT usename::text AS name
  FROM pg_stat_activity
 WHERE datname = current_database()
   AND pid <> pg_backend_pid()
   AND usename IS NOT NULL
 ORDER BY 1;

-- name: state_of_restore
-- About when the restored state was left: sweeps run every few seconds.
SELECT max(greatest(started_at, finished_at)) AS restored_to, clock() AS now,
       (SELECT count(*) FROM tasks WHERE finished_at IS NULL AND token IS NULL) AS waiting
  FROM sweeps;

-- name: open_claims
-- Every claim that was open, oldest first.
SELECT t.id, t.epoch, t.token, t.state, t.type, t.title, u.name AS user, t.pool, t.claimed_by, t.started_at, a.external_id
  FROM tasks t
  JOIN users u ON u.id = t.user_id
  LEFT JOIN attempts a ON a.task_id = t.id AND a.epoch = t.epoch
 WHERE t.state IN ('claimed', 'running', 'validating')
   AND t.id > :after_id
 ORDER BY t.id
 LIMIT :limit;

-- name: skip_epochs
-- Let later claims have numbers that no claim had before the restore. Completed tasks are never claimed again. Returns the
-- last id of the batch; no row after the last task.
WITH batch AS MATERIALIZED (
    SELECT id FROM tasks WHERE id > :after_id AND state <> 'completed' AND token IS NULL ORDER BY id LIMIT :limit
), skipped AS (
    UPDATE tasks t
       SET epoch = t.epoch + :number, skipped_epochs = t.skipped_epochs + :number
      FROM batch
     WHERE t.id = batch.id
    RETURNING t.id
)
SELECT (SELECT id FROM batch ORDER BY id DESC LIMIT 1) AS last_id, count(*) AS tasks FROM skipped;

-- name: skip_event_ids
SELECT skip_event_ids(:number);

-- name: schedules_with_past_fires
-- Schedules with fire times that are due, or wait: what they submit may have run before the restore.
SELECT s.id, s.user_id, u.name AS user, s.name
  FROM schedules s
  JOIN users u ON u.id = s.user_id
 WHERE s.deleted_at IS NULL
   AND s.id > :after_id
   AND (s.paused_at IS NULL AND s.next_due_at <= clock()
        OR EXISTS (SELECT 1 FROM schedule_fires f WHERE f.schedule_id = s.id AND f.status = 'waiting'))
 ORDER BY s.id
 LIMIT :limit;

-- name: triggers_that_may_have_fired
-- Triggers that are due: their graphs may have been submitted before the restore.
SELECT t.id, u.name AS user, t.dag_id, t.due_at
  FROM dag_triggers t
  JOIN users u ON u.id = t.user_id
 WHERE t.due_at IS NOT NULL
   AND t.fired_at IS NULL
   AND t.dropped_at IS NULL
 ORDER BY t.due_at, t.id;
