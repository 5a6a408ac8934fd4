-- name: expired_claims
-- Claims past their time, read without locks: the settling statement checks each again. A run's
-- agent that still shows signs of life means the run died by itself. Out of time is only a run
-- whose last lease reached that far: one lost earlier has not used its time, however late we look.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       coalesce(t.expires_at >= t.started_at + make_interval(secs => t.reserved_seconds), false) AS out_of_time,
       EXISTS (SELECT 1
                 FROM agents g
                WHERE g.id = t.claimed_by
                  AND g.status <> 'offline'
                  AND g.last_heartbeat_at > clock() - make_interval(secs => :liveness)) AS agent_alive,
       (SELECT jsonb_agg(jsonb_build_object('agent', a.agent, 'outcome', a.outcome) ORDER BY a.epoch)
          FROM attempts a
         WHERE a.task_id = t.id AND a.spent AND a.epoch > t.forgiven_epoch) AS failures
  FROM tasks t
 WHERE t.state IN ('claimed', 'running', 'validating')
   AND t.expires_at <= clock()
 ORDER BY t.id
 LIMIT :limit;

-- name: overdue_runs
-- Runs whose worker beats on although their time is up, or although they were told to stop. Those
-- whose lease has ended too are the reaper's: nobody knows whether they lived that long.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       clock() >= t.started_at + make_interval(secs => t.reserved_seconds) AS out_of_time,
       true AS agent_alive,
       (SELECT jsonb_agg(jsonb_build_object('agent', a.agent, 'outcome', a.outcome) ORDER BY a.epoch)
          FROM attempts a
         WHERE a.task_id = t.id AND a.spent AND a.epoch > t.forgiven_epoch) AS failures
  FROM tasks t
 WHERE t.state IN ('running', 'validating')
   AND t.expires_at > clock()
   AND (t.started_at + make_interval(secs => t.reserved_seconds + :grace) <= clock()
        OR t.cancel_requested_at + make_interval(secs => :grace) <= clock())
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

-- name: take_turn
-- Two beats, one sweep: whoever moves the row first has the turn, the other finds it taken.
INSERT INTO sweeps AS s (name, started_at)
VALUES (:name, clock())
    ON CONFLICT (name) DO UPDATE
   SET started_at = clock()
 WHERE s.started_at <= clock() - make_interval(secs => :gap)
RETURNING s.name;

-- name: end_turn
UPDATE sweeps SET finished_at = clock(), touched = :touched WHERE name = :name;

-- name: retire_agents
-- Workers that fell silent without a word; their pool may be able to do other things now.
UPDATE agents
   SET status = 'offline'
 WHERE status <> 'offline'
   AND last_heartbeat_at <= clock() - make_interval(secs => :silence)
RETURNING id, pool;
