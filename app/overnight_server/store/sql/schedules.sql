-- Schedules: what is due, and what became of each fire time. The lane of the user is locked before the schedule.

-- name: add_schedule
INSERT INTO schedules (id, user_id, name, said, cron, every_seconds, anchor_at, once_at, zone, starts_at, ends_at,
                       jitter_seconds, overlap, catch_up, catch_up_limit, task, graph, created_by, paused_at, next_fire_at,
                       next_due_at)
SELECT :schedule_id, :user_id, :name, :said, CAST(:cron AS text), CAST(:every_seconds AS int),
       CAST(:anchor_at AS timestamptz), CAST(:once_at AS timestamptz), :zone, CAST(:starts_at AS timestamptz),
       CAST(:ends_at AS timestamptz), :jitter_seconds, :overlap, :catch_up, :catch_up_limit, CAST(:task AS jsonb),
       CAST(:graph AS jsonb), :actor, CASE WHEN :paused THEN clock() END, CAST(:next_fire_at AS timestamptz),
       CAST(:next_due_at AS timestamptz);

-- name: edit_schedule
-- The schedule is locked. What a person changes may be what caused an error, so it is tried at once.
UPDATE schedules
   SET name = :name, said = :said, cron = CAST(:cron AS text), every_seconds = CAST(:every_seconds AS int),
       anchor_at = CAST(:anchor_at AS timestamptz), once_at = CAST(:once_at AS timestamptz), zone = :zone,
       starts_at = CAST(:starts_at AS timestamptz), ends_at = CAST(:ends_at AS timestamptz),
       jitter_seconds = :jitter_seconds, overlap = :overlap, catch_up = :catch_up, catch_up_limit = :catch_up_limit,
       task = CAST(:task AS jsonb), graph = CAST(:graph AS jsonb), next_fire_at = CAST(:next_fire_at AS timestamptz),
       next_due_at = CAST(:next_due_at AS timestamptz), failed_at = NULL, error = NULL, edition = edition + 1
 WHERE id = :schedule_id
   AND user_id = :user_id;

-- name: pause_schedule
UPDATE schedules
   SET paused_at = CASE WHEN :paused THEN clock() END, edition = edition + 1
 WHERE id = :schedule_id
   AND user_id = :user_id
   AND deleted_at IS NULL
   AND (paused_at IS NULL) = :paused;

-- name: delete_schedule
-- Fire times that wait are cancelled.
WITH deleted AS (
    UPDATE schedules
       SET deleted_at = clock(), edition = edition + 1
     WHERE id = :schedule_id
       AND user_id = :user_id
       AND deleted_at IS NULL
    RETURNING id
)
UPDATE schedule_fires f
   SET status = 'cancelled', reason = 'the schedule was deleted', decided_at = clock()
  FROM deleted
 WHERE f.schedule_id = deleted.id
   AND f.status = 'waiting';

-- name: count_schedules
-- The lane is locked.
SELECT count(*) AS total, count(*) FILTER (WHERE name = :name) AS of_name
  FROM schedules
 WHERE user_id = :user_id
   AND deleted_at IS NULL
   AND id <> :schedule_id;

-- name: due_schedules
-- Schedules with a fire time that is due, read without locks; lock_schedule reads each again. One that failed waits
-- :gap seconds, one of a disabled user until the user is enabled.
SELECT s.id, s.user_id
  FROM schedules s
 WHERE s.next_due_at <= clock()
   AND s.next_due_at IS NOT NULL
   AND s.deleted_at IS NULL
   AND (s.failed_at IS NULL OR s.failed_at <= clock() - make_interval(secs => :gap))
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = s.user_id AND u.disabled_at IS NOT NULL)
 ORDER BY s.next_due_at
 LIMIT :limit;

-- name: schedules_with_turn
-- Schedules with a fire time that waits, and no run that has not ended; read without locks. The subqueries keep the
-- planner from reading all open tasks: each row looks up its own. Those that a limit delayed come last, and of them the one
-- whose last try is the oldest, so that each gets its turn. A fire time that waits has a reason only after a try.
SELECT s.id, s.user_id
  FROM (SELECT schedule_id, bool_or(kind = 'backfill') AS has_backfill,
               max(decided_at) FILTER (WHERE reason IS NOT NULL) AS tried_at
          FROM schedule_fires
         WHERE status = 'waiting'
         GROUP BY schedule_id) f
 CROSS JOIN LATERAL (SELECT * FROM schedules WHERE id = f.schedule_id OFFSET 0) s
 WHERE s.deleted_at IS NULL
   AND (s.paused_at IS NULL OR f.has_backfill)
   AND (s.failed_at IS NULL OR s.failed_at <= clock() - make_interval(secs => :gap))
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = s.user_id AND u.disabled_at IS NOT NULL)
   AND NOT EXISTS (SELECT 1
                     FROM schedule_fires o
                    WHERE o.schedule_id = s.id AND o.is_open
                      AND (SELECT bool_or(g.finished_at IS NULL) FROM graphs g WHERE g.id = o.dag_id))
 ORDER BY f.tried_at NULLS FIRST, s.id
 LIMIT :limit;

-- name: lock_schedule
-- Lock a schedule until the transaction ends. The lane is locked too, so the user cannot be disabled meanwhile.
SELECT s.*, clock() AS now
  FROM schedules s
 WHERE s.id = :schedule_id
   AND s.user_id = :user_id
   AND s.deleted_at IS NULL
   FOR NO KEY UPDATE;

-- name: is_user_disabled
SELECT disabled_at IS NOT NULL AS is_disabled FROM users WHERE id = :user_id;

-- name: record_fires
-- A fire time that has a row already keeps it.
INSERT INTO schedule_fires (schedule_id, fire_at, user_id, kind, status, reason)
SELECT :schedule_id, fire_at, :user_id, :kind, :status, CAST(:reason AS text)
  FROM unnest(CAST(:fire_times AS timestamptz[])) fire_at
    ON CONFLICT (schedule_id, fire_at) DO NOTHING
RETURNING fire_at;

-- name: record_manual_fire
INSERT INTO schedule_fires (schedule_id, fire_at, user_id, kind, request_key)
VALUES (:schedule_id, :fire_at, :user_id, 'manual', CAST(:key AS text));

-- name: fire_by_key
SELECT fire_at FROM schedule_fires WHERE schedule_id = :schedule_id AND request_key = :key;

-- name: repeat_fires
-- Let fire times wait that have no row, or were not submitted.
INSERT INTO schedule_fires AS f (schedule_id, fire_at, user_id, kind)
SELECT :schedule_id, fire_at, :user_id, 'backfill'
  FROM unnest(CAST(:fire_times AS timestamptz[])) fire_at
    ON CONFLICT (schedule_id, fire_at) DO UPDATE
   SET status = 'waiting', kind = 'backfill', reason = NULL, decided_at = clock()
 WHERE f.status NOT IN ('queued', 'waiting')
RETURNING fire_at;

-- name: settle_fire
-- Only a fire time that waits gets an outcome; whoever has locked the schedule decides.
UPDATE schedule_fires
   SET status = :status, reason = CAST(:reason AS text), task_id = CAST(:task_id AS uuid), dag_id = CAST(:dag_id AS uuid),
       is_open = :status = 'queued', decided_at = clock()
 WHERE schedule_id = :schedule_id
   AND fire_at = :fire_at
   AND status = 'waiting';

-- name: delay_fire
-- It is tried again after the others that wait.
UPDATE schedule_fires
   SET reason = :reason, decided_at = clock()
 WHERE schedule_id = :schedule_id
   AND fire_at = :fire_at
   AND status = 'waiting';

-- name: close_ended_fires
-- What was submitted and has ended does not count as the run before any more.
UPDATE schedule_fires f
   SET is_open = false
 WHERE f.schedule_id = :schedule_id
   AND f.is_open
   AND (SELECT bool_or(g.finished_at IS NULL) FROM graphs g WHERE g.id = f.dag_id) IS NOT TRUE;

-- name: open_runs
-- What the schedule has submitted and has not ended: the tasks that a cancel stops.
SELECT t.id
  FROM schedule_fires f
 CROSS JOIN LATERAL (SELECT id, state FROM tasks WHERE dag_id = f.dag_id OFFSET 0) t
 WHERE f.schedule_id = :schedule_id
   AND f.is_open
   AND (is_waiting(t.state) OR is_active(t.state))
 ORDER BY t.id DESC;

-- name: is_run_open
SELECT EXISTS (SELECT 1 FROM schedule_fires WHERE schedule_id = :schedule_id AND is_open) AS is_open;

-- name: waiting_fires
SELECT fire_at, kind
  FROM schedule_fires
 WHERE schedule_id = :schedule_id
   AND status = 'waiting'
 ORDER BY fire_at
 LIMIT :limit;

-- name: advance_schedule
UPDATE schedules
   SET next_fire_at = CAST(:next_fire_at AS timestamptz), next_due_at = CAST(:next_due_at AS timestamptz),
       failed_at = NULL, error = NULL
 WHERE id = :schedule_id;

-- name: mark_schedule_failed
UPDATE schedules SET failed_at = clock(), error = :error WHERE id = :schedule_id AND deleted_at IS NULL;

-- name: clear_schedule_error
UPDATE schedules SET failed_at = NULL, error = NULL WHERE id = :schedule_id AND error IS NOT NULL;

-- name: view_schedules (not prepared)
-- A user's schedules by name, with the latest fire time that has an outcome.
SELECT s.*, clock() AS now, l.fire_at AS last_fire_at, l.kind AS last_kind, l.status AS last_status, l.reason AS last_reason,
       l.task_id AS last_task_id, l.dag_id AS last_dag_id, l.decided_at AS last_decided_at,
       coalesce(l.is_open AND (SELECT bool_or(g.finished_at IS NULL) FROM graphs g WHERE g.id = l.dag_id), false)
       AS last_is_running,
       (SELECT count(*) FROM schedule_fires w WHERE w.schedule_id = s.id AND w.status = 'waiting') AS waiting
  FROM schedules s
  LEFT JOIN LATERAL (SELECT * FROM schedule_fires f
                      WHERE f.schedule_id = s.id AND f.status <> 'waiting'
                      ORDER BY f.fire_at DESC LIMIT 1) l ON true
 WHERE s.user_id = :user_id
   AND s.deleted_at IS NULL
   AND (CAST(:schedule_id AS uuid) IS NULL OR s.id = CAST(:schedule_id AS uuid))
   AND (CAST(:name AS text) IS NULL OR s.name = CAST(:name AS text))
   AND (CAST(:after AS text) IS NULL OR s.name > CAST(:after AS text))
 ORDER BY s.name
 LIMIT :limit;

-- name: view_schedule_fires (not prepared)
-- The fire times of a schedule, the latest first.
SELECT f.fire_at, f.kind, f.status, f.reason, f.task_id, f.dag_id, f.decided_at,
       coalesce(f.is_open AND (SELECT bool_or(g.finished_at IS NULL) FROM graphs g WHERE g.id = f.dag_id), false)
       AS is_running
  FROM schedule_fires f
 WHERE f.user_id = :user_id
   AND f.schedule_id = :schedule_id
   AND (CAST(:status AS text) IS NULL OR f.status = CAST(:status AS text))
   AND (CAST(:fired_until AS timestamptz) IS NULL OR f.fire_at < CAST(:fired_until AS timestamptz))
   AND (CAST(:fire_at AS timestamptz) IS NULL OR f.fire_at = CAST(:fire_at AS timestamptz))
 ORDER BY f.fire_at DESC
 LIMIT :limit;
