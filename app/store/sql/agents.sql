-- name: ensure_pool
INSERT INTO pools (name) VALUES (:pool) ON CONFLICT DO NOTHING;

-- name: join_agent
INSERT INTO agents (id, kind, pool, capabilities, types, slots)
VALUES (:id, :kind, :pool, CAST(:capabilities AS text[]), CAST(:types AS text[]), :slots)
    ON CONFLICT (id) DO UPDATE
   SET pool = excluded.pool, capabilities = excluded.capabilities, types = excluded.types,
       slots = excluded.slots, status = 'active', last_heartbeat_at = clock();

-- name: beat_agent
-- A worker that was given up for dead must join again, so that its pool is looked at afresh; with
-- a liveness, one that has been silent for longer counts as dead too.
UPDATE agents
   SET last_heartbeat_at = clock()
 WHERE id = :id
   AND status <> 'offline'
   AND (CAST(:liveness AS float8) IS NULL
        OR last_heartbeat_at > clock() - make_interval(secs => CAST(:liveness AS float8)))
RETURNING id;

-- name: leave_agent
UPDATE agents SET status = 'offline' WHERE id = :id RETURNING pool;

-- name: note_pace
-- What a worker saw of late, blended into what was known; one slow run weighs at once. The last
-- hundred runs that were reported are kept as they were.
INSERT INTO paces AS p (type, seconds, recent)
SELECT seen.type, seen.seconds, coalesce(seen.recent, '{}')
  FROM jsonb_to_recordset(CAST(:seen AS jsonb)) AS seen(type text, seconds float8, recent float8[])
 ORDER BY seen.type
    ON CONFLICT (type) DO UPDATE
   SET seconds = CASE WHEN excluded.seconds > 4 * p.seconds THEN excluded.seconds
                      ELSE 0.7 * p.seconds + 0.3 * excluded.seconds END,
       recent = (p.recent || excluded.recent)[cardinality(p.recent) + cardinality(excluded.recent) - 99 :],
       updated_at = clock();
