-- Pools are locked by advisory locks and not by their rows: Postgres lets new sharers of a row pass a
-- transaction that waits for it exclusively, so refilling slots could keep a dispatcher or a pause waiting
-- for seconds; advisory locks are granted in the order of the requests. docs/architecture.md, "Lock order",
-- says when each lock may be taken. A statement that reads what a lock protects comes after it, with a
-- snapshot of its own.

-- name: lock_all_pools
-- No claim is in progress, and none begins, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtext('overnight.pools'));

-- name: lock_all_pools_shared
-- For a claim without a pool: it excludes only transactions that lock all pools.
SELECT pg_advisory_xact_lock_shared(hashtext('overnight.pools'));

-- name: lock_pool
-- Lock the pool while its free slots are counted, so that no two dispatchers count the same slot. Every
-- claim also shares the lock on all pools.
SELECT pg_advisory_xact_lock_shared(hashtext('overnight.pools')),
       pg_advisory_xact_lock(hashtext('overnight.pool'), hashtext(:pool));

-- name: lock_pool_shared
-- For a worker that claims for its own slot: many may at once, and a pause comes before or after each.
SELECT pg_advisory_xact_lock_shared(hashtext('overnight.pools')),
       pg_advisory_xact_lock_shared(hashtext('overnight.pool'), hashtext(:pool));

-- name: lock_slot_cap
-- With a cap on the slots of all pools only one transaction counts at a time; the lock of one pool would
-- let two pools count the same free slot.
SELECT pg_advisory_xact_lock(hashtext('overnight.slots'));

-- name: pool_capacity
SELECT slots, agents, capabilities, types, usd_left, singles, bundles, in_all_pools, is_open, paused, lanes_due
  FROM pool_state(:pool, :liveness);

-- name: claim
-- Claim tasks of the locked lanes for the free slots, in fair order and within every limit. `chosen` and
-- the CTEs before it are the same in next_pass (tests compare them).
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
), packed AS MATERIALIZED (
    -- Distribute short tasks evenly over the messages that single tasks leave, keeping those of a user
    -- together, because the workers that settle them then seldom wait for the same lane.
    SELECT id, granted, place,
           CASE WHEN NOT is_single THEN (CAST(:bundles AS uuid[]))[
               1 + (sum(share) OVER (PARTITION BY is_single ORDER BY place ROWS UNBOUNDED PRECEDING) - share)
                   * (:messages - count(*) FILTER (WHERE is_single) OVER ())
                   / sum(share) OVER (PARTITION BY is_single)] END AS bundle
      FROM chosen
), addressed AS MATERIALIZED (
    -- A bundle of one task is sent as a single task.
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
              t.context_refs, t.execution, t.failures_reset_epoch, t.claimed_at, t.started_at
), inserted AS (
    INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, bundle, granted_seconds, claimed_at, started_at)
    SELECT id, epoch, user_id, token, :pool, :holder, bundle, reserved_seconds, claimed_at, started_at FROM taken
), skipped AS (
    -- Skip lanes without a candidate until they change; otherwise they would fill every pass. A lane that
    -- became ineligible after it was chosen, because of a pause, was not judged: it would stay skipped after
    -- the resume.
    UPDATE lanes l
       SET skipped_by_pools = array_append(l.skipped_by_pools, :skip_as)
     WHERE l.user_id = ANY (CAST(:users AS uuid[]))
       AND l.eligible
       AND l.user_id <> ALL (ARRAY(SELECT user_id FROM candidate))
       AND NOT (:skip_as = ANY (l.skipped_by_pools))
       -- A caller that names one task does not judge the whole lane.
       AND CAST(:only AS uuid) IS NULL
       AND :skips_lanes
)
SELECT id, user_id, epoch, token, type, attempts, max_attempts, bundle,
       -- The dispatcher only publishes; it needs nothing of the task's content.
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
       CASE WHEN :starts THEN execution END AS execution,
       CASE WHEN :starts AND attempts > 0 THEN spent_runs(id, failures_reset_epoch) END AS failures
  FROM taken
 ORDER BY bundle, id;

-- name: claim_single
-- The same for one task: the first in the fair order. No other task of the batch has taken a lock, reserved
-- hours or money, or used a slot, so the checks of each candidate are sufficient. From `taken` on it is the
-- same as claim (tests compare them).
WITH candidate AS MATERIALIZED (
    SELECT *
      FROM claim_candidates(CAST(:users AS uuid[]), CAST(:per_lane AS int), CAST(:only AS uuid), CAST(:capabilities AS text[]),
                            CAST(:types AS text[]), CAST(:usd_left AS numeric),
                            CAST(:bundle_seconds AS float8), CAST(:bundle_max AS int))
), addressed AS MATERIALIZED (
    SELECT id, granted, (CAST(:tokens AS uuid[]))[1] AS token, CAST(NULL AS uuid) AS bundle
      FROM candidate
     ORDER BY active, last_served_at, plan_weight DESC, user_id, sort_key, id
     LIMIT 1
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
              t.context_refs, t.execution, t.failures_reset_epoch, t.claimed_at, t.started_at
), inserted AS (
    INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, bundle, granted_seconds, claimed_at, started_at)
    SELECT id, epoch, user_id, token, :pool, :holder, bundle, reserved_seconds, claimed_at, started_at FROM taken
), skipped AS (
    -- Skip lanes without a candidate until they change; otherwise they would fill every pass. A lane that
    -- became ineligible after it was chosen, because of a pause, was not judged: it would stay skipped after
    -- the resume.
    UPDATE lanes l
       SET skipped_by_pools = array_append(l.skipped_by_pools, :skip_as)
     WHERE l.user_id = ANY (CAST(:users AS uuid[]))
       AND l.eligible
       AND l.user_id <> ALL (ARRAY(SELECT user_id FROM candidate))
       AND NOT (:skip_as = ANY (l.skipped_by_pools))
       -- A caller that names one task does not judge the whole lane.
       AND CAST(:only AS uuid) IS NULL
       AND :skips_lanes
)
SELECT id, user_id, epoch, token, type, attempts, max_attempts, bundle,
       -- The dispatcher only publishes; it needs nothing of the task's content.
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
       CASE WHEN :starts THEN execution END AS execution,
       CASE WHEN :starts AND attempts > 0 THEN spent_runs(id, failures_reset_epoch) END AS failures
  FROM taken
 ORDER BY bundle, id;

-- name: has_more_lanes
-- Whether another pass may find tasks: an eligible lane that is not skipped.
SELECT EXISTS (SELECT 1 FROM lanes_in_fair_order(:skip_as, '{}', 1));

-- name: notify_task_ready
-- Tell SQL listeners that a task is ready which no pool has claimed. No row if there is none.
SELECT pg_notify('task_ready', '')
 WHERE EXISTS (SELECT 1 FROM lanes WHERE eligible);
