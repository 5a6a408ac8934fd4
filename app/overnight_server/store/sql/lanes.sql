-- name: lock_lanes
-- The first statement of every transaction that changes the state of tasks: nobody else changes tasks of
-- these users meanwhile. Always in user order, so that two transactions cannot deadlock.
SELECT user_id
  FROM lanes
 WHERE user_id = ANY (CAST(:users AS uuid[]))
 ORDER BY user_id
   FOR NO KEY UPDATE;

-- name: read_lane
-- What intake reads before it inserts tasks; with the number of waiting tasks of all users if requested.
SELECT l.waiting, l.active, l.ready, l.used_seconds, l.reserved_seconds, l.limit_seconds,
       l.resets_at, l.due_at <= clock() AS is_due,
       u.max_pending, u.max_tasks_per_dag, u.on_exhausted,
       CASE WHEN :with_depth THEN total_depth() END AS total_depth
  FROM lanes l
  JOIN users u ON u.id = l.user_id
 WHERE l.user_id = :user_id;

-- name: depth
-- The number of waiting tasks of all users: a sum over connections, not over users or tasks.
SELECT total_depth() AS waiting;

-- name: lock_depth
-- Near the cap of the whole queue, submits of different users count one after the other. After the lane's lock.
SELECT pg_advisory_xact_lock(hashtext('overnight.depth'));

-- name: lock_due_lanes
-- Due lanes: the billing month or the night has ended, or the window opens or closes. Locked lanes are left
-- to the next pass.
SELECT user_id, resets_at <= clock() AS month_is_over, coalesce(window_changes_at <= clock(), false) AS window_changes,
       coalesce(night_ends_at <= clock(), false) AS night_is_over
  FROM lanes
 WHERE due_at <= clock()
 ORDER BY due_at
 LIMIT :limit
   FOR NO KEY UPDATE SKIP LOCKED;

-- name: start_billing_cycles
-- Start the current billing month, even if several were missed. Only due lanes change, so a second reset of
-- the same month has no effect. Seconds that were already charged to the new month, by runs that ended
-- between its start and this reset, are kept.
UPDATE lanes l
   SET cycle = due.cycle,
       cycle_started_at = cycle_boundary(due.anchor, due.cycle),
       resets_at = cycle_boundary(due.anchor, due.cycle + 1),
       used_seconds = coalesce((SELECT sum(e.seconds)
                                  FROM usage_ledger e
                                 WHERE e.user_id = l.user_id
                                   AND e.period_started_at = cycle_boundary(due.anchor, due.cycle)), 0),
       skipped_by_pools = '{}'
  FROM (SELECT u.id AS user_id, u.billing_anchor_at AS anchor,
               cycle_at(u.billing_anchor_at, clock()) AS cycle
          FROM users u
         WHERE u.id = ANY (CAST(:users AS uuid[]))) due
 WHERE l.user_id = due.user_id
   AND l.resets_at <= clock()
RETURNING l.user_id, l.cycle, l.resets_at;

-- name: read_windows
-- The night windows of users, and the instant for which they are computed.
SELECT id AS user_id, window_zone, window_from, window_to, window_at_closing, clock() AS now
  FROM users
 WHERE id = ANY (CAST(:users AS uuid[]));

-- name: write_windows
-- Write the computed state of windows; pools consider the lanes again.
UPDATE lanes l
   SET window_closed = state.closed,
       window_changes_at = state.changes_at,
       carry_over_until = state.carry_over_until,
       stops_runs_at = state.stops_runs_at,
       skipped_by_pools = '{}'
  FROM jsonb_to_recordset(CAST(:lane_states AS jsonb)) AS state(
           user_id uuid, closed boolean, changes_at timestamptz, carry_over_until timestamptz, stops_runs_at timestamptz)
 WHERE l.user_id = state.user_id;

-- name: end_nights
-- Reset nights that have ended; the next one starts with the first money spent in it.
UPDATE lanes l
   SET night_started_at = NULL, night_ends_at = NULL, night_spent_usd = 0,
       night_limit_usd = u.night_budget_usd,
       skipped_by_pools = '{}'
  FROM users u
 WHERE l.user_id = ANY (CAST(:users AS uuid[]))
   AND u.id = l.user_id
   AND l.night_ends_at <= clock()
RETURNING l.user_id;

-- name: release_night_waiters
-- Tasks that waited for a new night become ready.
UPDATE tasks
   SET state = :target, failure_reason = NULL, error = NULL
 WHERE user_id = ANY (CAST(:users AS uuid[]))
   AND awaits_budget = 'night'
   AND state = ANY (CAST(:sources AS text[]));

-- name: unskip_lane
UPDATE lanes SET skipped_by_pools = '{}' WHERE user_id = :user_id AND skipped_by_pools <> '{}';

-- name: unskip_lanes_of_pool
-- Let a pool consider every lane again, because its workers changed. Locked in user order as everywhere.
WITH skipped AS MATERIALIZED (
    SELECT user_id FROM lanes WHERE :pool = ANY (skipped_by_pools) ORDER BY user_id FOR NO KEY UPDATE
)
UPDATE lanes l
   SET skipped_by_pools = array_remove(l.skipped_by_pools, :pool)
  FROM skipped
 WHERE l.user_id = skipped.user_id;

-- name: unskip_all_lanes
-- The same for every pool: what a pool accepts depends on all its workers.
WITH skipped AS MATERIALIZED (
    SELECT user_id FROM lanes WHERE skipped_by_pools <> '{}' ORDER BY user_id FOR NO KEY UPDATE
)
UPDATE lanes l
   SET skipped_by_pools = '{}'
  FROM skipped
 WHERE l.user_id = skipped.user_id;
