-- The fair order between users is that of the function lanes_in_fair_order
-- (schema/14_gate.sql). A claim locks lanes in this order. The
-- statement `claim` (claim.sql, window `fair_order`) distributes the free slots over the tasks of the locked
-- lanes in the same order: one slot for each user before a second one for any user.

-- name: lock_lanes_in_fair_order
-- Lock lanes in fair order: at least `min_lanes` of them, and as many as should have room for `limit` tasks.
-- Lanes that another transaction has locked are left to the next pass, and so are lanes that this pool
-- skips. The next statement decides about tasks, with a snapshot after the locks. `room` is how many tasks
-- of the lane may start, so that the claim prepares no more tokens than it can use.
WITH next AS MATERIALIZED (
    SELECT user_id, active, last_served_at, plan_weight, room
      FROM lanes_in_fair_order(:skip_as, '{}', CAST(:limit AS int) + 4 * CAST(:min_lanes AS int))
), locked AS MATERIALIZED (
    SELECT lane.user_id, greatest(lane.room, 0) AS room
      FROM (SELECT user_id FROM next ORDER BY active, last_served_at, plan_weight DESC) candidate
     CROSS JOIN LATERAL (SELECT user_id, least(ready, max_active - active) AS room
                           FROM lanes WHERE user_id = candidate.user_id FOR NO KEY UPDATE SKIP LOCKED) lane
     LIMIT (SELECT greatest(CAST(:min_lanes AS int), ceil(CAST(:limit AS int) / avg(room))::int) FROM next)
)
SELECT user_id, room FROM locked;

-- name: read_pool_and_lock_lanes
-- pool_capacity and lock_lanes_in_fair_order in one statement, for a worker that claims for its own slot.
-- `next` and `locked` are the same as there (tests compare them).
WITH next AS MATERIALIZED (
    SELECT user_id, active, last_served_at, plan_weight, room
      FROM lanes_in_fair_order(:skip_as, '{}', CAST(:limit AS int) + 4 * CAST(:min_lanes AS int))
), locked AS MATERIALIZED (
    SELECT lane.user_id, greatest(lane.room, 0) AS room
      FROM (SELECT user_id FROM next ORDER BY active, last_served_at, plan_weight DESC) candidate
     CROSS JOIN LATERAL (SELECT user_id, least(ready, max_active - active) AS room
                           FROM lanes WHERE user_id = candidate.user_id FOR NO KEY UPDATE SKIP LOCKED) lane
     LIMIT (SELECT greatest(CAST(:min_lanes AS int), ceil(CAST(:limit AS int) / avg(room))::int) FROM next)
)
SELECT slots, agents, capabilities, types, usd_left, singles, bundles, in_all_pools, is_open, paused, lanes_due,
       ARRAY(SELECT user_id FROM locked) AS users,
       (SELECT coalesce(sum(room), 0)::int FROM locked) AS room
  FROM pool_state(:pool, :liveness);

-- name: prepare_idle_claim
-- read_pool_and_lock_lanes for an idle slot. The claim is sent in the same batch, so its parameters are stored
-- in the session instead of being returned. The worker runs the task itself, so its own capabilities count.
-- A worker that may not claim gets no lanes.
WITH next AS MATERIALIZED (
    SELECT user_id, active, last_served_at, plan_weight, room
      FROM lanes_in_fair_order(:skip_as, '{}', CAST(:limit AS int) + 4 * CAST(:min_lanes AS int))
), locked AS MATERIALIZED (
    SELECT lane.user_id, greatest(lane.room, 0) AS room
      FROM (SELECT user_id FROM next ORDER BY active, last_served_at, plan_weight DESC) candidate
     CROSS JOIN LATERAL (SELECT user_id, least(ready, max_active - active) AS room
                           FROM lanes WHERE user_id = candidate.user_id FOR NO KEY UPDATE SKIP LOCKED) lane
     LIMIT (SELECT greatest(CAST(:min_lanes AS int), ceil(CAST(:limit AS int) / avg(room))::int) FROM next)
)
SELECT set_config('overnight.users',
                  CASE WHEN pool.is_open AND NOT pool.paused AND pool.slots > pool.singles + pool.bundles
                            AND coalesce(pool.in_all_pools < CAST(:slots_max AS int), true)
                            AND :agent = ANY (pool.agents)
                       THEN CAST(ARRAY(SELECT user_id FROM locked) AS text) ELSE '{}' END, true),
       set_config('overnight.capabilities', coalesce(CAST(worker.capabilities AS text), '{}'), true),
       set_config('overnight.types', coalesce(CAST(worker.types AS text), ''), true),
       set_config('overnight.usd_left', coalesce(CAST(worker.budget_remaining_usd AS text), ''), true)
  FROM pool_state(:pool, :liveness) pool
  LEFT JOIN agents worker ON worker.id = :agent;
