-- name: lock_pool
-- Free slots are counted while this row is held, so two dispatchers never count the same slot.
SELECT name FROM pools WHERE name = :pool AND NOT paused FOR UPDATE;

-- name: lock_pool_shared
-- For an agent that goes on in its own slot: many may, while a pause, which writes this row, comes
-- before or after each. It holds lanes already; whoever holds a pool waits for no lane.
SELECT name FROM pools WHERE name = :pool AND NOT paused FOR SHARE;

-- name: lock_slot_cap
-- The deployment's cap on slots is counted by one at a time, whichever pool it is for: each pool's own
-- lock would let two count the same free slot. After a pool's lock and before any lane's.
SELECT pg_advisory_xact_lock(hashtext('overnight.slots'));

-- name: pool_capacity
-- Who offers slots in the pool, and what holds them: single tasks and bundles, of the pool and of
-- the whole deployment. Bounded by the slots there are. The slots of draining workers do not count, so
-- neither does what they still run in the pool. Also whether the pool is there and open, whether
-- everything is paused, and whether any lane is due for its new month, its night window or the end
-- of its night. Types come as the different sets that workers know: mostly all know the same.
WITH deployment AS (
    SELECT offer.slots, offer.agents, offer.capabilities, offer.types, offer.usd_left,
           held.singles, held.bundles, held.in_all_pools,
           -- A draining worker lives: its types are not anybody's to fail. An agent outside comes
           -- and goes, and what it alone knows waits for it for a day.
           (SELECT jsonb_agg(DISTINCT types)
              FROM agents
             WHERE (status = 'active' OR status = 'draining')
               AND last_heartbeat_at > clock() - make_interval(secs => coalesce(stale_after_seconds, :liveness))
                OR kind = 'pull' AND last_heartbeat_at > clock() - interval '1 day') AS all_types,
           EXISTS (SELECT 1 FROM pools WHERE name = :pool AND NOT paused) AS is_open,
           EXISTS (SELECT 1 FROM pauses WHERE scope = 'all' AND resumed_at IS NULL) AS paused,
           EXISTS (SELECT 1 FROM lanes WHERE due_at <= clock()) AS lanes_due
      FROM (SELECT coalesce(sum(slots), 0)::int AS slots,
                   coalesce(array_agg(id), '{}') AS agents,
                   jsonb_agg(capabilities) AS capabilities,
                   jsonb_agg(DISTINCT types) AS types,
                   min(budget_remaining_usd) AS usd_left
              FROM agents
             WHERE pool = :pool
               AND status = 'active'
               AND last_heartbeat_at > clock() - make_interval(secs => coalesce(stale_after_seconds, :liveness))) offer
     CROSS JOIN (SELECT count(*) FILTER (WHERE here AND bundle IS NULL) AS singles,
                        count(DISTINCT bundle) FILTER (WHERE here) AS bundles,
                        count(*) FILTER (WHERE bundle IS NULL) + count(DISTINCT bundle) AS in_all_pools
                   FROM (SELECT bundle,
                                pool = :pool
                                AND claimed_by <> ALL (ARRAY(SELECT id FROM agents
                                                              WHERE pool = :pool AND status = 'draining')) AS here
                           FROM tasks
                          WHERE state IN ('claimed', 'running', 'validating')) active) held
)
SELECT * FROM deployment;

-- name: lock_lanes_to_serve
-- Users with room and ready work, the least served first: at least `min_lanes` of them, and as many as
-- should have room for `limit` tasks. Lanes that are locked (by a submit, say, or three other passes)
-- are passed over and met on the next pass; lanes this pool looked into in vain wait until something about them
-- changes. Nothing is judged here: the next statement sees fresh rows. Each lane says for how many of
-- its tasks there is room, so that no more is prepared for than can come.
WITH next AS MATERIALIZED (
    SELECT user_id, active, last_served_at, plan_weight, least(ready, max_active - active) AS room
      FROM lanes
     WHERE eligible
       AND NOT (:skip_as = ANY (skipped_by_pools))
     ORDER BY active, last_served_at, plan_weight DESC
     LIMIT CAST(:limit AS int) + 4 * CAST(:min_lanes AS int)
), locked AS MATERIALIZED (
    SELECT held.user_id, greatest(held.room, 0) AS room
      FROM (SELECT user_id FROM next ORDER BY active, last_served_at, plan_weight DESC) wanted
     CROSS JOIN LATERAL (SELECT user_id, least(ready, max_active - active) AS room
                           FROM lanes WHERE user_id = wanted.user_id FOR NO KEY UPDATE SKIP LOCKED) held
     LIMIT (SELECT greatest(CAST(:min_lanes AS int), ceil(CAST(:limit AS int) / avg(room))::int) FROM next)
)
SELECT user_id, room FROM locked;

-- name: read_pool_and_lock_lanes (begins as pool_capacity through deployment and lock_lanes_to_serve through locked)
-- Both at once, for a slot that knows what it wants before it knows what there is.
SELECT deployment.*,
       ARRAY(SELECT user_id FROM locked) AS users,
       (SELECT coalesce(sum(room), 0)::int FROM locked) AS room
  FROM deployment;

-- name: prepare_idle_claim (begins as pool_capacity through deployment and lock_lanes_to_serve through locked)
-- For a slot that would begin one task and waits for nobody's judgement: what the claim that travels
-- with this is to go by is noted for it. The agent runs the task itself, so its own card counts. It
-- is shown no lane if it may take nothing.
SELECT set_config('overnight.users',
                  CASE WHEN deployment.is_open AND NOT deployment.paused AND deployment.slots > deployment.singles + deployment.bundles
                            AND coalesce(deployment.in_all_pools < CAST(:slots_max AS int), true)
                            AND :agent = ANY (deployment.agents)
                       THEN CAST(ARRAY(SELECT user_id FROM locked) AS text) ELSE '{}' END, true),
       set_config('overnight.capabilities', coalesce(CAST(own.capabilities AS text), '{}'), true),
       set_config('overnight.types', coalesce(CAST(nullif(own.types, '{}') AS text), ''), true),
       set_config('overnight.usd_left', coalesce(CAST(own.budget_remaining_usd AS text), ''), true)
  FROM deployment
  LEFT JOIN agents own ON own.id = :agent;

-- name: claim
-- Fill the free slots with ready tasks of the locked lanes, in fair order, within every limit. A slot
-- that goes on by itself begins them at once, and is answered like one that starts claims.
WITH held AS MATERIALIZED (
    -- The few keys that active tasks of these users hold, read once and not for each task.
    SELECT user_id, array_agg(key) AS keys, range_agg(path_range) AS paths
      FROM held_locks
     WHERE user_id = ANY (CAST(:users AS uuid[]))
     GROUP BY user_id
), lane AS MATERIALIZED (
    SELECT user_id, active, last_served_at, plan_weight, max_task_seconds, carry_over_until,
           least(max_active - active, :per_lane) AS room,
           coalesce(limit_seconds - used_seconds - reserved_seconds, 'Infinity'::numeric) AS seconds_left,
           held.keys AS held_keys, held.paths AS held_paths,
           least(coalesce(night_limit_usd - night_spent_usd - night_reserved_usd, 'Infinity'::numeric),
                 coalesce(CAST(:usd_left AS numeric), 'Infinity'::numeric)) AS usd_left,
           coalesce(night_limit_usd - night_spent_usd - night_reserved_usd, 'Infinity'::numeric) AS night_left,
           -- Mostly no graph has a budget; then none is asked for its own.
           EXISTS (SELECT 1 FROM dags g
                    WHERE g.user_id = lanes.user_id
                      AND g.budget_ceiling_usd IS NOT NULL AND g.finished_at IS NULL) AS has_budgets
      FROM lanes
      LEFT JOIN held USING (user_id)
     WHERE user_id = ANY (CAST(:users AS uuid[]))
       AND eligible
       -- One whose month, night or window is over by now would be judged by what no longer holds:
       -- it is the next pass's, once it was brought to the present. Lanes are not looked for by this.
       AND coalesce(due_at > clock(), true)
       -- An agent that has used up its budget is given nothing, not even what is thought to be free.
       AND coalesce(CAST(:usd_left AS numeric) > 0, true)
), candidate AS MATERIALIZED (
    -- The user's first tasks that this pool could run, whose locks are free and whose time still
    -- fits; a walk down one index that stops as soon as the user's room is filled.
    SELECT lane.user_id, lane.active, lane.last_served_at, lane.plan_weight, lane.seconds_left, lane.night_left, top.*
      FROM lane
     CROSS JOIN LATERAL (
        SELECT t.id, t.dag_id, t.locks, t.sort_key, next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) AS usd,
               graph.usd_left AS graph_left,
               least(coalesce(t.timeout_seconds, lane.max_task_seconds), lane.max_task_seconds) AS granted,
               p.seconds < :bundle_seconds AND NOT t.runs_alone AS quick,
               -- The share of a slot a task needs, in millionths: all of it, unless its type is
               -- known to be quick.
               CASE WHEN t.runs_alone OR p.seconds IS NULL THEN 1000000
                    ELSE trunc(1e6 * least(1, greatest(p.seconds / CAST(:bundle_seconds AS float8),
                                                       1.0 / CAST(:bundle_max AS int))))::int
                    END AS share
          FROM tasks t
          LEFT JOIN type_durations p ON p.type = t.type
          LEFT JOIN LATERAL (
            SELECT g.budget_ceiling_usd - g.spent_usd - g.reserved_usd AS usd_left
              FROM dags g
             -- Asked for NULL, the index answers without being looked at.
             WHERE g.id = CASE WHEN lane.has_budgets THEN t.dag_id END) graph ON true
         WHERE t.user_id = lane.user_id
           AND t.state = 'ready'
           AND coalesce(t.deadline_at > clock(), true)
           AND coalesce(t.created_at < lane.carry_over_until, true)
           AND t.required_capabilities <@ CAST(:capabilities AS text[])
           AND t.type <> ALL (CAST(:elsewhere AS text[]))
           AND (CAST(:types AS text[]) IS NULL OR t.type = ANY (CAST(:types AS text[])))
           AND least(coalesce(t.timeout_seconds, lane.max_task_seconds), lane.max_task_seconds) <= lane.seconds_left
           AND (CAST(:only AS uuid) IS NULL OR t.id = CAST(:only AS uuid))
           AND (t.locks IS NULL OR lane.held_keys IS NULL
                OR NOT (t.locks && lane.held_keys OR coalesce(t.lock_paths && lane.held_paths, false)))
           -- In this order: the task's own ceiling, its graph's, then the agents' and the night's.
           AND (t.max_cost_usd IS NULL OR t.cost_usd < t.max_cost_usd OR t.cost_usd = 0)
           AND (graph.usd_left IS NULL
                OR (graph.usd_left > 0
                    AND next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) <= graph.usd_left))
           AND next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) <= lane.usd_left
         ORDER BY t.sort_key, t.id
         LIMIT lane.room) top
), unlocked AS MATERIALIZED (
    -- Two tasks of one lock in one batch: only the first may go. What several keys or a path have in
    -- common with others is not looked into: such a task goes before any other locked one of its
    -- user, and alone among them, or waits for the next pass.
    SELECT c.*,
           row_number() OVER (PARTITION BY user_id, coalesce(locks[1], id::text) ORDER BY sort_key, id) AS of_key,
           row_number() OVER locked_order AS of_locked,
           bool_or(cardinality(locks) > 1 OR starts_with(locks[1], 'path:')) OVER locked_order AS after_wide
      FROM candidate c
    WINDOW locked_order AS (PARTITION BY user_id, locks IS NULL ORDER BY sort_key, id ROWS UNBOUNDED PRECEDING)
), affordable AS MATERIALIZED (
    -- Hours and money are promised one task after the other, so a batch cannot promise more than
    -- is left.
    SELECT u.*, (sum(share) OVER lane_order + 999999) / 1000000 AS slots_worth,
           sum(granted) OVER lane_order AS promised,
           sum(usd) OVER lane_order AS promised_usd,
           CASE WHEN graph_left IS NOT NULL THEN sum(usd) OVER graph_order END AS promised_of_graph
      FROM unlocked u
     WHERE locks IS NULL OR of_locked = 1 OR (of_key = 1 AND NOT after_wide)
    WINDOW lane_order AS (PARTITION BY user_id ORDER BY sort_key, id ROWS UNBOUNDED PRECEDING),
           graph_order AS (PARTITION BY user_id, CASE WHEN graph_left IS NOT NULL THEN dag_id END
                           ORDER BY sort_key, id ROWS UNBOUNDED PRECEDING)
), queued AS MATERIALIZED (
    -- A slot's worth for everybody before a second for anybody.
    SELECT id, granted, quick, share, share = 1000000 AS single,
           count(*) FILTER (WHERE share = 1000000) OVER fair_order AS singles,
           (coalesce(sum(share) FILTER (WHERE share < 1000000) OVER fair_order, 0) + 999999) / 1000000 AS bundles,
           row_number() OVER fair_order AS place
      FROM affordable
     WHERE promised <= seconds_left
       AND promised_usd <= night_left
       AND (graph_left IS NULL OR promised_of_graph <= graph_left)
    WINDOW fair_order AS (ORDER BY active + slots_worth, last_served_at, plan_weight DESC, user_id, sort_key, id
                          ROWS UNBOUNDED PRECEDING)
), chosen AS MATERIALIZED (
    -- As much as the free slots can carry, a whole slot for each message; a slot that goes on by
    -- itself takes only what is quick. Materialised: a plain IN (… LIMIT n) may be re-evaluated and
    -- take more than n.
    SELECT id, granted, share, single, place
      FROM queued
     WHERE singles + bundles <= CASE WHEN quick THEN CAST(:messages AS int) ELSE CAST(:free AS int) END
     ORDER BY place
     LIMIT :limit
), packed AS MATERIALIZED (
    -- Quick tasks are spread evenly over the messages that single tasks leave, a user's together:
    -- those who record them then seldom wait for each other's lanes.
    SELECT id, granted, place,
           CASE WHEN NOT single THEN (CAST(:bundles AS uuid[]))[
               1 + (sum(share) OVER (PARTITION BY single ORDER BY place ROWS UNBOUNDED PRECEDING) - share)
                   * (:messages - count(*) FILTER (WHERE single) OVER ())
                   / sum(share) OVER (PARTITION BY single)] END AS bundle
      FROM chosen
), addressed AS MATERIALIZED (
    -- One alone is no bundle.
    SELECT id, granted, (CAST(:tokens AS uuid[]))[place] AS token,
           CASE WHEN count(*) OVER (PARTITION BY bundle) > 1 THEN bundle END AS bundle
      FROM packed
), taken AS (
    UPDATE tasks t
       SET state = :target,
           epoch = t.epoch + 1,
           token = addressed.token,
           claimed_by = :holder,
           pool = :pool,
           claimed_at = CAST(:now AS timestamptz),
           expires_at = CAST(:now AS timestamptz) + make_interval(secs => :ttl),
           reserved_seconds = addressed.granted,
           reserved_usd = nullif(next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd), 0),
           bundle = addressed.bundle,
           started_at = CASE WHEN :starts THEN CAST(:now AS timestamptz) END,
           progress = NULL
      FROM addressed
     WHERE t.id = addressed.id
       AND t.state = ANY (CAST(:sources AS text[]))
    RETURNING t.id, t.user_id, t.dag_id, t.epoch, t.token, t.type, t.title, t.attempts, t.max_attempts, t.bundle,
              t.payload, t.spec, t.retry, t.reserved_seconds, t.timeout_seconds, t.max_cost_usd, t.cost_usd, t.has_dag_row,
              t.context_refs, t.failures_reset_epoch, t.claimed_at, t.started_at
), opened AS (
    INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, bundle, granted_seconds, claimed_at, started_at)
    SELECT id, epoch, user_id, token, :pool, :holder, bundle, reserved_seconds, claimed_at, started_at FROM taken
), parked AS (
    -- Lanes with nothing for this pool step aside, or they would fill every pass for ever.
    UPDATE lanes l
       SET skipped_by_pools = array_append(l.skipped_by_pools, :skip_as)
     WHERE l.user_id = ANY (CAST(:users AS uuid[]))
       AND l.user_id <> ALL (ARRAY(SELECT user_id FROM candidate))
       -- Whoever names a user looks into the lane again and again.
       AND NOT (:skip_as = ANY (l.skipped_by_pools))
       AND CAST(:only AS uuid) IS NULL
       AND :skips_lanes
)
SELECT id, user_id, epoch, token, type, attempts, max_attempts, bundle,
       -- A publisher shows nothing of what a task is about, and need not be told.
       CASE WHEN :starts THEN dag_id END AS dag_id,
       CASE WHEN :starts THEN title END AS title,
       CASE WHEN :starts THEN payload END AS payload,
       CASE WHEN :starts THEN spec END AS spec,
       CASE WHEN :starts THEN CAST(retry AS text) END AS retry,
       CASE WHEN :starts THEN reserved_seconds END AS granted_seconds,
       CASE WHEN :starts THEN timeout_seconds IS NULL OR reserved_seconds < timeout_seconds END AS plan_limited,
       CASE WHEN :starts THEN max_cost_usd END AS ceiling_usd,
       CASE WHEN :starts THEN cost_usd END AS spent_usd,
       CASE WHEN :starts THEN dag_id <> id OR has_dag_row OR context_refs IS NOT NULL END AS is_linked,
       CASE WHEN :starts AND attempts > 0 THEN spent_runs(id, failures_reset_epoch) END AS failures
  FROM taken
 ORDER BY bundle, id;

-- name: claim_single (begins as claim through candidate) (ends as claim from taken)
-- The same where one task is all that can come: whoever is first in the order above. Nobody before it
-- has taken a lock, promised hours or money, or filled a slot, so that what is asked of each
-- candidate is all there is to ask.
, addressed AS MATERIALIZED (
    SELECT id, granted, (CAST(:tokens AS uuid[]))[1] AS token, CAST(NULL AS uuid) AS bundle
      FROM (SELECT id, granted, quick
              FROM candidate
             ORDER BY active, last_served_at, plan_weight DESC, user_id, sort_key, id
             LIMIT 1) first
     WHERE CASE WHEN quick THEN CAST(:messages AS int) ELSE CAST(:free AS int) END > 0
)

-- name: has_more_lanes
-- Whether another pass might find work: lanes nobody has looked into in vain.
SELECT EXISTS (SELECT 1 FROM lanes WHERE eligible AND NOT (:skip_as = ANY (skipped_by_pools)));
