-- name: explain_tasks
-- Tasks with their user's lane and their places in the user's queue; no row for a task of another user. `granted`
-- and the deadline that still applies are computed as in claim_candidates.
SELECT t.id, t.type, t.state, t.unmet, t.created_at, t.updated_at, t.claimed_at, t.started_at, t.finished_at,
       t.claimed_by, t.pool, t.cancel_requested_at, t.failure_reason, t.retry_at, t.attempts, t.max_attempts,
       CASE WHEN t.deadline_at IS NOT NULL AND NOT has_started(t.id) THEN t.deadline_at END AS deadline_at,
       t.start_at, t.awaits_start, t.required_capabilities, t.locks,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS granted,
       l.active, l.max_active, l.limit_seconds, l.used_seconds, l.reserved_seconds, l.resets_at, l.paused,
       l.window_closed, l.window_changes_at, l.carry_over_until, l.skipped_by_pools,
       t.awaits_budget, requested_budget(t, l, g), asked.by_operator AS budget_by_operator, t.cost_usd, t.max_cost_usd, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) AS needs_usd,
       g.budget_ceiling_usd - g.spent_usd - g.reserved_usd AS dag_left_usd, g.budget_ceiling_usd AS dag_limit_usd,
       l.night_limit_usd - l.night_spent_usd - l.night_reserved_usd AS night_left_usd, l.night_limit_usd,
       CASE WHEN l.night_limit_usd IS NOT NULL THEN (SELECT ends_at FROM current_night(t.user_id)) END AS night_ends_at,
       u.window_zone, u.window_from, u.window_to, u.window_at_closing, u.disabled_at,
       CASE WHEN t.state = 'ready' THEN
            (SELECT count(*) FROM (SELECT 1 FROM tasks o
                                    WHERE o.user_id = t.user_id AND o.state = 'ready'
                                      AND (o.sort_key, o.id) < (t.sort_key, t.id)
                                    LIMIT :max_position) ahead) END AS ahead,
       :max_position AS max_position, clock() AS now
  FROM tasks t
  JOIN lanes l ON l.user_id = t.user_id
  JOIN users u ON u.id = t.user_id
  LEFT JOIN dags g ON g.id = t.dag_id
 CROSS JOIN LATERAL (
    -- Whether an operator set the budget for which the task asks.
    SELECT CASE requested_budget(t, l, g) WHEN 'dag' THEN g.budget_by_operator WHEN 'night' THEN true
                                          ELSE false END AS by_operator) asked
 WHERE t.user_id = :user_id
   AND t.id = ANY (CAST(:tasks AS uuid[]));

-- name: explain_next_task
-- The same for the user's next task: the first of the queue that hours, money and window allow, else the
-- first; without any, a task of one second. Its type is NULL: another task could have another type.
SELECT 'ready' AS state, NULL::text AS type, 0 AS unmet, NULL AS awaits_budget, false AS budget_by_operator, NULL::timestamptz AS deadline_at, NULL::text[] AS locks,
       '{}'::text[] AS required_capabilities, 0::numeric AS cost_usd, NULL::numeric AS max_cost_usd,
       head.granted IS NOT NULL AS is_real, coalesce(head.granted, 1) AS granted,
       coalesce(head.created_at, clock()) AS created_at, coalesce(head.usd, 0) AS needs_usd,
       l.active, l.max_active, l.limit_seconds, l.used_seconds, l.reserved_seconds, l.resets_at, l.paused,
       l.window_closed, l.window_changes_at, l.carry_over_until, l.skipped_by_pools,
       NULL::numeric AS dag_left_usd, NULL::numeric AS dag_limit_usd,
       l.night_limit_usd - l.night_spent_usd - l.night_reserved_usd AS night_left_usd, l.night_limit_usd,
       CASE WHEN l.night_limit_usd IS NOT NULL THEN (SELECT ends_at FROM current_night(l.user_id)) END AS night_ends_at,
       u.window_zone, u.window_from, u.window_to, u.window_at_closing, u.disabled_at, clock() AS now
  FROM lanes l
  JOIN users u ON u.id = l.user_id
  LEFT JOIN LATERAL (
    SELECT first.*
      FROM (SELECT least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS granted, t.created_at,
                   next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) AS usd, t.sort_key, t.id
              FROM tasks t
             WHERE t.user_id = l.user_id
               AND t.state = 'ready'
             ORDER BY t.sort_key, t.id
             LIMIT :limit) first
     ORDER BY coalesce(granted <= l.limit_seconds - l.used_seconds - l.reserved_seconds, true)
              AND coalesce(usd <= l.night_limit_usd - l.night_spent_usd - l.night_reserved_usd, true)
              AND coalesce(created_at < l.carry_over_until, true) DESC, sort_key, id
     LIMIT 1) head ON true
 WHERE l.user_id = :user_id;

-- name: explain_parents
-- The parents that tasks still wait for, or that ended otherwise than required; the first few of each task.
SELECT chosen.id AS task_id, parent.*
  FROM unnest(CAST(:tasks AS uuid[])) chosen(id)
 CROSS JOIN LATERAL (
    SELECT p.id, p.title, p.state, e.condition, e.on_unmet
      FROM task_edges e
      JOIN tasks p ON p.id = e.parent_id
     WHERE e.child_id = chosen.id
       AND e.satisfied_at IS NULL
     ORDER BY p.id
     LIMIT :limit) parent
 ORDER BY chosen.id, parent.id;

-- name: explain_locks
-- The holders of locks that tasks need; for each task not more rows than the user has active tasks.
SELECT t.id AS task_id, held.*
  FROM unnest(CAST(:tasks AS uuid[])) chosen(id)
  JOIN tasks t ON t.id = chosen.id AND t.locks IS NOT NULL
 CROSS JOIN LATERAL (
    SELECT h.key, h.task_id AS holder_id, o.claimed_at AS since, o.expires_at
      FROM held_locks h
      JOIN tasks o ON o.id = h.task_id
     WHERE h.user_id = t.user_id
       AND (h.key = ANY (t.locks) OR coalesce(t.lock_paths && h.path_range, false))
     ORDER BY h.key
     LIMIT :limit) held
 ORDER BY t.id, held.key;

-- name: explain_pools
-- The pools that may serve a user, with those of some types for which a live worker has a handler, and the
-- draining workers.
SELECT p.name, p.paused, p.serves, p.kind = 'pull' AS is_outside,
       coalesce(array_agg(DISTINCT known.type) FILTER (WHERE known.type IS NOT NULL), '{}') AS known_types,
       coalesce(array_agg(DISTINCT a.id ORDER BY a.id) FILTER (WHERE a.status = 'draining'), '{}') AS draining,
       (SELECT o.types FROM agents o WHERE o.pool = p.name AND o.kind = 'pull' LIMIT 1) AS only_types
  FROM pools p
  LEFT JOIN agents a ON a.pool = p.name
                    AND a.status <> 'offline'
                    AND a.last_heartbeat_at > clock() - make_interval(secs => coalesce(a.stale_after_seconds, :liveness))
  LEFT JOIN LATERAL unnest(a.types) known(type) ON known.type = ANY (CAST(:types AS text[]))
 WHERE p.serves IS NULL OR p.serves = :user_id
 GROUP BY p.name
 ORDER BY p.name
 LIMIT :limit;

-- name: lanes_in_fair_order
-- The lanes that lock_lanes_in_fair_order would lock if no lane were locked, in its order, without those in
-- `passed_over`, which the same pass has already skipped.
WITH next AS MATERIALIZED (
    SELECT user_id, active, last_served_at, plan_weight, room
      FROM lanes_in_fair_order(:pool, CAST(:passed_over AS uuid[]), CAST(:limit AS int) + 4 * CAST(:min_lanes AS int))
)
SELECT user_id
  FROM next
 ORDER BY active, last_served_at, plan_weight DESC
 LIMIT (SELECT greatest(CAST(:min_lanes AS int), ceil(CAST(:limit AS int) / avg(room))::int) FROM next);

-- name: next_pass
-- How far a task would get in a pass. The CTEs are those of claim (tests compare them).
WITH candidate AS MATERIALIZED (
    SELECT *
      FROM claim_candidates(CAST(:users AS uuid[]), CAST(:per_lane AS int), CAST(:only AS uuid), CAST(:capabilities AS text[]),
                            CAST(:types AS text[]), CAST(:usd_left AS numeric),
                            CAST(:bundle_seconds AS float8), CAST(:bundle_max AS int))
), unlocked AS MATERIALIZED (
    -- Of several tasks with one lock key only the first may be claimed. Tasks with several keys or a path
    -- are not compared with each other: such a task may be claimed only as the first task with locks of
    -- its user in this batch, or else waits for the next pass.
    SELECT c.*,
           row_number() OVER (PARTITION BY user_id, coalesce(locks[1], id::text) ORDER BY sort_key, id) AS of_key,
           row_number() OVER locked_order AS of_locked,
           bool_or(cardinality(locks) > 1 OR starts_with(locks[1], 'path:')) OVER locked_order AS after_wide
      FROM candidate c
    WINDOW locked_order AS (PARTITION BY user_id, locks IS NULL ORDER BY sort_key, id ROWS UNBOUNDED PRECEDING)
), affordable AS MATERIALIZED (
    -- Running sums of hours and money, so that one batch cannot reserve more than is left.
    SELECT u.*, (sum(share) OVER lane_order + 999999) / 1000000 AS slots_used,
           sum(granted) OVER lane_order AS reserved_seconds,
           sum(usd) OVER lane_order AS reserved_usd,
           CASE WHEN dag_usd_left IS NOT NULL THEN sum(usd) OVER dag_order END AS dag_reserved_usd
      FROM unlocked u
     WHERE locks IS NULL OR of_locked = 1 OR (of_key = 1 AND NOT after_wide)
    WINDOW lane_order AS (PARTITION BY user_id ORDER BY sort_key, id ROWS UNBOUNDED PRECEDING),
           dag_order AS (PARTITION BY user_id, CASE WHEN dag_usd_left IS NOT NULL THEN dag_id END
                         ORDER BY sort_key, id ROWS UNBOUNDED PRECEDING)
), queued AS MATERIALIZED (
    -- The fair order: one slot for each user before a second one for any user.
    SELECT id, granted, share, share = 1000000 AS is_single,
           count(*) FILTER (WHERE share = 1000000) OVER fair_order AS singles,
           (coalesce(sum(share) FILTER (WHERE share < 1000000) OVER fair_order, 0) + 999999) / 1000000 AS bundles,
           row_number() OVER fair_order AS place
      FROM affordable
     WHERE reserved_seconds <= seconds_left
       AND reserved_usd <= night_usd_left
       AND (dag_usd_left IS NULL OR dag_reserved_usd <= dag_usd_left)
    WINDOW fair_order AS (ORDER BY active + slots_used, last_served_at, plan_weight DESC, user_id, sort_key, id
                          ROWS UNBOUNDED PRECEDING)
), chosen AS MATERIALIZED (
    -- As many as the free slots can run. MATERIALIZED, because a plain IN (… LIMIT n) may be evaluated
    -- again and return more than n.
    SELECT id, granted, share, is_single, place
      FROM queued
     WHERE singles + bundles <= CAST(:messages AS int)
     ORDER BY place
     LIMIT :limit
)
SELECT EXISTS (SELECT 1 FROM chosen WHERE id = :task_id) AS is_chosen,
       EXISTS (SELECT 1 FROM candidate WHERE id = :task_id) AS is_candidate,
       EXISTS (SELECT 1 FROM affordable WHERE id = :task_id) AS has_locks,
       EXISTS (SELECT 1 FROM affordable WHERE id = :task_id AND reserved_seconds <= seconds_left) AS has_hours,
       (SELECT place FROM queued WHERE id = :task_id) AS place,
       (SELECT count(*) FROM chosen) AS chosen,
       (SELECT least(max_active - active, CAST(:per_lane AS int)) FROM lanes
         WHERE user_id = :user_id AND user_id = ANY (CAST(:users AS uuid[]))
           AND eligible AND coalesce(due_at > clock(), true)
           AND coalesce(CAST(:usd_left AS numeric) > 0, true)) AS room,
       -- The user's tasks that the pass considers before it.
       ARRAY(SELECT c.id
               FROM candidate c
              WHERE c.user_id = :user_id
                AND (c.sort_key, c.id) < (SELECT t.sort_key, t.id FROM tasks t WHERE t.id = :task_id)
              ORDER BY c.sort_key, c.id
              LIMIT :max_position) AS before;
