-- name: audit_slice_of_lanes
-- The last user of the next slice; no row after the last lane. At most `max_rows` lanes, and none after about
-- `max_weight` waiting tasks, so that each check of the slice takes a bounded time.
SELECT user_id AS id
  FROM (SELECT user_id, sum(waiting) OVER (ORDER BY user_id ROWS UNBOUNDED PRECEDING) - waiting AS before
          FROM (SELECT user_id, waiting FROM lanes WHERE user_id >= :first ORDER BY user_id LIMIT :max_rows) next) l
 WHERE before <= :max_weight
 ORDER BY user_id DESC
 LIMIT 1;

-- name: audit_slice_of_graphs
-- The same for graphs; the weight is the number of tasks.
SELECT id
  FROM (SELECT id, sum(total) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - total AS before
          FROM (SELECT id, total FROM dags WHERE id >= :first ORDER BY id LIMIT :max_rows) next) g
 WHERE before <= :max_weight
 ORDER BY id DESC
 LIMIT 1;

-- name: audit_slice_of_tasks
-- The same for tasks; the weight is the number of events.
SELECT id
  FROM (SELECT id, sum(revision) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - revision AS before
          FROM (SELECT id, revision FROM tasks WHERE id >= :first ORDER BY id LIMIT :max_rows) next) t
 WHERE before <= :max_weight
 ORDER BY id DESC
 LIMIT 1;

-- name: audit_slice_of_bulks
-- The same for bulk operations, which all weigh the same.
SELECT id
  FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS before
          FROM (SELECT id FROM bulk_operations WHERE id >= :first ORDER BY id LIMIT :max_rows) next) b
 WHERE before <= :max_weight
 ORDER BY id DESC
 LIMIT 1;

-- name: audit_slice_of_storage
-- The same for the artifacts of users; the weight is their number.
SELECT user_id AS id
  FROM (SELECT user_id, sum(artifacts) OVER (ORDER BY user_id ROWS UNBOUNDED PRECEDING) - artifacts AS before
          FROM (SELECT user_id, artifacts FROM artifact_usage WHERE user_id >= :first ORDER BY user_id
                 LIMIT :max_rows) next) s
 WHERE before <= :max_weight
 ORDER BY user_id DESC
 LIMIT 1;

-- name: audit_position
-- The id with which the next pass continues in an area; NULL at the start of a round.
SELECT next_id FROM audit_positions WHERE area = :area;

-- name: set_audit_position
INSERT INTO audit_positions AS p (area, next_id, round_ended_at)
VALUES (:area, CAST(:next_id AS uuid), CASE WHEN :round_ended THEN clock() END)
    ON CONFLICT (area) DO UPDATE
   SET next_id = excluded.next_id,
       round_ended_at = coalesce(excluded.round_ended_at, p.round_ended_at);

-- name: restart_audit
-- The next pass begins every area at its start.
UPDATE audit_positions SET next_id = NULL;

-- name: record_finding
-- Add a finding, unless it is known, or its check has `max_open` findings already: a thousand rows say as much
-- as a million.
INSERT INTO audit_findings (check_name, subject, user_id, detail, status, ended_at)
SELECT :check_name, :subject, CAST(:user_id AS uuid), CAST(:detail AS jsonb),
       CASE WHEN :repaired THEN 'repaired' ELSE 'open' END, CASE WHEN :repaired THEN clock() END
 WHERE :repaired
    OR (SELECT count(*) FROM audit_findings WHERE check_name = :check_name AND ended_at IS NULL) < :max_open
    ON CONFLICT (check_name, subject) WHERE ended_at IS NULL DO NOTHING
RETURNING id;

-- name: known_findings
-- Those of these subjects whose finding is open or accepted, and whether the check has `max_open` of them.
SELECT array(SELECT subject FROM audit_findings
              WHERE check_name = :check_name AND ended_at IS NULL AND subject = ANY (CAST(:subjects AS text[]))) AS subjects,
       (SELECT count(*) FROM audit_findings WHERE check_name = :check_name AND ended_at IS NULL) >= :max_open AS is_full;

-- name: findings_to_check
-- The findings that were not checked for longest.
SELECT id, check_name, subject, user_id
  FROM audit_findings
 WHERE ended_at IS NULL
 ORDER BY checked_at, id
 LIMIT :limit;

-- name: update_finding
-- Record that a finding was checked again, and whether it is gone.
UPDATE audit_findings
   SET checked_at = clock(),
       status = CASE WHEN :gone THEN 'gone' ELSE status END,
       ended_at = CASE WHEN :gone THEN clock() END
 WHERE id = :finding_id
   AND ended_at IS NULL;

-- name: delete_ended_findings
SELECT delete_ended_findings(CAST(:older_than AS interval), :limit);

-- name: view_findings (not prepared)
-- Findings with the names of their users, newest first.
SELECT f.id, f.check_name, f.subject, f.user_id, u.name AS user, f.detail, f.status, f.found_at, f.checked_at, f.ended_at,
       f.accepted_by, f.note
  FROM audit_findings f
  LEFT JOIN users u ON u.id = f.user_id
 WHERE CAST(:states AS text[]) IS NULL OR f.status = ANY (CAST(:states AS text[]))
 ORDER BY f.id DESC
 LIMIT :limit;

-- name: count_findings
-- How many findings are open, how many were repaired in the last day, and when every area was last checked to
-- its end; NULL if one never was.
SELECT (SELECT count(*) FROM audit_findings WHERE ended_at IS NULL AND status = 'open') AS open,
       (SELECT count(*) FROM audit_findings
         WHERE ended_at > clock() - interval '1 day' AND status = 'repaired') AS repaired,
       (SELECT CASE WHEN count(round_ended_at) >= :areas THEN extract(epoch FROM clock() - min(round_ended_at))::float8 END
          FROM audit_positions) AS seconds_since_round;

-- name: accept_finding
UPDATE audit_findings
   SET status = 'accepted', accepted_by = :actor, note = nullif(:note, '')
 WHERE id = :finding_id
   AND status = 'open'
RETURNING id;

-- Checks. Each returns the rows of a slice, from the id `first` to the id `last`, that break one rule: the id
-- (`subject`), the user whose lane is locked while the finding is confirmed, and what was found. Every rule holds
-- in every snapshot of a correct database, so a statement that reads one snapshot needs no locks. Beside an OR a
-- scalar subquery is used instead of EXISTS, which Postgres might answer with a hash of the whole table.

-- Lanes ---------------------------------------------------------------------------------------------------------

-- name: audit_lane_missing
-- Every user has a lane, and every lane a user. A database trigger creates lanes, without a foreign key.
SELECT u.id AS subject, u.id AS user_id, jsonb_build_object('missing', 'lane') AS detail
  FROM users u
 WHERE u.id BETWEEN :first AND :last
   AND NOT EXISTS (SELECT 1 FROM lanes l WHERE l.user_id = u.id)
UNION ALL
SELECT l.user_id, l.user_id, jsonb_build_object('missing', 'user')
  FROM lanes l
 WHERE l.user_id BETWEEN :first AND :last
   AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = l.user_id);

-- name: audit_lane_counters
-- The counters of a lane equal what the user's rows add up to.
SELECT l.user_id AS subject, l.user_id,
       (SELECT jsonb_object_agg(name, jsonb_build_array(stored, counted))
          FROM (VALUES ('active', l.active::numeric, t.active::numeric),
                       ('ready', l.ready, t.ready),
                       ('waiting', l.waiting, t.waiting),
                       ('reserved_seconds', l.reserved_seconds, t.reserved),
                       ('night_reserved_usd', l.night_reserved_usd, t.reserved_usd),
                       ('used_seconds', l.used_seconds, u.used),
                       ('night_spent_usd', l.night_spent_usd, n.spent)) counter(name, stored, counted)
         WHERE stored <> counted) AS detail
  FROM lanes l
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE is_active(state)) AS active,
           count(*) FILTER (WHERE state = 'ready') AS ready,
           count(*) FILTER (WHERE is_waiting(state)) AS waiting,
           coalesce(sum(reserved_seconds), 0) AS reserved,
           coalesce(sum(reserved_usd), 0) AS reserved_usd
      FROM tasks
     WHERE user_id = l.user_id
       AND finished_at IS NULL) t
 CROSS JOIN LATERAL (
    SELECT coalesce(sum(e.seconds), 0) AS used
      FROM usage_ledger e
     WHERE e.user_id = l.user_id AND e.period_started_at = l.cycle_started_at) u
 CROSS JOIN LATERAL (
    -- Nothing reads the sum of a night that is over, and retention may have deleted its rows.
    SELECT CASE WHEN l.night_ends_at <= clock() THEN l.night_spent_usd ELSE coalesce(sum(s.usd), 0) END AS spent
      FROM spending s
     WHERE s.user_id = l.user_id AND s.night_started_at = l.night_started_at) n
 WHERE l.user_id BETWEEN :first AND :last
   AND ((l.active, l.ready, l.waiting, l.reserved_seconds, l.night_reserved_usd, l.used_seconds, l.night_spent_usd)
        IS DISTINCT FROM
        (t.active, t.ready, t.waiting, t.reserved, t.reserved_usd, u.used, n.spent)
        OR (l.night_started_at IS NULL) <> (l.night_ends_at IS NULL));

-- name: recount_lane
-- Recompute the counters of a lane; it is locked, so its tasks do not change meanwhile.
UPDATE lanes l
   SET active = t.active, ready = t.ready, waiting = t.waiting, reserved_seconds = t.reserved,
       used_seconds = (SELECT coalesce(sum(e.seconds), 0)
                         FROM usage_ledger e
                        WHERE e.user_id = l.user_id AND e.period_started_at = l.cycle_started_at),
       night_reserved_usd = t.reserved_usd,
       night_spent_usd = coalesce((SELECT sum(s.usd)
                                     FROM spending s
                                    WHERE s.user_id = l.user_id AND s.night_started_at = l.night_started_at), 0),
       skipped_by_pools = '{}'
  FROM (SELECT count(*) FILTER (WHERE is_active(state)) AS active,
               count(*) FILTER (WHERE state = 'ready') AS ready,
               count(*) FILTER (WHERE is_waiting(state)) AS waiting,
               coalesce(sum(reserved_seconds), 0) AS reserved,
               coalesce(sum(reserved_usd), 0) AS reserved_usd
          FROM tasks
         WHERE user_id = :user_id
           AND finished_at IS NULL) t
 WHERE l.user_id = :user_id;

-- name: repair_depth
-- Merge the counters of closed connections; return by how much the sum was wrong and was corrected.
SELECT repair_depth();

-- name: audit_lane_limits
-- The limits of a lane are the user's, and what its trigger derives from other columns is up to date. A window
-- that was removed or added makes the lane due, so one that never changes again is forgotten.
SELECT l.user_id AS subject, l.user_id,
       jsonb_build_object('max_active', jsonb_build_array(l.max_active, u.max_concurrent_agents),
                          'max_task_seconds', jsonb_build_array(l.max_task_seconds, u.max_task_duration_minutes * 60),
                          'limit_seconds', jsonb_build_array(l.limit_seconds, u.monthly_agent_hours_limit * 3600::bigint),
                          'disabled', u.disabled_at IS NOT NULL, 'plan_weight', l.plan_weight, 'due_at', l.due_at,
                          'eligible', l.eligible, 'window_closed', l.window_closed) AS detail
  FROM lanes l
  JOIN users u ON u.id = l.user_id
 WHERE l.user_id BETWEEN :first AND :last
   AND ((l.max_active, l.max_task_seconds, l.limit_seconds, l.plan_weight, l.due_at, l.eligible) IS DISTINCT FROM
        (CASE WHEN u.disabled_at IS NULL THEN u.max_concurrent_agents ELSE 0 END, u.max_task_duration_minutes * 60,
         u.monthly_agent_hours_limit * 3600::bigint, plan_weight(u.plan_tier),
         least(l.resets_at, l.window_changes_at, l.night_ends_at),
         l.ready > 0 AND l.active < l.max_active AND NOT l.paused AND NOT l.window_closed
         AND (l.limit_seconds IS NULL OR l.used_seconds + l.reserved_seconds < l.limit_seconds)
         AND (l.night_limit_usd IS NULL OR l.night_spent_usd + l.night_reserved_usd < l.night_limit_usd))
        OR (l.window_changes_at IS NULL AND (u.window_zone IS NOT NULL OR l.window_closed)));

-- name: copy_limits
-- Copy the limits of a user to the lane; its trigger derives the other columns again.
UPDATE lanes l
   SET max_active = CASE WHEN u.disabled_at IS NULL THEN u.max_concurrent_agents ELSE 0 END,
       max_task_seconds = u.max_task_duration_minutes * 60,
       limit_seconds = u.monthly_agent_hours_limit * 3600::bigint,
       plan_weight = plan_weight(u.plan_tier),
       window_changes_at = CASE WHEN u.window_zone IS NOT NULL OR l.window_closed
                                THEN coalesce(l.window_changes_at, to_timestamp(0)) ELSE l.window_changes_at END,
       skipped_by_pools = '{}'
  FROM users u
 WHERE u.id = :user_id
   AND l.user_id = :user_id;

-- name: audit_leaked_locks
-- A lock is held by an active task of its user that asked for it.
SELECT h.user_id AS subject, h.user_id, jsonb_build_object('key', h.key, 'task_id', h.task_id) AS detail
  FROM held_locks h
 WHERE h.user_id BETWEEN :first AND :last
   AND NOT EXISTS (SELECT 1 FROM tasks t
                    WHERE t.id = h.task_id AND t.user_id = h.user_id AND is_active(t.state) AND h.key = ANY (t.locks));

-- name: repair_locks
SELECT repair_locks(:user_id);

-- name: audit_lane_pauses
-- A lane is marked as paused exactly while a pause of its user is in force.
SELECT l.user_id AS subject, l.user_id, jsonb_build_object('marked', l.paused) AS detail
  FROM lanes l
 WHERE l.user_id BETWEEN :first AND :last
   AND l.paused <> EXISTS (SELECT 1 FROM pauses p
                            WHERE p.scope = 'user' AND coalesce(p.target, '') = l.user_id::text AND p.resumed_at IS NULL);

-- Pools ---------------------------------------------------------------------------------------------------------

-- name: audit_pool_pauses
-- The same for pools, which are few: all of them are checked at once.
SELECT l.name AS subject, NULL AS user_id, jsonb_build_object('marked', l.paused) AS detail
  FROM pools l
 WHERE l.paused <> EXISTS (SELECT 1 FROM pauses p
                            WHERE p.scope = 'pool' AND coalesce(p.target, '') = l.name AND p.resumed_at IS NULL);

-- Graphs --------------------------------------------------------------------------------------------------------

-- name: audit_graph_counters
-- The counters of a graph equal the counts of its tasks, and it has ended exactly when all of them have.
SELECT g.id AS subject, g.user_id,
       (SELECT jsonb_object_agg(name, jsonb_build_array(stored, counted))
          FROM (VALUES ('total', g.total::numeric, t.total::numeric),
                       ('open', g.open, t.open),
                       ('completed', g.completed, t.completed),
                       ('dead', g.dead, t.dead),
                       ('cancelled', g.cancelled, t.cancelled),
                       ('stopped', g.stopped, t.stopped),
                       ('spent_usd', g.spent_usd, t.spent),
                       ('reserved_usd', g.reserved_usd, t.reserved),
                       ('ended', (g.finished_at IS NOT NULL)::int, t.has_ended::int)) counter(name, stored, counted)
         WHERE stored <> counted) AS detail
  FROM dags g
 CROSS JOIN LATERAL (
    SELECT count(*) AS total,
           count(*) FILTER (WHERE is_active(state) OR is_waiting(state)) AS open,
           count(*) FILTER (WHERE state = 'completed') AS completed,
           count(*) FILTER (WHERE state = 'dead_lettered') AS dead,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE was_stopped(state, failure_reason)) AS stopped,
           coalesce(sum(cost_usd), 0) AS spent,
           coalesce(sum(reserved_usd), 0) AS reserved,
           coalesce(bool_and(is_final(state)), false) AS has_ended
      FROM tasks
     WHERE dag_id = g.id) t
 WHERE g.id BETWEEN :first AND :last
   AND ((g.total, g.open, g.completed, g.dead, g.cancelled, g.stopped, g.spent_usd, g.reserved_usd) IS DISTINCT FROM
        (t.total, t.open, t.completed, t.dead, t.cancelled, t.stopped, t.spent, t.reserved)
        OR (g.finished_at IS NOT NULL) <> t.has_ended);

-- name: recount_graph
-- Recompute the counters of a graph; the lane of its user is locked, so its tasks do not change meanwhile. If the
-- graph turns out to have ended, a database trigger makes the graphs due that wait for it.
UPDATE dags g
   SET total = t.total, open = t.open, completed = t.completed, dead = t.dead, cancelled = t.cancelled,
       stopped = t.stopped, spent_usd = t.spent, reserved_usd = t.reserved,
       finished_at = CASE WHEN t.total > 0 AND t.open = 0 THEN coalesce(g.finished_at, t.finished_at, clock()) END
  FROM (SELECT count(*) AS total,
               count(*) FILTER (WHERE is_active(state) OR is_waiting(state)) AS open,
               count(*) FILTER (WHERE state = 'completed') AS completed,
               count(*) FILTER (WHERE state = 'dead_lettered') AS dead,
               count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
               count(*) FILTER (WHERE was_stopped(state, failure_reason)) AS stopped,
               coalesce(sum(cost_usd), 0) AS spent,
               coalesce(sum(reserved_usd), 0) AS reserved,
               max(finished_at) AS finished_at
          FROM tasks
         WHERE dag_id = :dag_id) t
 WHERE g.id = :dag_id;

-- name: audit_edges_of_graphs
-- The edges of the graphs of a slice, in which no cycle may be. Found through the tasks: edges have no index by
-- graph.
SELECT g.id AS dag_id, g.user_id, e.parent_id, e.child_id
  FROM dags g
  JOIN tasks t ON t.dag_id = g.id
  JOIN task_edges e ON e.child_id = t.id
 WHERE g.id BETWEEN :first AND :last;

-- name: audit_triggers
-- A trigger is due once its graph has ended as its condition says, and the graph it submitted belongs to its user.
SELECT t.dag_id AS subject, t.user_id,
       jsonb_build_object('trigger_id', t.id, 'condition', t.condition, 'graph', g.status, 'due_at', t.due_at,
                          'fired_dag_id', t.fired_dag_id) AS detail
  FROM dag_triggers t
  LEFT JOIN dags g ON g.id = t.dag_id
 WHERE t.dag_id BETWEEN :first AND :last
   AND ((t.due_at IS NULL AND t.dropped_at IS NULL AND g.finished_at IS NOT NULL
         AND t.condition IN ('finished', g.status))
        OR (t.fired_at IS NOT NULL
            AND (t.due_at IS NULL
                 OR (SELECT f.user_id FROM tasks f WHERE f.dag_id = t.fired_dag_id LIMIT 1) <> t.user_id
                 -- Retention may have deleted the graph that it submitted, but keeps every graph for a day.
                 OR time_of_id(t.fired_dag_id) > clock() - interval '1 day'
                    AND NOT EXISTS (SELECT 1 FROM tasks f WHERE f.dag_id = t.fired_dag_id))));

-- Tasks ---------------------------------------------------------------------------------------------------------

-- name: audit_claims
-- Claim columns and one open attempt exist exactly while a task is active, and have the same values.
SELECT t.id AS subject, t.user_id,
       jsonb_build_object('state', t.state, 'epoch', t.epoch, 'open_attempt', a.epoch, 'claimed_by', t.claimed_by) AS detail
  FROM tasks t
  LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL
 WHERE t.id BETWEEN :first AND :last
   AND (num_nonnulls(t.token, t.claimed_by, t.pool, t.claimed_at, t.expires_at, t.reserved_seconds)
        <> CASE WHEN is_active(t.state) THEN 6 ELSE 0 END
        OR is_active(t.state) <> (a.task_id IS NOT NULL)
        OR (a.task_id IS NOT NULL
            AND (a.epoch, a.token, a.pool, a.agent, a.bundle, a.granted_seconds, a.claimed_at, a.started_at)
                IS DISTINCT FROM
                (t.epoch, t.token, t.pool, t.claimed_by, t.bundle, t.reserved_seconds, t.claimed_at, t.started_at))
        OR (a.started_at IS NOT NULL) <> (t.state IN ('running', 'validating')));

-- name: audit_missing_locks
-- An active task holds all its locks.
SELECT t.id AS subject, t.user_id, jsonb_build_object('key', wanted.key, 'state', t.state) AS detail
  FROM tasks t
 CROSS JOIN unnest(t.locks) wanted(key)
 WHERE t.id BETWEEN :first AND :last
   AND is_active(t.state)
   AND NOT EXISTS (SELECT 1 FROM held_locks h WHERE h.user_id = t.user_id AND h.key = wanted.key AND h.task_id = t.id);

-- name: audit_completions
-- A task is completed exactly if its last attempt, and no other, completed or was overruled, or if a fork copied its
-- result.
SELECT t.id AS subject, t.user_id, jsonb_build_object('state', t.state, 'completed_attempts', a.epochs) AS detail
  FROM tasks t
 CROSS JOIN LATERAL (
    SELECT count(*) AS number, array_agg(epoch ORDER BY epoch) AS epochs, bool_or(epoch <> t.epoch OR NOT spent) AS is_wrong
      FROM attempts
     WHERE task_id = t.id AND outcome IN ('completed', 'overruled')) a
 WHERE t.id BETWEEN :first AND :last
   AND (a.number <> (t.state = 'completed' AND t.copied_from IS NULL)::int OR a.is_wrong);

-- name: audit_attempt_numbers
-- The epochs of a task's attempts have no gap but those that a restore has skipped, and tasks.attempts counts the spent ones.
SELECT t.id AS subject, t.user_id,
       jsonb_build_object('epoch', t.epoch, 'attempts', t.attempts, 'max_attempts', t.max_attempts,
                          'rows', a.number, 'spent', a.spent) AS detail
  FROM tasks t
 CROSS JOIN LATERAL (
    SELECT count(*) AS number, max(epoch) AS last, count(*) FILTER (WHERE spent) AS spent,
           bool_or(spent AND (started_at IS NULL OR ended_at IS NULL
                              OR outcome IN ('busy', 'expired', 'interrupted', 'deferred', 'bundle_crash'))) AS is_wrong
      FROM attempts
     WHERE task_id = t.id) a
 WHERE t.id BETWEEN :first AND :last
   AND (t.epoch <> a.number + t.skipped_epochs OR t.epoch < a.last
        OR (t.skipped_epochs = 0 AND t.epoch <> coalesce(a.last, 0)) OR t.attempts <> a.spent OR t.attempts > t.max_attempts
        OR a.is_wrong);

-- name: audit_attempt_times
-- Attempts of one task never overlap; an expired claim was never started, and an attempt with a result was.
SELECT task_id AS subject, user_id,
       jsonb_build_object('epoch', epoch, 'claimed_at', claimed_at, 'started_at', started_at, 'ended_at', ended_at,
                          'outcome', outcome) AS detail
  FROM (SELECT *, lag(ended_at, 1, '-infinity') OVER (PARTITION BY task_id ORDER BY epoch) AS previous_end
          FROM attempts
         WHERE task_id BETWEEN :first AND :last) a
 WHERE previous_end IS NULL
    OR claimed_at < previous_end
    OR started_at < claimed_at
    OR ended_at < coalesce(started_at, claimed_at)
    OR (outcome = 'expired' AND started_at IS NOT NULL)
    OR (outcome NOT IN ('busy', 'expired', 'interrupted', 'cancelled') AND started_at IS NULL);

-- name: audit_early_claims
-- No task is claimed before its parents have ended; claims from before an edge was added are exempt.
SELECT e.child_id AS subject, e.user_id,
       jsonb_build_object('parent_id', e.parent_id, 'epoch', a.epoch, 'satisfied_at', e.satisfied_at) AS detail
  FROM task_edges e
  JOIN attempts a ON a.task_id = e.child_id AND a.epoch > e.since_epoch
 WHERE e.child_id BETWEEN :first AND :last
   AND (e.satisfied_at IS NULL OR e.satisfied_at > a.claimed_at);

-- name: audit_unmet_counts
-- A task's `unmet` counts its unsatisfied edges, and it is pending only while it waits for something.
SELECT t.id AS subject, t.user_id, jsonb_build_object('state', t.state, 'unmet', t.unmet, 'unsatisfied', e.number) AS detail
  FROM tasks t
 CROSS JOIN LATERAL (
    SELECT count(*) AS number FROM task_edges WHERE child_id = t.id AND satisfied_at IS NULL) e
 WHERE t.id BETWEEN :first AND :last
   AND (t.unmet <> e.number
        OR (t.state = 'pending' AND t.unmet = 0 AND t.awaits_budget IS NULL AND NOT t.awaits_start)
        OR (t.unmet > 0 AND t.state NOT IN ('pending', 'cancelled', 'dead_lettered')));

-- name: audit_edges
-- An edge is satisfied exactly if its parent ended as its condition says, and no task waits for an edge that cannot
-- be satisfied. An end that a retry has undone since counts.
SELECT e.child_id AS subject, e.user_id,
       jsonb_build_object('parent_id', e.parent_id, 'condition', e.condition, 'parent_state', p.state,
                          'satisfied_at', e.satisfied_at) AS detail
  FROM task_edges e
  JOIN tasks p ON p.id = e.parent_id
 WHERE e.child_id BETWEEN :first AND :last
   AND e.satisfied_at IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM events v
                    WHERE v.task_id = e.parent_id
                      AND v.at <= e.satisfied_at
                      AND v.to_state = ANY (CASE WHEN e.condition = 'finished' OR e.on_unmet = 'continue'
                                                 THEN ARRAY['completed', 'dead_lettered', 'cancelled']
                                                 WHEN e.condition = 'success' THEN ARRAY['completed']
                                                 ELSE ARRAY['dead_lettered'] END))
UNION ALL
SELECT e.child_id, e.user_id,
       jsonb_build_object('parent_id', e.parent_id, 'condition', e.condition, 'parent_state', p.state, 'child_state', c.state)
  FROM task_edges e
  JOIN tasks p ON p.id = e.parent_id
  JOIN tasks c ON c.id = e.child_id
 WHERE e.child_id BETWEEN :first AND :last
   AND e.satisfied_at IS NULL
   AND p.state IN ('completed', 'dead_lettered', 'cancelled')
   AND (e.condition = 'finished' OR e.on_unmet = 'continue'
        OR (e.condition = 'success') = (p.state = 'completed') AND p.state <> 'cancelled'
        OR c.state NOT IN ('cancelled', 'dead_lettered'));

-- name: audit_cancel_reasons
-- A task that was cancelled because of a parent has such a parent.
SELECT c.id AS subject, c.user_id, jsonb_build_object('reason', c.failure_reason) AS detail
  FROM tasks c
 WHERE c.id BETWEEN :first AND :last
   AND c.state = 'cancelled'
   AND c.failure_reason IN ('not_needed', 'upstream_cancelled', 'upstream_failed')
   AND NOT EXISTS (SELECT 1
                     FROM task_edges e
                     JOIN tasks p ON p.id = e.parent_id
                    WHERE e.child_id = c.id
                      AND e.satisfied_at IS NULL
                      AND p.state IN ('completed', 'dead_lettered', 'cancelled'));

-- name: audit_events
-- A task's events have no gap, are legal moves and lead to its state; only people move a task out of a final state.
WITH path AS (
    SELECT *, lag(seq, 1, 0) OVER w AS seq_before, lag(to_state) OVER w AS state_before,
           lag(at) OVER w AS at_before, lag(epoch) OVER w AS epoch_before
      FROM events
     WHERE task_id BETWEEN :first AND :last
    WINDOW w AS (PARTITION BY task_id ORDER BY seq)
)
SELECT task_id AS subject, user_id,
       jsonb_build_object('seq', seq, 'from', from_state, 'to', to_state, 'seq_before', seq_before, 'actor', actor) AS detail
  FROM path
 WHERE seq <> seq_before + 1
    OR from_state IS DISTINCT FROM state_before
    OR (from_state IS NULL AND to_state NOT IN ('created', 'pending', 'ready')
        -- A value, not EXISTS, which Postgres may answer from a hash of all tasks.
        AND (SELECT t.copied_from IS NULL FROM tasks t WHERE t.id = path.task_id))
    OR (from_state IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM legal_moves m WHERE m.from_state = path.from_state AND m.to_state = path.to_state))
    OR (from_state IN ('completed', 'dead_lettered', 'cancelled') AND actor !~ '^(human|operator|user):')
    OR at < at_before
    OR (epoch <> coalesce(epoch_before, 0) + (to_state = 'claimed' OR from_state = 'ready' AND to_state = 'running')::int
        -- A restore has skipped numbers.
        AND NOT coalesce((SELECT t.skipped_epochs > 0 FROM tasks t WHERE t.id = path.task_id)
                         AND epoch > coalesce(epoch_before, 0), false))
UNION ALL
SELECT t.id, t.user_id,
       jsonb_build_object('state', t.state, 'revision', t.revision, 'last_event', l.seq, 'last_state', l.to_state)
  FROM tasks t
  LEFT JOIN LATERAL (SELECT seq, to_state FROM events WHERE task_id = t.id ORDER BY seq DESC LIMIT 1) l ON true
 WHERE t.id BETWEEN :first AND :last
   AND (l.to_state, l.seq) IS DISTINCT FROM (t.state, t.revision);

-- name: audit_dead_letters
-- Each move to dead_lettered has a dead letter, and a task is dead-lettered until its letter is resolved.
SELECT t.id AS subject, t.user_id,
       jsonb_build_object('state', t.state, 'letters', l.letters, 'deaths', d.deaths, 'open', l.dead) AS detail
  FROM tasks t
 CROSS JOIN LATERAL (
    SELECT count(*) AS letters, coalesce(bool_or(resolution IS NULL), false) AS dead
      FROM dead_letters
     WHERE task_id = t.id) l
 CROSS JOIN LATERAL (
    SELECT count(*) AS deaths FROM events WHERE task_id = t.id AND to_state = 'dead_lettered') d
 WHERE t.id BETWEEN :first AND :last
   AND (l.letters <> d.deaths OR (t.state = 'dead_lettered') <> l.dead);

-- name: audit_owners
-- Every row about a task has the task's user and graph, and there is such a task. Events and the ledger outlive tasks that
-- retention deletes; it keeps every task for a day.
SELECT t.id AS subject, t.user_id, jsonb_build_object('row', 'dag', 'dag_id', t.dag_id) AS detail
  FROM tasks t LEFT JOIN dags g ON g.id = t.dag_id
 WHERE t.id BETWEEN :first AND :last AND (t.dag_id <> t.id OR t.has_dag_row) AND g.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT t.id, t.user_id, jsonb_build_object('row', 'user')
  FROM tasks t
 WHERE t.id BETWEEN :first AND :last AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = t.user_id)
UNION ALL
SELECT c.id, c.user_id, jsonb_build_object('row', 'spawned', 'parent_id', c.parent_id)
  FROM tasks c LEFT JOIN tasks p ON p.id = c.parent_id
 WHERE c.id BETWEEN :first AND :last AND c.parent_id IS NOT NULL
   AND (c.user_id, c.dag_id) IS DISTINCT FROM (p.user_id, p.dag_id)
UNION ALL
SELECT e.child_id, e.user_id, jsonb_build_object('row', 'edge', 'parent_id', e.parent_id)
  FROM task_edges e
  LEFT JOIN tasks c ON c.id = e.child_id
  LEFT JOIN tasks p ON p.id = e.parent_id
 WHERE e.child_id BETWEEN :first AND :last
   AND ((e.user_id, e.dag_id) IS DISTINCT FROM (c.user_id, c.dag_id)
        OR (e.user_id, e.dag_id) IS DISTINCT FROM (p.user_id, p.dag_id))
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'attempt', 'epoch', x.epoch)
  FROM attempts x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND x.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'artifact', 'name', x.name)
  FROM artifacts x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND x.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'staged artifact', 'name', x.name)
  FROM staged_artifacts x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND x.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'ledger', 'epoch', x.epoch, 'seconds', x.seconds)
  FROM usage_ledger x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND x.user_id IS DISTINCT FROM t.user_id
   AND (t.id IS NOT NULL OR time_of_id(x.task_id) > clock() - interval '1 day')
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'event', 'seq', x.seq)
  FROM events x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND (x.user_id, x.dag_id) IS DISTINCT FROM (t.user_id, t.dag_id)
   AND (t.id IS NOT NULL OR time_of_id(x.task_id) > clock() - interval '1 day')
UNION ALL
SELECT t.id, t.user_id, jsonb_build_object('row', 'graph event', 'id', x.id)
  FROM tasks t JOIN dag_events x ON x.dag_id = t.dag_id
 WHERE t.id BETWEEN :first AND :last AND x.user_id <> t.user_id
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'spending', 'epoch', x.epoch, 'usd', x.usd)
  FROM spending x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND (x.user_id, x.dag_id) IS DISTINCT FROM (t.user_id, t.dag_id)
UNION ALL
SELECT x.task_id, x.user_id, jsonb_build_object('row', 'dead letter', 'id', x.id)
  FROM dead_letters x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id BETWEEN :first AND :last AND (x.user_id, x.dag_id) IS DISTINCT FROM (t.user_id, t.dag_id)
UNION ALL
SELECT x.task_id, NULL, jsonb_build_object('row', 'stale result', 'epoch', x.epoch)
  FROM stale_results x
 WHERE x.task_id BETWEEN :first AND :last AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = x.task_id);

-- name: audit_charges
-- A started attempt that has ended is charged once, for no more than its time, and refunded if the deployment
-- failed; no other attempt is.
SELECT a.task_id AS subject, a.user_id,
       jsonb_build_object('epoch', a.epoch, 'outcome', a.outcome, 'charged', c.used, 'refunded', c.refunded) AS detail
  FROM attempts a
 CROSS JOIN LATERAL (
    SELECT sum(seconds) FILTER (WHERE kind = 'usage') AS used,
           sum(seconds) FILTER (WHERE kind = 'refund') AS refunded
      FROM usage_ledger
     WHERE task_id = a.task_id AND epoch = a.epoch) c
 WHERE a.task_id BETWEEN :first AND :last
   AND ((a.started_at IS NOT NULL AND a.ended_at IS NOT NULL) <> (c.used IS NOT NULL)
        OR c.used > least(extract(epoch FROM a.ended_at - a.started_at), a.granted_seconds) + 0.01
        OR c.refunded IS DISTINCT FROM
           CASE WHEN a.outcome IN ('busy', 'expired', 'interrupted', 'worker_lost', 'bundle_crash') THEN -c.used END)
UNION ALL
SELECT l.task_id, l.user_id, jsonb_build_object('epoch', l.epoch, 'kind', l.kind, 'seconds', l.seconds)
  FROM usage_ledger l
  LEFT JOIN tasks t ON t.id = l.task_id
 WHERE l.task_id BETWEEN :first AND :last
   AND l.kind <> 'adjustment'
   -- Retention deletes attempts with their task, and keeps every task for a day.
   AND (t.id IS NOT NULL OR time_of_id(l.task_id) > clock() - interval '1 day')
   AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.task_id = l.task_id AND a.epoch = l.epoch);

-- name: audit_charge_months
-- The seconds of a charge are those of the run within that billing month, and a refund equals its charge.
WITH charged AS (
    SELECT l.*, sum(l.seconds) OVER (PARTITION BY l.task_id, l.epoch) AS in_all
      FROM usage_ledger l
     WHERE l.task_id BETWEEN :first AND :last AND l.kind = 'usage'
)
SELECT e.task_id AS subject, e.user_id,
       jsonb_build_object('epoch', e.epoch, 'period_started_at', e.period_started_at, 'seconds', e.seconds) AS detail
  FROM charged e
  JOIN users u ON u.id = e.user_id
  JOIN attempts a USING (task_id, epoch)
 CROSS JOIN LATERAL (
    SELECT u.billing_anchor_at AT TIME ZONE 'UTC' AS anchor,
           ((extract(year FROM e.period_started_at) - extract(year FROM u.billing_anchor_at)) * 12
            + extract(month FROM e.period_started_at) - extract(month FROM u.billing_anchor_at))::int AS month,
           a.started_at + make_interval(secs => e.in_all) AS ended_at) run
 WHERE (run.anchor + make_interval(months => run.month)) AT TIME ZONE 'UTC' <> e.period_started_at
    OR abs(e.seconds - greatest(0, extract(epoch FROM
               least(run.ended_at, (run.anchor + make_interval(months => run.month + 1)) AT TIME ZONE 'UTC')
               - greatest(a.started_at, e.period_started_at)))) > 0.01
UNION ALL
SELECT r.task_id, r.user_id, jsonb_build_object('epoch', r.epoch, 'refund', r.seconds, 'charge', e.seconds)
  FROM usage_ledger r
  LEFT JOIN usage_ledger e ON e.task_id = r.task_id AND e.epoch = r.epoch AND e.period_started_at = r.period_started_at
                          AND e.kind = 'usage'
 WHERE r.task_id BETWEEN :first AND :last
   AND r.kind = 'refund' AND r.seconds IS DISTINCT FROM -e.seconds
   -- Retention deletes the rows of a task that is gone in several statements.
   AND EXISTS (SELECT 1 FROM tasks t WHERE t.id = r.task_id);

-- name: audit_costs
-- A task's cost is the sum of its attempts' costs, and an attempt's cost the sum of its spending rows.
SELECT t.id AS subject, t.user_id, jsonb_build_object('cost_usd', t.cost_usd, 'attempts_usd', a.usd) AS detail
  FROM tasks t
 CROSS JOIN LATERAL (SELECT coalesce(sum(cost_usd), 0) AS usd FROM attempts WHERE task_id = t.id) a
 WHERE t.id BETWEEN :first AND :last
   AND t.cost_usd <> a.usd
UNION ALL
SELECT a.task_id, a.user_id, jsonb_build_object('epoch', a.epoch, 'cost_usd', a.cost_usd, 'spending_usd', s.usd)
  FROM attempts a
 CROSS JOIN LATERAL (
    SELECT coalesce(sum(usd), 0) AS usd FROM spending WHERE task_id = a.task_id AND epoch = a.epoch) s
 WHERE a.task_id BETWEEN :first AND :last
   AND a.cost_usd <> s.usd;

-- name: audit_task_budgets
-- Money is reserved for active tasks only, no task beyond its cost limit can run, and a task awaits a budget only if
-- it has reached one.
SELECT t.id AS subject, t.user_id,
       jsonb_build_object('state', t.state, 'cost_usd', t.cost_usd, 'max_cost_usd', t.max_cost_usd,
                          'reserved_usd', t.reserved_usd, 'awaits_budget', t.awaits_budget) AS detail
  FROM tasks t
 WHERE t.id BETWEEN :first AND :last
   AND (((t.reserved_usd IS NOT NULL OR t.run_cost_usd <> 0) AND NOT is_active(t.state))
        OR (t.state IN ('ready', 'retrying', 'claimed') AND t.cost_usd > 0 AND t.cost_usd >= t.max_cost_usd)
        OR (t.awaits_budget IS NOT NULL
            AND (t.state <> 'pending' OR t.cost_usd = 0 OR t.unmet > 0
                 OR (t.awaits_budget = 'task' AND t.cost_usd < t.max_cost_usd))));

-- Bulk operations -----------------------------------------------------------------------------------------------

-- name: audit_bulks
-- A bulk operation's counters add up, and a completed one has processed every chosen task.
SELECT b.id AS subject, b.user_id,
       jsonb_build_object('state', b.state, 'total', b.total, 'done', b.done, 'changed', b.changed, 'skipped', b.skipped,
                          'refused', b.refused) AS detail
  FROM bulk_operations b
 CROSS JOIN LATERAL (SELECT coalesce(sum(CAST(value AS int)), 0) AS refusals FROM jsonb_each_text(b.refused)) r
 WHERE b.id BETWEEN :first AND :last
   AND (b.done <> b.changed + b.skipped + r.refusals
        OR (b.state = 'completed' AND b.done <> b.total));

-- Storage -------------------------------------------------------------------------------------------------------

-- name: audit_artifact_usage
-- The usage of a user equals the user's artifacts, visible and staged.
SELECT user_id AS subject, user_id,
       jsonb_build_object('artifacts', jsonb_build_array(u.artifacts, coalesce(c.number, 0)),
                          'bytes', jsonb_build_array(u.bytes, coalesce(c.size, 0))) AS detail
  FROM (SELECT user_id, artifacts, bytes FROM artifact_usage WHERE user_id BETWEEN :first AND :last) u
  FULL JOIN (SELECT user_id, count(*) AS number, sum(size) AS size
               FROM (SELECT user_id, size FROM artifacts WHERE user_id BETWEEN :first AND :last
                     UNION ALL
                     SELECT user_id, size FROM staged_artifacts WHERE user_id BETWEEN :first AND :last) a
              GROUP BY user_id) c USING (user_id)
 WHERE (coalesce(u.artifacts, 0), coalesce(u.bytes, 0)) <> (coalesce(c.number, 0), coalesce(c.size, 0));

-- name: recount_artifact_usage
SELECT recount_artifact_usage(:user_id);
