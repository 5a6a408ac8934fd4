-- name: count_starts
-- How many claims a period has, which is how many rows a report about it would read. The counted column is in no other
-- index: the index of users' runs, which is read whole, would look cheaper than the one for periods.
SELECT count(agent) FROM attempts WHERE claimed_at > clock() - make_interval(secs => :seconds);

-- name: starts_since
-- Every run started in a period, with the instant at which its task had become ready.
SELECT u.name, t.locks,
       a.user_id, t.dag_id, t.type, t.required_capabilities, extract(epoch FROM t.created_at)::float8 AS created,
       extract(epoch FROM ready.at)::float8 AS ready,
       extract(epoch FROM a.started_at)::float8 AS start,
       extract(epoch FROM a.ended_at)::float8 AS "end"
  FROM attempts a
  JOIN tasks t ON t.id = a.task_id
  JOIN users u ON u.id = a.user_id
 CROSS JOIN LATERAL (
    -- When the task became ready. A claim that was given back before its start, for instance because its message
    -- was lost, does not end the wait.
    SELECT e.at
      FROM events e
     WHERE e.task_id = a.task_id
       AND e.epoch < a.epoch
       AND e.to_state = 'ready'
       AND e.from_state IS DISTINCT FROM 'claimed'
     ORDER BY e.seq DESC
     LIMIT 1) ready
 WHERE a.claimed_at > clock() - make_interval(secs => :seconds)
   AND a.started_at IS NOT NULL;

-- name: waiting_now
-- What is ready and has not started: of each user no more than could run at once. `is_owed` is false for a user of whom
-- no pool would take a task now. A task that asks for a budget is held since it became ready.
SELECT u.name, (head.t).locks, (head.t).user_id, (head.t).dag_id, (head.t).type, (head.t).required_capabilities,
       extract(epoch FROM (head.t).created_at)::float8 AS created,
       extract(epoch FROM ready.at)::float8 AS ready,
       requested_budget(head.t, l, g) IS NOT NULL AS asks_for_budget,
       EXISTS (SELECT 1 FROM pools p WHERE NOT p.paused AND NOT (p.name = ANY (l.skipped_by_pools))) AS is_owed
  FROM lanes l
  JOIN users u ON u.id = l.user_id
 CROSS JOIN LATERAL (
    SELECT t
      FROM tasks t
     WHERE t.user_id = l.user_id
       AND t.state = 'ready'
     ORDER BY t.sort_key, t.id
     LIMIT greatest(l.max_active, 1)) head
 CROSS JOIN LATERAL (
    SELECT e.at
      FROM events e
     WHERE e.task_id = (head.t).id
       AND e.to_state = 'ready'
       AND e.from_state IS DISTINCT FROM 'claimed'
     ORDER BY e.seq DESC
     LIMIT 1) ready
  LEFT JOIN dags g ON g.id = (head.t).dag_id
 WHERE l.ready > 0
 LIMIT :limit;

-- name: holds_since
-- When tasks of a user or of a graph could not start for a reason of their own.
SELECT subject, extract(epoch FROM created_from)::float8 AS created_from,
       extract(epoch FROM began_at)::float8 AS began, extract(epoch FROM ended_at)::float8 AS ended
  FROM holds
 WHERE ended_at IS NULL OR ended_at > to_timestamp(:since);

-- name: pauses_since
-- When everything or a pool was paused.
SELECT target AS pool, extract(epoch FROM paused_at)::float8 AS began, extract(epoch FROM resumed_at)::float8 AS ended
  FROM pauses
 WHERE scope IN ('all', 'pool')
   AND (resumed_at IS NULL OR resumed_at > to_timestamp(:since));

-- name: worker_sessions_since
-- When workers accepted tasks. A worker that is silent for too long, but is not marked offline yet, accepted them
-- until its last heartbeat.
SELECT s.pool, s.serves, s.capabilities, s.types, extract(epoch FROM s.began_at)::float8 AS began,
       extract(epoch FROM coalesce(s.ended_at, a.silent_since))::float8 AS ended
  FROM worker_sessions s
  LEFT JOIN LATERAL (
    SELECT a.last_heartbeat_at AS silent_since
      FROM agents a
     WHERE a.id = s.agent_id
       AND a.last_heartbeat_at <= clock() - make_interval(secs => coalesce(a.stale_after_seconds, :liveness))) a ON true
 WHERE s.ended_at IS NULL OR s.ended_at > to_timestamp(:since);

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
