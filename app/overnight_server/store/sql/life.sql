-- name: life_tasks
-- Tasks of a user whose life is told, with what decides which reasons can hold them.
SELECT t.id, t.dag_id, t.title, t.type, t.state, t.created_at, t.finished_at, t.start_at, t.awaits_start, t.retry_at,
       t.awaits_budget, t.unmet, t.epoch, t.attempts, t.max_attempts, t.failure_reason, t.locks, t.required_capabilities,
       t.cost_usd, t.max_cost_usd, t.result_summary, t.error,
       CASE WHEN t.deadline_at IS NOT NULL AND NOT has_started(t.id) THEN t.deadline_at END AS deadline_at,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS granted,
       l.max_task_seconds, l.window_changes_at, l.resets_at, l.max_active, l.limit_seconds, clock() AS now
  FROM unnest(CAST(:ids AS uuid[])) chosen(id)
  JOIN tasks t ON t.id = chosen.id
  JOIN lanes l ON l.user_id = t.user_id
 WHERE t.user_id = :user_id;

-- name: life_moves
-- Every change of these tasks' states, in order.
SELECT e.task_id, e.at, e.to_state, e.epoch, e.reason
  FROM unnest(CAST(:ids AS uuid[])) chosen(id)
  JOIN events e ON e.task_id = chosen.id
 WHERE e.user_id = :user_id
 ORDER BY e.task_id, e.seq;

-- name: life_runs
-- The runs of these tasks.
SELECT a.task_id, a.epoch, a.agent, a.pool, a.claimed_at, a.started_at, a.ended_at, a.outcome, a.error_class, a.error,
       a.cost_usd
  FROM unnest(CAST(:ids AS uuid[])) chosen(id)
  JOIN attempts a ON a.task_id = chosen.id
 WHERE a.user_id = :user_id
 ORDER BY a.task_id, a.epoch;

-- name: life_edges
-- What these tasks depend on, the first parents of each that were satisfied last.
SELECT chosen.id AS task_id, e.parent_id, e.since_epoch, e.satisfied_at, e.title, e.state
  FROM unnest(CAST(:ids AS uuid[])) chosen(id)
 CROSS JOIN LATERAL (
    SELECT e.parent_id, e.since_epoch, e.satisfied_at, p.title, p.state
      FROM task_edges e
      JOIN tasks p ON p.id = e.parent_id
     WHERE e.child_id = chosen.id AND e.user_id = :user_id
     ORDER BY e.satisfied_at DESC NULLS FIRST
     LIMIT :limit) e;

-- name: life_lane
-- What the gate saw of a lane in a period.
SELECT since, until, max_active, limit_seconds, window_closed, carry_over_until, night_used_up, cycle_started_at, resets_at
  FROM lane_history
 WHERE user_id = :user_id
   AND since < CAST(:to_at AS timestamptz)
   AND (until IS NULL OR until > CAST(:from_at AS timestamptz))
 ORDER BY since, id;

-- name: life_user_runs
-- The newest runs of a user that held a slot in a period. A run is claimed at most `longest` seconds before its end.
SELECT a.granted_seconds, a.claimed_at, a.ended_at
  FROM attempts a
 WHERE a.user_id = :user_id
   AND a.claimed_at >= CAST(:from_at AS timestamptz) - make_interval(secs => :longest)
   AND a.claimed_at < CAST(:to_at AS timestamptz)
   AND (a.ended_at IS NULL OR a.ended_at > CAST(:from_at AS timestamptz))
 ORDER BY a.claimed_at DESC
 LIMIT :limit;

-- name: life_locks
-- Which other tasks held locks that these tasks need, in a period, among the newest runs of the user.
SELECT t.id AS waiting_id, a.task_id, o.title, a.claimed_at, a.ended_at,
       (SELECT key FROM unnest(o.locks) key
         WHERE key = ANY (t.locks) OR coalesce(lock_path_range(t.user_id, key) && t.lock_paths, false)
         ORDER BY key LIMIT 1) AS key
  FROM (SELECT a.task_id, a.claimed_at, a.ended_at
          FROM attempts a
         WHERE a.user_id = :user_id
           AND a.claimed_at >= CAST(:from_at AS timestamptz) - make_interval(secs => :longest)
           AND a.claimed_at < CAST(:to_at AS timestamptz)
           AND (a.ended_at IS NULL OR a.ended_at > CAST(:from_at AS timestamptz))
         ORDER BY a.claimed_at DESC
         LIMIT :limit) a
  JOIN tasks o ON o.id = a.task_id AND o.locks IS NOT NULL
  JOIN tasks t ON t.id = ANY (CAST(:tasks AS uuid[]))
              AND t.user_id = :user_id
              AND t.id <> o.id
              AND (o.locks && t.locks OR coalesce(o.lock_paths && t.lock_paths, false))
 ORDER BY t.id, a.claimed_at DESC
 LIMIT :limit;

-- name: life_ledger
-- The hours that a user had used at an instant, and each entry after it. The first row has no instant.
SELECT NULL::timestamptz AS at, coalesce(sum(seconds), 0)::float8 AS seconds
  FROM usage_ledger
 WHERE user_id = :user_id
   AND period_started_at = CAST(:cycle AS timestamptz)
   AND recorded_at <= CAST(:from_at AS timestamptz)
UNION ALL
(SELECT recorded_at, seconds::float8
   FROM usage_ledger
  WHERE user_id = :user_id
    AND period_started_at = CAST(:cycle AS timestamptz)
    AND recorded_at > CAST(:from_at AS timestamptz)
    AND recorded_at < CAST(:to_at AS timestamptz)
  ORDER BY recorded_at
  LIMIT :limit);

-- name: life_graph_holds
-- When the budget of a task's graph was used up or reserved.
SELECT subject AS dag_id, began_at AS since, ended_at AS until
  FROM holds
 WHERE subject = ANY (CAST(:dags AS uuid[]))
   AND user_id = :user_id
   AND reason = 'graph'
   AND began_at < CAST(:to_at AS timestamptz)
   AND (ended_at IS NULL OR ended_at > CAST(:from_at AS timestamptz));

-- name: life_pauses
-- The pauses that concerned a user in a period.
SELECT p.scope, p.target, p.note, p.paused_at AS since, p.resumed_at AS until, p.paused_by,
       coalesce(u.name, p.paused_by) AS paused_by_name
  FROM pauses p
  LEFT JOIN users u ON p.paused_by = 'user:' || u.id
 WHERE (p.scope <> 'user' OR p.target = CAST(:user_id AS uuid)::text)
   AND p.paused_at < CAST(:to_at AS timestamptz)
   AND (p.resumed_at IS NULL OR p.resumed_at > CAST(:from_at AS timestamptz))
 ORDER BY p.paused_at
 LIMIT :limit;

-- name: life_workers
-- When workers that may serve a user accepted tasks. A worker that is silent for too long, but is not marked offline
-- yet, accepted them until its last heartbeat.
SELECT s.agent_id, s.pool, s.capabilities, s.types, s.slots, s.began_at AS since, coalesce(s.ended_at, a.silent_since) AS until
  FROM worker_sessions s
  LEFT JOIN LATERAL (
    SELECT a.last_heartbeat_at AS silent_since
      FROM agents a
     WHERE a.id = s.agent_id
       AND s.ended_at IS NULL
       AND a.last_heartbeat_at <= clock() - make_interval(secs => coalesce(a.stale_after_seconds, :liveness))) a ON true
 WHERE (s.serves IS NULL OR s.serves = :user_id)
   AND s.began_at < CAST(:to_at AS timestamptz)
   AND (s.ended_at IS NULL OR s.ended_at > CAST(:from_at AS timestamptz))
 ORDER BY s.began_at DESC
 LIMIT :limit;

-- name: life_pool_runs
-- The runs of all users that held a slot of these pools in a short period; read with the BRIN index on claimed_at.
SELECT a.pool, a.claimed_at AS since, a.ended_at AS until, a.bundle
  FROM attempts a
 WHERE a.claimed_at >= CAST(:from_at AS timestamptz) - make_interval(secs => :longest)
   AND a.claimed_at < CAST(:to_at AS timestamptz)
   AND a.pool = ANY (CAST(:pools AS text[]))
   AND (a.ended_at IS NULL OR a.ended_at > CAST(:from_at AS timestamptz))
 LIMIT :limit;

-- name: night_user
-- A user's window and the slots of the plan.
SELECT u.id AS user_id, u.window_zone, u.window_from, u.window_to, u.window_at_closing, u.created_at, u.is_admin, l.max_active, l.max_task_seconds,
       l.active, l.waiting, l.limit_seconds, l.used_seconds::float8 AS used_seconds, l.reserved_seconds, l.resets_at, l.night_limit_usd::float8 AS night_limit_usd,
       clock() AS now
  FROM users u
  JOIN lanes l ON l.user_id = u.id
 WHERE u.id = :user_id;

-- name: night_tasks
-- Tasks that were open in a period: those that ended in it or later, and those that are open, the first of each.
(SELECT id, false AS is_open
   FROM tasks
  WHERE user_id = :user_id
    AND finished_at > CAST(:from_at AS timestamptz)
    AND created_at < CAST(:to_at AS timestamptz)
  ORDER BY finished_at
  LIMIT :limit)
UNION ALL
(SELECT id, true
   FROM tasks
  WHERE user_id = :user_id
    AND finished_at IS NULL
    AND created_at < CAST(:to_at AS timestamptz)
  LIMIT :limit);

-- name: night_ends
-- How many tasks ended in a period, by how they ended.
SELECT count(*) FILTER (WHERE state = 'completed') AS done, count(*) FILTER (WHERE state = 'dead_lettered') AS dead,
       count(*) FILTER (WHERE state = 'cancelled') AS cancelled
  FROM tasks
 WHERE user_id = :user_id
   AND finished_at > CAST(:from_at AS timestamptz)
   AND finished_at <= CAST(:to_at AS timestamptz);

-- name: night_left
-- How many tasks were still open at the end of a period.
SELECT (SELECT count(*)
          FROM tasks
         WHERE user_id = :user_id AND finished_at > CAST(:to_at AS timestamptz) AND created_at < CAST(:to_at AS timestamptz))
       + (SELECT count(*)
            FROM tasks
           WHERE user_id = :user_id AND finished_at IS NULL AND created_at < CAST(:to_at AS timestamptz)) AS open;

-- name: night_runs
-- The runs of a user that held a slot in a period, with their titles. A run is claimed at most `longest` seconds before
-- its end.
SELECT a.task_id, a.epoch, a.claimed_at, a.ended_at, a.outcome, t.title
  FROM attempts a
  JOIN tasks t ON t.id = a.task_id
 WHERE a.user_id = :user_id
   AND a.claimed_at >= CAST(:from_at AS timestamptz) - make_interval(secs => :longest)
   AND a.claimed_at < CAST(:to_at AS timestamptz)
   AND (a.ended_at IS NULL OR a.ended_at > CAST(:from_at AS timestamptz))
 ORDER BY a.claimed_at DESC
 LIMIT :limit;

-- name: night_lost
-- The runs of a user whose worker was lost in a period.
SELECT a.ended_at, t.title
  FROM attempts a
  JOIN tasks t ON t.id = a.task_id
 WHERE a.user_id = :user_id
   AND a.claimed_at >= CAST(:from_at AS timestamptz) - make_interval(secs => :longest)
   AND a.claimed_at < CAST(:to_at AS timestamptz)
   AND a.ended_at BETWEEN CAST(:from_at AS timestamptz) AND CAST(:to_at AS timestamptz)
   AND a.error_class = 'worker_lost'
 ORDER BY a.claimed_at
 LIMIT :limit;

-- name: night_money
-- What a user's runs have cost in the nights that began in a period.
SELECT coalesce(sum(usd), 0)::float8 AS usd
  FROM spending
 WHERE user_id = :user_id
   AND night_started_at >= CAST(:from_at AS timestamptz)
   AND night_started_at < CAST(:to_at AS timestamptz);

-- name: night_graphs
-- The titles of graphs.
SELECT g.id, g.title
  FROM unnest(CAST(:ids AS uuid[])) chosen(id)
  JOIN dags g ON g.id = chosen.id
 WHERE g.user_id = :user_id;

-- name: night_dependents
-- How many tasks did not run because one task of a group failed, by group. `groups` has the group of each of `ids`.
SELECT chosen.of_group, count(DISTINCT e.child_id) AS number
  FROM unnest(CAST(:ids AS uuid[]), CAST(:groups AS text[])) chosen(id, of_group)
  JOIN task_edges e ON e.parent_id = chosen.id
 WHERE e.user_id = :user_id
   AND e.satisfied_at IS NULL
 GROUP BY chosen.of_group;
