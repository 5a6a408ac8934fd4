-- What the gate reads. The claim, explain and forecast call these functions, so that they cannot differ.
-- The planner inlines them: STABLE, one SELECT, no SECURITY DEFINER.

-- The state of a pool: its slots, the workers that offer them, and what occupies them.
--   slots, agents         slots and ids of live workers; those of draining workers do not count
--   capabilities, types   those that each live worker declares; equal lists of types appear once
--   usd_left              the smallest remaining budget of these workers; NULL without budgets
--   singles, bundles      slots occupied by single tasks and by bundles, except on draining workers
--   in_all_pools          occupied slots of all pools
--   all_types             the types that each live worker of any pool declares, and those that pull agents
--                         declared within a day: their tasks wait for them
--   is_open, paused       whether the pool exists and is not paused; whether everything is paused
--   lanes_due             whether a lane must be refreshed: a month, window or night has ended
-- The cost is bounded by the number of slots, not of tasks.
CREATE FUNCTION pool_state(of_pool text, liveness_seconds float8)
RETURNS TABLE (slots int, agents text[], capabilities jsonb, types jsonb, usd_left numeric, singles bigint, bundles bigint,
               in_all_pools bigint, all_types jsonb, is_open boolean, paused boolean, lanes_due boolean)
LANGUAGE sql STABLE
AS $$
    SELECT live.slots, live.agents, live.capabilities, live.types, live.usd_left,
           occupied.singles, occupied.bundles, occupied.in_all_pools,
           (SELECT jsonb_agg(DISTINCT a.types)
              FROM agents a
             WHERE (a.status = 'active' OR a.status = 'draining')
               AND a.last_heartbeat_at > clock() - make_interval(secs => coalesce(a.stale_after_seconds, liveness_seconds))
                OR a.kind = 'pull' AND a.last_heartbeat_at > clock() - interval '1 day'),
           EXISTS (SELECT 1 FROM pools p WHERE p.name = of_pool AND NOT p.paused),
           EXISTS (SELECT 1 FROM pauses WHERE scope = 'all' AND resumed_at IS NULL),
           EXISTS (SELECT 1 FROM lanes WHERE due_at <= clock())
      FROM (SELECT coalesce(sum(a.slots), 0)::int AS slots,
                   coalesce(array_agg(a.id), '{}') AS agents,
                   jsonb_agg(a.capabilities) AS capabilities,
                   jsonb_agg(DISTINCT a.types) AS types,
                   min(a.budget_remaining_usd) AS usd_left
              FROM agents a
             WHERE a.pool = of_pool
               AND a.status = 'active'
               AND a.last_heartbeat_at > clock() - make_interval(secs => coalesce(a.stale_after_seconds, liveness_seconds))) live
     CROSS JOIN (SELECT count(*) FILTER (WHERE active.is_here AND active.bundle IS NULL) AS singles,
                        count(DISTINCT active.bundle) FILTER (WHERE active.is_here) AS bundles,
                        count(*) FILTER (WHERE active.bundle IS NULL) + count(DISTINCT active.bundle) AS in_all_pools
                   FROM (SELECT t.bundle,
                                t.pool = of_pool
                                AND t.claimed_by <> ALL (ARRAY(SELECT a.id FROM agents a
                                                                WHERE a.pool = of_pool AND a.status = 'draining')) AS is_here
                           FROM tasks t
                          WHERE t.state IN ('claimed', 'running', 'validating')) active) occupied
$$;

-- The first startable tasks of each of these users, at most `per_lane` and no more than may run: tasks
-- that the pool can run, whose locks are free, and whose time and cost still fit. For each user,
-- Postgres reads one index in order and stops when it has found enough tasks.
--   granted      seconds that the run would be allowed and that the claim reserves
--   usd          its expected cost, which the claim reserves
--   dag_usd_left what the budget of its graph leaves; NULL without one
--   is_quick     whether its type is known to be short, so that it may share a message
--   share        its part of a slot in millionths; all of it unless the type is short
-- An agent without budget gets nothing, not even tasks that are expected to cost nothing.
CREATE FUNCTION claim_candidates(users uuid[], per_lane int, only_task uuid, capabilities text[], elsewhere text[],
                                 only_types text[], agent_usd_left numeric, bundle_seconds float8, bundle_max int)
RETURNS TABLE (user_id uuid, active int, last_served_at timestamptz, plan_weight smallint,
               seconds_left numeric, night_usd_left numeric, id uuid, dag_id uuid, locks text[], sort_key float8,
               usd numeric, dag_usd_left numeric, granted int, is_quick boolean, share int)
LANGUAGE sql STABLE
AS $$
    WITH held AS MATERIALIZED (
        -- Read once, not for each task.
        SELECT h.user_id, array_agg(h.key) AS keys, range_agg(h.path_range) AS path_ranges
          FROM held_locks h
         WHERE h.user_id = ANY (users)
         GROUP BY h.user_id
    ), lane AS MATERIALIZED (
        SELECT l.user_id, l.active, l.last_served_at, l.plan_weight, l.max_task_seconds, l.carry_over_until,
               least(l.max_active - l.active, per_lane) AS room,
               coalesce(l.limit_seconds - l.used_seconds - l.reserved_seconds, 'Infinity'::numeric) AS seconds_left,
               held.keys AS held_keys, held.path_ranges AS held_path_ranges,
               coalesce(l.night_limit_usd - l.night_spent_usd - l.night_reserved_usd, 'Infinity'::numeric) AS night_usd_left,
               -- Most users have no graph with a budget; then no graph is read.
               EXISTS (SELECT 1 FROM dags g
                        WHERE g.user_id = l.user_id
                          AND g.budget_ceiling_usd IS NOT NULL AND g.finished_at IS NULL) AS has_budgets
          FROM lanes l
          LEFT JOIN held ON held.user_id = l.user_id
         WHERE l.user_id = ANY (users)
           AND l.eligible
           -- A due lane has old limits; the next pass refreshes it first. coalesce keeps the planner from
           -- searching lanes by due_at.
           AND coalesce(l.due_at > clock(), true)
           AND coalesce(agent_usd_left > 0, true)
    )
    SELECT lane.user_id, lane.active, lane.last_served_at, lane.plan_weight, lane.seconds_left,
           lane.night_usd_left, task.id, task.dag_id, task.locks, task.sort_key, task.usd, task.dag_usd_left, task.granted,
           task.is_quick, task.share
      FROM lane
     CROSS JOIN LATERAL (
        SELECT t.id, t.dag_id, t.locks, t.sort_key, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) AS usd,
               graph.usd_left AS dag_usd_left,
               least(coalesce(t.timeout_seconds, lane.max_task_seconds), lane.max_task_seconds) AS granted,
               d.seconds < bundle_seconds AND NOT t.runs_alone AS is_quick,
               CASE WHEN t.runs_alone OR d.seconds IS NULL THEN 1000000
                    ELSE trunc(1e6 * least(1, greatest(d.seconds / bundle_seconds, 1.0 / bundle_max)))::int
                    END AS share
          FROM tasks t
          LEFT JOIN type_durations d ON d.type = t.type
          LEFT JOIN LATERAL (
            SELECT g.budget_ceiling_usd - g.spent_usd - g.reserved_usd AS usd_left
              FROM dags g
             -- A search for NULL returns without reading the index.
             WHERE g.id = CASE WHEN lane.has_budgets THEN t.dag_id END) graph ON true
         WHERE t.user_id = lane.user_id
           AND t.state = 'ready'
           AND coalesce(t.deadline_at > clock(), true)
           AND coalesce(t.created_at < lane.carry_over_until, true)
           AND t.required_capabilities <@ capabilities
           AND t.type <> ALL (elsewhere)
           AND (only_types IS NULL OR t.type = ANY (only_types))
           AND least(coalesce(t.timeout_seconds, lane.max_task_seconds), lane.max_task_seconds) <= lane.seconds_left
           AND (only_task IS NULL OR t.id = only_task)
           AND (t.locks IS NULL OR lane.held_keys IS NULL
                OR NOT (t.locks && lane.held_keys OR coalesce(t.lock_paths && lane.held_path_ranges, false)))
           -- Budgets in this order: the task's own, its graph's, then the night's and the agents'.
           AND (t.max_cost_usd IS NULL OR t.cost_usd < t.max_cost_usd OR t.cost_usd = 0)
           AND (graph.usd_left IS NULL
                OR (graph.usd_left > 0
                    AND next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) <= graph.usd_left))
           AND next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd)
               <= least(lane.night_usd_left, coalesce(agent_usd_left, 'Infinity'::numeric))
         ORDER BY t.sort_key, t.id
         LIMIT lane.room) task
$$;
