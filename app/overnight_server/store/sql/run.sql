-- name: start
-- Start claimed tasks. A message that is late, repeated or forged matches no row.
WITH message AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:claims AS jsonb)) AS m(task_id uuid, epoch int, token uuid)
), held AS MATERIALIZED (
    SELECT t.id
      FROM (SELECT * FROM message ORDER BY task_id) m
     -- OFFSET 0: each row is found by its key. Only rows of claims are locked: a start holds no lane, so it
     -- must not wait for, or delay, a transaction that claims a ready task.
     CROSS JOIN LATERAL (
        SELECT id
          FROM tasks
         WHERE id = m.task_id
           AND epoch = m.epoch
           AND token = m.token
           AND state = ANY (CAST(:sources AS text[]))
           AND expires_at > clock()
        OFFSET 0 FOR NO KEY UPDATE) t
), started AS (
    UPDATE tasks t
       SET state = :target,
           started_at = clock(),
           claimed_by = :holder,
           expires_at = clock() + make_interval(secs => :lease)
      FROM held
     WHERE t.id = held.id
    RETURNING t.*
), updated AS (
    UPDATE attempts a
       SET started_at = clock(), agent = :holder
      FROM started s
     WHERE a.task_id = s.id AND a.epoch = s.epoch
)
SELECT s.id, s.user_id, s.dag_id, s.type, s.title, s.payload, s.spec, s.attempts, s.max_attempts,
       CAST(s.retry AS text) AS retry, s.bundle, s.reserved_seconds AS granted_seconds,
       (s.timeout_seconds IS NULL OR s.reserved_seconds < s.timeout_seconds) AS plan_limited,
       s.max_cost_usd AS ceiling_usd, s.cost_usd AS spent_usd,
       (s.dag_id <> s.id OR s.has_dag_row OR s.context_refs IS NOT NULL) AS is_linked,
       s.execution, CASE WHEN s.attempts > 0 THEN spent_runs(s.id, s.failures_reset_epoch) END AS failures
  FROM started s;

-- name: begin_validation
-- The run of a claim has returned, and its output is validated. Repeating it changes nothing; a holder that lost the
-- claim matches no row.
UPDATE tasks
   SET state = :target
 WHERE (id, epoch, token) = (:task_id, :epoch, :token)
   AND (state = ANY (CAST(:sources AS text[])) OR state = :target)
RETURNING id;

-- name: latest_rejection
-- Why the latest rejected output of a task was rejected, and the beginning of that output.
SELECT epoch AS attempt, validator, coalesce(error, '') AS message, left(rejected -> 'output' #>> '{}', :characters) AS output
  FROM attempts
 WHERE task_id = :task_id
   AND error_class = :error_class
 ORDER BY epoch DESC
 LIMIT 1;

-- name: heartbeat
-- Extend the lease, store progress, and return whether the run may continue. Changes no indexed column.
UPDATE tasks
   SET expires_at = clock() + make_interval(secs => :lease),
       heartbeat_at = clock(),
       progress = coalesce(CAST(:progress AS jsonb), progress)
 WHERE id = :task_id
   AND epoch = :epoch
   AND token = :token
   AND state IN ('running', 'validating')
RETURNING cancel_requested_at IS NOT NULL AS cancel_requested,
          (SELECT l.stops_runs_at <= clock() FROM lanes l WHERE l.user_id = tasks.user_id) AS window_closed,
          -- A run without costs cannot exhaust a budget.
          CASE WHEN run_cost_usd > 0
               THEN exhausted_budget(user_id, dag_id, max_cost_usd, cost_usd, 0) END AS exhausted_budget;

-- name: record_run_cost
-- Record what an active run has cost so far. The lane is locked, because graph and night are updated.
WITH held AS MATERIALIZED (
    SELECT id, epoch, user_id, dag_id, round(CAST(:usd AS numeric), 6) - run_cost_usd AS usd
      FROM tasks
     WHERE id = :task_id
       AND epoch = :epoch
       AND token = :token
       AND state IN ('running', 'validating')
       AND round(CAST(:usd AS numeric), 6) > run_cost_usd
       FOR NO KEY UPDATE
), updated AS (
    UPDATE tasks t
       SET cost_usd = t.cost_usd + h.usd,
           run_cost_usd = t.run_cost_usd + h.usd,
           reserved_usd = nullif(greatest(t.reserved_usd - h.usd, 0), 0)
      FROM held h
     WHERE t.id = h.id
), attempt AS (
    UPDATE attempts a
       SET cost_usd = a.cost_usd + h.usd
      FROM held h
     WHERE a.task_id = h.id AND a.epoch = h.epoch
)
INSERT INTO spending AS s (task_id, epoch, night_started_at, user_id, dag_id, usd)
SELECT h.id, h.epoch, night.started_at, h.user_id, h.dag_id, h.usd
  FROM held h
 CROSS JOIN LATERAL current_night(h.user_id) night
    ON CONFLICT (task_id, epoch, night_started_at) DO UPDATE SET usd = s.usd + excluded.usd;

-- name: trace_of_run
-- The instants of a run that its trace shows, and the trace context of its task.
SELECT t.traceparent, a.claimed_at, a.started_at,
       (SELECT max(e.at) FROM events e WHERE e.task_id = t.id AND e.to_state = 'ready' AND e.at <= a.claimed_at) AS ready_at
  FROM tasks t
  JOIN attempts a ON a.task_id = t.id
 WHERE t.id = :task_id
   AND a.epoch = :epoch;
