-- name: expired_claims
-- Expired claims, read without locks; `settle` checks each again. `out_of_time` only if the last lease
-- reached the timeout: a run that was lost earlier did not use its time, however late the reaper looks.
-- `died` (the run itself failed) only if its pull agent is still alive; workers report dead children
-- themselves, and a silent worker may be the deployment's fault.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       coalesce(t.expires_at >= t.started_at + make_interval(secs => t.reserved_seconds), false) AS out_of_time,
       EXISTS (SELECT 1
                 FROM agents g
                WHERE g.id = t.claimed_by
                  AND g.kind = 'pull'
                  -- An agent that registered again since then is another process.
                  AND g.joined_at <= t.started_at
                  AND g.status <> 'offline'
                  AND g.last_heartbeat_at > clock() - make_interval(secs => g.stale_after_seconds)) AS died,
       false AS taken_away,
       spent_runs(t.id, t.failures_reset_epoch) AS failures
  FROM tasks t
 WHERE t.state IN ('claimed', 'running', 'validating')
   AND t.expires_at <= clock()
 ORDER BY t.id
 LIMIT :limit;

-- name: overdue_runs
-- Runs whose worker still sends heartbeats although the timeout or a stop request is long past. Runs whose
-- lease has ended are left to the reaper, because it is not known whether they lived that long.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       clock() >= t.started_at + make_interval(secs => t.reserved_seconds) AS out_of_time,
       true AS died,
       false AS taken_away,
       spent_runs(t.id, t.failures_reset_epoch) AS failures
  FROM tasks t
 WHERE t.state IN ('running', 'validating')
   AND t.expires_at > clock()
   AND (t.started_at + make_interval(secs => t.reserved_seconds + :grace) <= clock()
        OR t.cancel_requested_at + make_interval(secs => :grace) <= clock())
 ORDER BY t.id
 LIMIT :limit;

-- name: runs_of_dead_workers
-- The runs of a worker process that died, if it still holds them; `settle` checks each again. A timeout
-- counts if it was reached before the process died. A run that outlived its lease was frozen or
-- disconnected, and was ended for that.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       coalesce(least(t.expires_at, clock()) >= t.started_at + make_interval(secs => t.reserved_seconds), false) AS out_of_time,
       CAST(:handling AS boolean) AND t.expires_at > clock() AS died,
       CAST(:taken_away AS boolean) AS taken_away,
       spent_runs(t.id, t.failures_reset_epoch) AS failures
  FROM tasks t
 WHERE t.state IN ('running', 'validating')
   AND t.id = ANY (CAST(:tasks AS uuid[]))
   AND t.token = ANY (CAST(:tokens AS uuid[]))
 ORDER BY t.id
 LIMIT :limit;

-- name: due_retries
SELECT id, user_id
  FROM tasks
 WHERE state = 'retrying'
   AND retry_at <= clock()
 ORDER BY retry_at
 LIMIT :limit;

-- name: promote
UPDATE tasks
   SET state = :target, retry_at = NULL
 WHERE id = ANY (CAST(:tasks AS uuid[]))
   AND state = ANY (CAST(:sources AS text[]))
   AND retry_at <= clock();

-- name: passed_deadlines
-- Tasks that still wait after their deadline, read without locks; dead_letter_passed checks each again.
SELECT id, user_id
  FROM tasks
 WHERE state IN ('created', 'pending', 'ready', 'retrying')
   AND deadline_at <= clock()
 ORDER BY deadline_at, id
 LIMIT :limit;

-- name: dead_letter_passed
-- These tasks do not run, so no attempt is spent and nothing is billed.
UPDATE tasks t
   SET state = :target,
       retry_at = NULL,
       finished_at = clock(),
       failure_reason = 'deadline_exceeded',
       error = 'not started by its deadline'
 WHERE t.id = ANY (CAST(:tasks AS uuid[]))
   AND t.state = ANY (CAST(:sources AS text[]))
   AND t.deadline_at <= clock()
RETURNING t.id;

-- name: near_deadlines (not prepared)
-- Tasks whose deadline is near enough to change their order, a page at a time.
SELECT id, user_id, deadline_at
  FROM tasks
 WHERE state IN ('created', 'pending', 'ready', 'retrying')
   AND deadline_at > clock()
   AND deadline_at < clock() + make_interval(secs => :horizon)
   AND (CAST(:after_at AS timestamptz) IS NULL
        OR (deadline_at, id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid)))
 ORDER BY deadline_at, id
 LIMIT :limit;

-- name: raise_deadline_priority
-- Rows are written only if the change is large enough to matter.
UPDATE tasks t
   SET sort_key = now.key
  FROM tasks o
 CROSS JOIN LATERAL (
    SELECT sort_key(o.priority, o.priority_boost_per_minute, o.created_at, o.dependency_boost,
                    o.deadline_at, clock()) AS key) now
 WHERE o.id = ANY (CAST(:tasks AS uuid[]))
   AND t.id = o.id
   AND t.state IN ('created', 'pending', 'ready', 'retrying')
   AND abs(t.sort_key - now.key) >= :step;

-- name: begin_sweep
-- Of several beat processes the first to update the row runs the sweep; the others get no row.
INSERT INTO sweeps AS s (name, started_at)
VALUES (:name, clock())
    ON CONFLICT (name) DO UPDATE
   SET started_at = clock()
 WHERE s.started_at <= clock() - make_interval(secs => :gap)
RETURNING s.name;

-- name: finish_sweep
UPDATE sweeps SET finished_at = clock(), touched = :touched WHERE name = :name;

-- name: retire_agents
-- Mark workers offline that sent no heartbeat for too long; their pools may accept other tasks now.
UPDATE agents
   SET status = 'offline'
 WHERE status <> 'offline'
   AND last_heartbeat_at <= clock() - make_interval(secs => greatest(stale_after_seconds, :silence))
RETURNING id, pool;
