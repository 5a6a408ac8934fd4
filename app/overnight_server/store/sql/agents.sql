-- name: ensure_pool
INSERT INTO pools (name) VALUES (:pool) ON CONFLICT DO NOTHING;

-- name: register_worker
-- A worker that registers again keeps what is left of its budget.
INSERT INTO agents (id, kind, pool, capabilities, types, slots, budget_remaining_usd)
VALUES (:id, :kind, :pool, CAST(:capabilities AS text[]), CAST(:types AS text[]), :slots, CAST(:budget_usd AS numeric))
    ON CONFLICT (id) DO UPDATE
   SET pool = excluded.pool, capabilities = excluded.capabilities, types = excluded.types,
       slots = excluded.slots, last_heartbeat_at = clock(),
       status = CASE WHEN agents.drain_requested_at IS NULL THEN 'active' ELSE 'draining' END
RETURNING status;

-- name: heartbeat_agent
-- A worker that was marked offline must register again, so that lanes skipped by its pool are considered
-- again. With :liveness, a worker that was silent for longer must do so too, and so must one whose row has another
-- number of slots than the worker: with too many of them the gate would give it tasks that wait.
UPDATE agents
   SET last_heartbeat_at = clock(),
       dropped_messages = :dropped_messages
 WHERE id = :id
   AND status <> 'offline'
   AND (CAST(:liveness AS float8) IS NULL
        OR last_heartbeat_at > clock() - make_interval(secs => CAST(:liveness AS float8)))
   AND slots = coalesce(CAST(:slots AS int), slots)
RETURNING status;

-- name: mark_worker_deaf
UPDATE agents SET status = 'draining', deaf_since = coalesce(deaf_since, clock()) WHERE id = :id AND status <> 'offline';

-- name: mark_worker_offline
UPDATE agents SET status = 'offline' WHERE id = :id;

-- name: lock_agents
-- Workers whose id is, starts with or ends with a name.
SELECT id, pool, status
  FROM agents
 WHERE status <> 'offline'
   AND (id = :name OR starts_with(id, :name) OR right(id, length(:name)) = :name)
 ORDER BY id
   FOR NO KEY UPDATE;

-- name: drain_agent
UPDATE agents
   SET status = 'draining', drain_requested_at = coalesce(drain_requested_at, clock())
 WHERE id = :id;

-- name: undrain_agent
UPDATE agents SET status = 'active', drain_requested_at = NULL WHERE id = :id;

-- name: record_durations
-- Add a worker's recent durations to the moving average of each type; a much slower value replaces it. The
-- last hundred durations are kept.
INSERT INTO type_durations AS p (type, seconds, recent)
SELECT d.type, d.seconds, coalesce(d.recent, '{}')
  FROM jsonb_to_recordset(CAST(:durations AS jsonb)) AS d(type text, seconds float8, recent float8[])
 ORDER BY d.type
    ON CONFLICT (type) DO UPDATE
   SET seconds = CASE WHEN excluded.seconds > 4 * p.seconds THEN excluded.seconds
                      ELSE 0.7 * p.seconds + 0.3 * excluded.seconds END,
       recent = (p.recent || excluded.recent)[cardinality(p.recent) + cardinality(excluded.recent) - 99 :],
       updated_at = clock();

-- name: accepted_types
-- The types that live workers and pull agents accept. Without any live worker nothing is known, so everything
-- counts as accepted; so it does with more pull agents than are read.
WITH live AS MATERIALIZED (
    SELECT a.kind, a.types
      FROM agents a
     WHERE a.status IN ('active', 'draining')
       AND a.last_heartbeat_at > clock() - make_interval(secs => coalesce(a.stale_after_seconds, :liveness))
     ORDER BY a.kind = 'pull'
     LIMIT :limit
)
SELECT (SELECT count(*) IN (0, :limit) OR bool_or(types IS NULL) FROM live) AS everything,
       ARRAY(SELECT DISTINCT unnest(types) FROM live) AS accepted,
       ARRAY(SELECT DISTINCT unnest(types) FROM live WHERE kind <> 'pull') AS own;

-- name: ready_types (not prepared)
-- The types of ready tasks and how many there are of each; at most :limit tasks are counted.
SELECT type, count(*) AS tasks
  FROM (SELECT type FROM tasks WHERE state = 'ready' LIMIT :limit) ready
 GROUP BY type
 ORDER BY tasks DESC, type;
