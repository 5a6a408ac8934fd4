-- name: forecast_pools
-- Live workers and their pools, as far as they serve a user: pull agents of other users do not.
SELECT p.name, p.serves, p.kind = 'pull' AS is_outside, a.slots, a.capabilities, a.types,
       a.budget_remaining_usd IS NOT NULL AS has_budget, p.paused, a.status = 'draining' AS draining
  FROM pools p
  JOIN agents a ON a.pool = p.name
 WHERE a.status <> 'offline'
   AND a.last_heartbeat_at > clock() - make_interval(secs => coalesce(a.stale_after_seconds, :liveness))
   AND (p.serves IS NULL OR p.serves = :user_id)
 ORDER BY p.kind, p.name
 LIMIT :limit;

-- name: forecast_other_agents
-- The pull agents that each of these users has, as one pool for each user: all their slots, and of what they can
-- do only what matters, the given capabilities and types. However many agents somebody registers, this reads at
-- most `limit` of them.
WITH agent AS MATERIALIZED (
    SELECT p.serves, a.pool, a.slots, a.types, a.capabilities
      FROM pools p
      JOIN agents a ON a.pool = p.name
     WHERE p.serves = ANY (CAST(:users AS uuid[]))
       AND NOT p.paused
       AND a.status = 'active'
       AND a.last_heartbeat_at > clock() - make_interval(secs => a.stale_after_seconds)
     LIMIT :limit
), capable AS (
    SELECT serves, array_agg(DISTINCT offered) AS capabilities
      FROM agent
     CROSS JOIN unnest(capabilities) offered
     WHERE offered IN (SELECT unnest(CAST(:capabilities AS text[])))
     GROUP BY serves
), typed AS (
    SELECT serves, array_agg(DISTINCT accepted) AS types
      FROM agent
     CROSS JOIN unnest(types) accepted
     WHERE accepted IN (SELECT unnest(CAST(:types AS text[])))
     GROUP BY serves
)
SELECT serves, sum(slots)::int AS slots, bool_or(agent.types IS NULL) AS accepts_all, array_agg(pool) AS pools,
       coalesce(capable.capabilities, '{}') AS capabilities, coalesce(typed.types, '{}') AS types
  FROM agent
  LEFT JOIN capable USING (serves)
  LEFT JOIN typed USING (serves)
 GROUP BY serves, capable.capabilities, typed.types;

-- name: forecast_active
-- Active tasks; bounded by the number of slots.
SELECT id, user_id, dag_id, type, bundle, locks, reserved_seconds, coalesce(reserved_usd, 0)::float8 AS usd,
       -- Tasks on a draining worker do not occupy slots of the pool.
       CASE WHEN claimed_by <> ALL (ARRAY(SELECT id FROM agents WHERE status = 'draining')) THEN pool
            ELSE '' END AS pool,
       coalesce(greatest(0, extract(epoch FROM clock() - started_at)), 0)::float8 AS elapsed
  FROM tasks
 WHERE state IN ('claimed', 'running', 'validating');

-- name: forecast_lanes
-- The user's lane, then lanes with waiting tasks in fair order.
SELECT user_id, max_active, max_task_seconds, limit_seconds, reserved_seconds, paused, ready, plan_weight,
       window_zone, window_from, window_to, window_at_closing,
       (limit_seconds - used_seconds - reserved_seconds)::float8 AS seconds_left,
       extract(epoch FROM last_served_at)::float8 AS served,
       extract(epoch FROM resets_at - clock())::float8 AS resets_in,
       night_budget_usd::float8 AS night_usd,
       -- A night that has ended counts as ended even if the lane was not refreshed yet.
       (night_limit_usd - night_reserved_usd
        - CASE WHEN night_ends_at <= clock() THEN 0 ELSE night_spent_usd END)::float8 AS usd_left,
       CASE WHEN night_ends_at > clock() THEN night_ends_at END AS night_ends_at,
       user_id = :user_id AND EXISTS (SELECT 1 FROM dags g
                                       WHERE g.user_id = lanes.user_id AND g.budget_ceiling_usd IS NOT NULL
                                         AND g.finished_at IS NULL) AS has_graph_budgets,
       EXISTS (SELECT 1 FROM pauses WHERE scope = 'all' AND resumed_at IS NULL) AS all_paused,
       clock() AS now,
       count(*) OVER () AS lanes_in_all
  FROM lanes
  JOIN users ON users.id = lanes.user_id
 WHERE user_id = :user_id
    OR waiting > 0
 ORDER BY user_id = :user_id DESC, eligible DESC, active, last_served_at, plan_weight DESC
 LIMIT :lanes;

-- name: forecast_ready
-- The first ready tasks of each of these users, in the order of the gate.
SELECT top.*
  FROM lanes l
 CROSS JOIN LATERAL (
    SELECT t.id, t.user_id, t.dag_id, t.type, t.sort_key, t.locks, t.required_capabilities, t.state, t.created_at,
           t.awaits_budget, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd)::float8 AS usd,
           0::float8 AS ready_in,
           least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS granted,
           CASE WHEN t.deadline_at IS NOT NULL AND NOT has_started(t.id)
                THEN extract(epoch FROM t.deadline_at - clock())::float8 END AS start_by
      FROM tasks t
     WHERE t.user_id = l.user_id
       AND t.state = 'ready'
     ORDER BY t.sort_key, t.id
     LIMIT CASE WHEN l.user_id = :user_id THEN CAST(:max_position AS int) ELSE CAST(:per_lane AS int) END) top
 WHERE l.user_id = ANY (CAST(:users AS uuid[]));

-- name: forecast_later
-- The next tasks that will be ready by themselves: retries, and tasks that wait for their start.
SELECT t.id, t.user_id, t.dag_id, t.type, t.sort_key, t.locks, t.required_capabilities, t.state, t.created_at,
       t.awaits_budget, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd)::float8 AS usd,
       greatest(0, extract(epoch FROM coalesce(t.retry_at, t.start_at) - clock()))::float8 AS ready_in,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS granted,
       CASE WHEN t.deadline_at IS NOT NULL AND NOT has_started(t.id)
            THEN extract(epoch FROM t.deadline_at - clock())::float8 END AS start_by
  FROM ((SELECT * FROM tasks WHERE state = 'retrying' ORDER BY retry_at LIMIT :limit)
        UNION ALL
        (SELECT * FROM tasks WHERE awaits_start ORDER BY start_at LIMIT :limit)) t
  JOIN lanes l ON l.user_id = t.user_id;

-- name: forecast_pending
-- Pending tasks of these graphs, which have a ready, running or retrying task. A task that waits for a budget
-- waits for a person or for the next night.
SELECT t.id, t.user_id, t.dag_id, t.type, t.sort_key, t.locks, t.required_capabilities, t.state, t.created_at,
       t.awaits_budget, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd)::float8 AS usd,
       greatest(0, extract(epoch FROM t.start_at - clock()))::float8 AS ready_in,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS granted,
       CASE WHEN t.deadline_at IS NOT NULL AND NOT has_started(t.id)
            THEN extract(epoch FROM t.deadline_at - clock())::float8 END AS start_by
  FROM tasks t
  JOIN lanes l ON l.user_id = t.user_id
 WHERE t.dag_id = ANY (CAST(:graphs AS uuid[]))
   AND t.state = 'pending'
 LIMIT :limit;

-- name: forecast_edges
SELECT parent_id, child_id, condition, on_unmet
  FROM task_edges
 WHERE child_id = ANY (CAST(:tasks AS uuid[]))
   AND satisfied_at IS NULL;

-- name: forecast_durations
SELECT type, recent FROM type_durations WHERE type = ANY (CAST(:types AS text[])) AND recent <> '{}';

-- name: forecast_task
-- One task and its state; no row for a task of another user.
SELECT id, dag_id, type, title, state, awaits_budget, start_at, claimed_at, started_at, finished_at
  FROM tasks
 WHERE user_id = :user_id
   AND id = :task_id;

-- name: forecast_titles
SELECT id, title, type FROM tasks WHERE id = ANY (CAST(:tasks AS uuid[]));
