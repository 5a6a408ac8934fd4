-- name: start
-- The holder of a fresh claim begins. A message that comes late, twice or forged matches no row.
WITH started AS (
    UPDATE tasks
       SET state = :target,
           started_at = clock(),
           claimed_by = :holder,
           expires_at = clock() + make_interval(secs => :lease)
     WHERE id = :task_id
       AND epoch = :epoch
       AND token = :token
       AND state = ANY (CAST(:sources AS text[]))
       AND expires_at > clock()
    RETURNING *
), marked AS (
    UPDATE attempts a
       SET started_at = clock(), agent = :holder
      FROM started s
     WHERE a.task_id = s.id AND a.epoch = s.epoch
)
SELECT s.id, s.epoch, s.token, s.user_id, s.dag_id, s.type, s.title, s.payload, s.spec, s.attempts, s.max_attempts,
       s.retry, s.reserved_seconds AS granted_seconds,
       (s.timeout_seconds IS NULL OR s.reserved_seconds < s.timeout_seconds) AS plan_limited,
       (SELECT jsonb_agg(jsonb_build_object('agent', a.agent, 'outcome', a.outcome) ORDER BY a.epoch)
          FROM attempts a
         WHERE a.task_id = s.id AND a.spent) AS failures
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
RETURNING cancel_requested_at IS NOT NULL AS cancel_requested;
