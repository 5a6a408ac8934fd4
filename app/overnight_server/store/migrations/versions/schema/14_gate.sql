-- What the gate reads. The claim, explain and forecast call these functions, so that they cannot differ.
-- The planner inlines them: STABLE, one SELECT, no SECURITY DEFINER.

-- The state of a pool: its slots, the workers that offer them, and what occupies them.
--   slots, agents         slots and ids of live workers; those of draining workers do not count
--   capabilities, types   those that each live worker declares; equal lists of types appear once, and NULL is a
--                         worker that accepts every type
--   usd_left              the smallest remaining budget of these workers; NULL without budgets
--   singles, bundles      slots occupied by single tasks and by bundles, except on draining workers
--   in_all_pools          occupied slots of all pools
--   is_open, paused       whether the pool exists and is not paused; whether everything is paused
--   lanes_due             whether a lane must be refreshed: a month, window or night has ended
-- The cost is bounded by the number of slots, not of tasks.
CREATE FUNCTION pool_state(of_pool text, liveness_seconds float8)
RETURNS TABLE (slots int, agents text[], capabilities jsonb, types jsonb, usd_left numeric, singles bigint, bundles bigint,
               in_all_pools bigint, is_open boolean, paused boolean, lanes_due boolean)
LANGUAGE sql STABLE
AS $$
    SELECT live.slots, live.agents, live.capabilities, live.types, live.usd_left,
           occupied.singles, occupied.bundles, occupied.in_all_pools,
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

-- The first `max_lanes` lanes in fair order that a pool may look at, without those in `passed_over`: the user
-- with the fewest active slots first, then the lane served longest ago, then the plan with the greater weight.
-- The recursion reads one lane of each set of skipping pools; there are few such sets, and the lanes that this
-- pool skips are not read, however many they are.
CREATE FUNCTION lanes_in_fair_order(skip_as text, passed_over uuid[], max_lanes int)
RETURNS TABLE (user_id uuid, active int, last_served_at timestamptz, plan_weight smallint, room int)
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE skip_set AS (
        (SELECT l.skipped_by_hash AS hash, l.skipped_by_pools AS pools
           FROM lanes l
          WHERE l.eligible
          ORDER BY l.skipped_by_hash
          LIMIT 1)
        UNION ALL
        SELECT next.hash, next.pools
          FROM skip_set s
         CROSS JOIN LATERAL (SELECT l.skipped_by_hash AS hash, l.skipped_by_pools AS pools
                               FROM lanes l
                              WHERE l.eligible AND l.skipped_by_hash > s.hash
                              ORDER BY l.skipped_by_hash
                              LIMIT 1) next
    )
    SELECT lane.user_id, lane.active, lane.last_served_at, lane.plan_weight, lane.room
      FROM skip_set s
     CROSS JOIN LATERAL (SELECT l.user_id, l.active, l.last_served_at, l.plan_weight,
                                least(l.ready, l.max_active - l.active) AS room
                           FROM lanes l
                          WHERE l.eligible
                            AND l.skipped_by_hash = s.hash
                            AND NOT (skip_as = ANY (l.skipped_by_pools))
                            AND l.user_id <> ALL (passed_over)
                          ORDER BY l.active, l.last_served_at, l.plan_weight DESC
                          LIMIT max_lanes) lane
     WHERE NOT (skip_as = ANY (s.pools))
     ORDER BY lane.active, lane.last_served_at, lane.plan_weight DESC
     LIMIT max_lanes
$$;

-- The first startable tasks of each of these users, at most `per_lane` and no more than may run: tasks
-- that the pool can run, whose locks are free, and whose time and cost still fit. For each user,
-- Postgres reads one index in order and stops when it has found enough tasks. If most of the first tasks
-- of a long queue wait for locks, it reads the tasks of each lock group in order instead, and passes over
-- groups whose locks are held, however many tasks they have.
--   granted      seconds that the run would be allowed and that the claim reserves
--   usd          its expected cost, which the claim reserves
--   dag_usd_left what the budget of its graph leaves; NULL without one
--   share        its part of a slot in millionths; all of it unless the type is short
-- An agent without budget gets nothing, not even tasks that are expected to cost nothing.
CREATE FUNCTION claim_candidates(users uuid[], per_lane int, only_task uuid, capabilities text[], only_types text[], agent_usd_left numeric, bundle_seconds float8, bundle_max int)
RETURNS TABLE (user_id uuid, active int, last_served_at timestamptz, plan_weight smallint,
               seconds_left numeric, night_usd_left numeric, id uuid, dag_id uuid, locks text[], sort_key float8,
               usd numeric, dag_usd_left numeric, granted int, share int)
LANGUAGE sql STABLE
AS $$
    WITH held AS MATERIALIZED (
        -- Read once, not for each task.
        SELECT h.user_id, array_agg(h.key) AS keys, range_agg(h.path_range) AS path_ranges
          FROM held_locks h
         WHERE h.user_id = ANY (users)
         GROUP BY h.user_id
    ), lane AS MATERIALIZED (
        SELECT l.user_id, l.active, l.ready, l.last_served_at, l.plan_weight, l.max_task_seconds, l.carry_over_until,
               least(l.max_active - l.active, per_lane) AS room,
               coalesce(l.limit_seconds - l.used_seconds - l.reserved_seconds, 'Infinity'::numeric) AS seconds_left,
               held.keys AS held_keys, held.path_ranges AS held_path_ranges,
               coalesce(l.night_limit_usd - l.night_spent_usd - l.night_reserved_usd, 'Infinity'::numeric) AS night_usd_left,
               -- Most users have no graph with a budget; then no graph is read.
               EXISTS (SELECT 1 FROM dags g
                        WHERE g.user_id = l.user_id
                          AND g.budget_ceiling_usd IS NOT NULL AND g.finished_at IS NULL) AS has_budgets,
               -- Whether the first tasks of a long queue contain too few whose locks are free. If so, many
               -- tasks may wait for the same locks, and they are passed over as groups.
               held.keys IS NOT NULL AND l.ready > 200
               AND (SELECT count(*)
                      FROM (SELECT t.locks, t.lock_paths
                              FROM tasks t
                             WHERE t.user_id = l.user_id AND t.state = 'ready'
                             ORDER BY t.sort_key, t.id
                             LIMIT 100 + least(l.max_active - l.active, per_lane)) first
                     WHERE NOT (coalesce(first.locks && held.keys, false)
                                OR coalesce(first.lock_paths && held.path_ranges, false)))
                   < least(l.max_active - l.active, per_lane) AS by_lock_group
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
           task.share
      FROM lane
     CROSS JOIN LATERAL (
        -- One task of each lock group, if they are used.
        WITH RECURSIVE lock_set AS (
            (SELECT lock_group(t.locks) AS number, t.locks, t.lock_paths
               FROM tasks t
              WHERE t.user_id = lane.user_id AND t.state = 'ready' AND lane.by_lock_group
              ORDER BY lock_group(t.locks)
              LIMIT 1)
            UNION ALL
            SELECT next.number, next.locks, next.lock_paths
              FROM lock_set s
             CROSS JOIN LATERAL (
                SELECT lock_group(t.locks) AS number, t.locks, t.lock_paths
                  FROM tasks t
                 WHERE t.user_id = lane.user_id AND t.state = 'ready' AND lock_group(t.locks) > s.number
                 ORDER BY lock_group(t.locks)
                 LIMIT 1) next
        )
        SELECT startable.*
          FROM (SELECT NULL::bigint AS lock_group, lane.room AS max_tasks WHERE NOT lane.by_lock_group
                UNION ALL
                -- Of the tasks with equal locks only one can run.
                SELECT s.number, CASE WHEN s.locks IS NULL THEN lane.room ELSE 1 END
                  FROM lock_set s
                 WHERE NOT (coalesce(s.locks && lane.held_keys, false)
                            OR coalesce(s.lock_paths && lane.held_path_ranges, false))) part
         CROSS JOIN LATERAL (
            SELECT t.id, t.dag_id, t.locks, t.sort_key, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) AS usd,
                   graph.usd_left AS dag_usd_left,
                   least(coalesce(t.timeout_seconds, lane.max_task_seconds), lane.max_task_seconds) AS granted,
                   CASE WHEN t.runs_alone OR d.seconds IS NULL THEN 1000000
                        ELSE trunc(1e6 * least(1, greatest(d.seconds / bundle_seconds, 1.0 / bundle_max)))::int
                        END AS share
              -- The whole queue, or one lock group; the other half is empty. Both are ordered here and not
              -- below, because the planner would sort all rows of a queue that it believes to be short. A limit
              -- that it does not know makes it read an index in order.
              FROM ((SELECT a.* FROM tasks a
                      WHERE a.user_id = lane.user_id AND a.state = 'ready' AND part.lock_group IS NULL
                      ORDER BY a.sort_key, a.id LIMIT lane.ready)
                    UNION ALL
                    (SELECT b.* FROM tasks b
                      WHERE b.user_id = lane.user_id AND b.state = 'ready' AND lock_group(b.locks) = part.lock_group
                      ORDER BY b.sort_key, b.id LIMIT lane.ready)) t
              LEFT JOIN type_durations d ON d.type = t.type
              LEFT JOIN LATERAL (
                SELECT g.budget_ceiling_usd - g.spent_usd - g.reserved_usd AS usd_left
                  FROM dags g
                 -- A search for NULL returns without reading the index.
                 WHERE g.id = CASE WHEN lane.has_budgets THEN t.dag_id END
                   AND g.user_id = lane.user_id
                 LIMIT 1) graph ON true
             WHERE (t.deadline_at IS NULL OR t.deadline_at > clock() OR has_started(t.id))
               AND coalesce(t.created_at < lane.carry_over_until, true)
               AND t.required_capabilities <@ capabilities
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
             LIMIT part.max_tasks) startable
         ORDER BY startable.sort_key, startable.id
         LIMIT lane.room) task
$$;
