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
-- The jobs of external schedulers and the user's schedules. The latest first, with the state of what each submitted
-- last; a schedule that has not fired yet comes at the end.
SELECT j.name, j.last_status, j.last_run_at, j.task_id, NULL::uuid AS dag_id, NULL::timestamptz AS next_run_at,
       coalesce(is_waiting(t.state) OR is_active(t.state), false) AS is_running
  FROM source_jobs j
  LEFT JOIN tasks t ON t.id = j.task_id
 WHERE j.user_id = :user_id
UNION ALL
SELECT s.name, l.status, l.fire_at, l.task_id, l.dag_id, CASE WHEN s.paused_at IS NULL THEN s.next_fire_at END,
       coalesce(l.is_open AND (SELECT bool_or(g.finished_at IS NULL) FROM graphs g WHERE g.id = l.dag_id), false)
  FROM schedules s
  LEFT JOIN LATERAL (SELECT * FROM schedule_fires f
                      WHERE f.schedule_id = s.id AND f.status <> 'waiting'
                      ORDER BY f.fire_at DESC LIMIT 1) l ON true
 WHERE s.user_id = :user_id
   AND s.deleted_at IS NULL
 ORDER BY 3 DESC NULLS LAST, 1
 LIMIT :limit;
