-- name: start
-- Holders of fresh claims begin. A message that comes late, twice or forged matches no row.
WITH message AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:claims AS jsonb)) AS m(task_id uuid, epoch int, token uuid)
), held AS MATERIALIZED (
    SELECT t.id
      FROM (SELECT * FROM message ORDER BY task_id) m
     -- OFFSET 0: each row is found by its key and judged as it is once it is locked.
     CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = m.task_id OFFSET 0 FOR NO KEY UPDATE) t
     WHERE t.epoch = m.epoch
       AND t.token = m.token
       AND t.state = ANY (CAST(:sources AS text[]))
       AND t.expires_at > clock()
), started AS (
    UPDATE tasks t
       SET state = :target,
           started_at = clock(),
           claimed_by = :holder,
           expires_at = clock() + make_interval(secs => :lease)
      FROM held
     WHERE t.id = held.id
    RETURNING t.*
), marked AS (
    UPDATE attempts a
       SET started_at = clock(), agent = :holder
      FROM started s
     WHERE a.task_id = s.id AND a.epoch = s.epoch
)
SELECT s.id, s.user_id, s.dag_id, s.type, s.title, s.payload, s.spec, s.attempts, s.max_attempts,
       CAST(s.retry AS text) AS retry, s.bundle, s.reserved_seconds AS granted_seconds,
       (s.timeout_seconds IS NULL OR s.reserved_seconds < s.timeout_seconds) AS plan_limited,
       CASE WHEN s.attempts > 0 THEN
            (SELECT jsonb_agg(jsonb_build_object('agent', a.agent, 'outcome', a.outcome) ORDER BY a.epoch)
               FROM attempts a
              WHERE a.task_id = s.id AND a.spent AND a.epoch > s.forgiven_epoch) END AS failures
  FROM started s;

-- name: heartbeat
-- Still here: extend the lease, carry progress, learn whether to go on. Touches no index.
UPDATE tasks
   SET expires_at = clock() + make_interval(secs => :lease),
       progress = coalesce(CAST(:progress AS jsonb), progress)
 WHERE id = :task_id
   AND epoch = :epoch
   AND token = :token
   AND state IN ('running', 'validating')
RETURNING cancel_requested_at IS NOT NULL AS cancel_requested,
          (SELECT l.stops_runs_at <= clock() FROM lanes l WHERE l.user_id = tasks.user_id) AS window_closed;
