-- name: count_starts
-- How many claims a period has, which is how many rows a report about it would read.
SELECT count(*) FROM attempts WHERE claimed_at > clock() - make_interval(secs => :seconds);

-- name: starts_since
-- Every run started in a period, with the instant at which its task had become ready.
SELECT u.name, t.locks,
       extract(epoch FROM ready.at)::float8 AS ready,
       extract(epoch FROM a.started_at)::float8 AS start,
       extract(epoch FROM a.ended_at)::float8 AS "end"
  FROM attempts a
  JOIN tasks t ON t.id = a.task_id
  JOIN users u ON u.id = a.user_id
 CROSS JOIN LATERAL (
    -- The task became ready in the epoch before the claim.
    SELECT e.at
      FROM events e
     WHERE e.task_id = a.task_id
       AND e.epoch = a.epoch - 1
       AND e.to_state = 'ready'
     ORDER BY e.seq DESC
     LIMIT 1) ready
 WHERE a.claimed_at > clock() - make_interval(secs => :seconds)
   AND a.started_at IS NOT NULL;

-- name: waiting_now
-- What is ready and has not started: of each user no more than could run at once. Nothing is owed
-- to a user who is paused, out of hours, outside of a night window, or has nothing that any pool would take, and nothing to
-- anybody while everything is paused.
SELECT u.name, head.locks, extract(epoch FROM head.updated_at)::float8 AS ready,
       NOT l.paused
       AND NOT l.window_closed
       AND NOT EXISTS (SELECT 1 FROM pauses WHERE scope = 'all' AND resumed_at IS NULL)
       AND (l.limit_seconds IS NULL OR l.used_seconds + l.reserved_seconds < l.limit_seconds)
       AND EXISTS (SELECT 1 FROM pools p WHERE NOT p.paused AND NOT (p.name = ANY (l.skipped_by_pools))) AS is_owed
  FROM lanes l
  JOIN users u ON u.id = l.user_id
 CROSS JOIN LATERAL (
    SELECT t.locks, t.updated_at
      FROM tasks t
     WHERE t.user_id = l.user_id
       AND t.state = 'ready'
     ORDER BY t.sort_key, t.id
     LIMIT greatest(l.max_active, 1)) head
 WHERE l.ready > 0
 LIMIT :limit;

-- name: lane_limits
SELECT u.name, l.max_active, l.ready FROM lanes l JOIN users u ON u.id = l.user_id;

-- name: starving_lanes
-- Users who were not served for too long although this pool could run a task of theirs now, whether or not the
-- pool skips their lanes. The pool must have served somebody meanwhile, or have a free slot: in a pool whose slots are
-- all occupied by long runs everybody waits. At most :look lanes are judged, those that were served
-- longest ago.
WITH waiting AS MATERIALIZED (
    SELECT l.user_id, head.updated_at
      FROM lanes l
     CROSS JOIN LATERAL (
        SELECT t.updated_at
          FROM tasks t
         WHERE t.user_id = l.user_id
           AND t.state = 'ready'
         ORDER BY t.sort_key, t.id
         LIMIT 1) head
     WHERE l.eligible
       AND l.last_served_at < clock() - make_interval(secs => :starving_after)
       AND head.updated_at < clock() - make_interval(secs => :starving_after)
       AND (:free > 0
            OR EXISTS (SELECT 1
                         FROM tasks t
                        WHERE t.pool = :pool
                          AND t.state IN ('claimed', 'running', 'validating')
                          AND t.claimed_at > clock() - make_interval(secs => :starving_after)))
     ORDER BY l.active, l.last_served_at, l.plan_weight DESC
     LIMIT :look
), startable AS MATERIALIZED (
    SELECT DISTINCT c.user_id
      FROM claim_candidates(ARRAY(SELECT user_id FROM waiting), 1, NULL, CAST(:capabilities AS text[]),
                            CAST(:types AS text[]), CAST(:usd_left AS numeric), 1, 1) c
)
SELECT u.id AS user_id, u.name, extract(epoch FROM clock() - waiting.updated_at)::float8 AS waited
  FROM startable
  JOIN waiting ON waiting.user_id = startable.user_id
  JOIN users u ON u.id = startable.user_id;
