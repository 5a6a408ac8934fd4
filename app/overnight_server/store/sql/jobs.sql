-- Jobs of external schedulers: what became of the latest submit of each.

-- name: record_source_job
-- Existing jobs are always updated; new ones only up to :limit, because refused submits insert rows too.
INSERT INTO source_jobs AS j (user_id, name, last_status, last_run_at, task_id)
SELECT :user_id, :name, :status, clock(), CAST(:task_id AS uuid)
 WHERE EXISTS (SELECT 1 FROM source_jobs WHERE user_id = :user_id AND name = :name)
    OR (SELECT count(*) FROM source_jobs WHERE user_id = :user_id) < :limit
    ON CONFLICT (user_id, name) DO UPDATE
   SET last_status = excluded.last_status, last_run_at = excluded.last_run_at, task_id = excluded.task_id
 WHERE j.last_run_at <= excluded.last_run_at;

-- name: view_jobs
-- The latest first, with the state of the task each submitted last.
SELECT j.name, j.last_status, j.last_run_at, j.task_id, t.state
  FROM source_jobs j
  LEFT JOIN tasks t ON t.id = j.task_id
 WHERE j.user_id = :user_id
 ORDER BY j.last_run_at DESC, j.name
 LIMIT :limit;
