-- Conditions that every database meets at every instant: each query returns the rows that violate one
-- invariant. Parameters: acked (uuid[]), drained (boolean), sweep_time (interval), moves (text[]),
-- has_record (boolean: exec_log was written). The table plan_history has each user's limits with the time
-- since when they apply. exec_log is the handlers' own record: one row for each start of a handler.

-- inapplicable: I17 each tick of a schedule is recorded once
-- No task is submitted by a schedule: there is no table of schedules, so no tick can be repeated or missed.

-- inapplicable: I19 one message in the outbox for each end
-- Nothing is sent when a task ends: clients read its events, which I18 checks.

-- name: I01
-- every acknowledged submission exists
SELECT acked.id
  FROM unnest(CAST(:acked AS uuid[])) acked(id)
  LEFT JOIN tasks t ON t.id = acked.id
 WHERE t.id IS NULL;

-- name: I02
-- after a drain every task has ended
SELECT id, state, unmet, epoch, retry_at
  FROM tasks
 WHERE :drained AND state NOT IN ('completed', 'dead_lettered', 'cancelled');

-- name: I03
-- a task is completed exactly if its last attempt, and no other, completed, or if a fork copied its result
SELECT t.id, t.state, count(a.epoch) AS completions
  FROM tasks t
  LEFT JOIN attempts a ON a.task_id = t.id AND a.outcome = 'completed'
 GROUP BY t.id
HAVING count(a.epoch) <> (t.state = 'completed' AND t.copied_from IS NULL)::int
    OR bool_or(a.epoch <> t.epoch OR NOT a.spent);

-- name: I04
-- the epochs of a task's attempts have no gap, and tasks.attempts counts the spent ones
SELECT t.id, t.epoch, t.attempts, t.max_attempts, count(a.epoch) AS rows
  FROM tasks t
  LEFT JOIN attempts a ON a.task_id = t.id
 GROUP BY t.id
HAVING t.epoch <> count(a.epoch)
    OR t.epoch <> coalesce(max(a.epoch), 0)
    OR t.attempts <> count(*) FILTER (WHERE a.spent)
    OR t.attempts > t.max_attempts
    OR bool_or(a.spent AND (a.started_at IS NULL OR a.ended_at IS NULL
                            OR a.outcome IN ('busy', 'expired', 'interrupted', 'deferred', 'bundle_crash')));

-- name: I05
-- attempts of one task never overlap
SELECT task_id, epoch
  FROM (SELECT *, lag(ended_at, 1, '-infinity') OVER (PARTITION BY task_id ORDER BY epoch) AS previous_end
          FROM attempts) a
 WHERE previous_end IS NULL
    OR claimed_at < previous_end
    OR started_at < claimed_at
    OR ended_at < coalesce(started_at, claimed_at);

-- name: I06
-- no claim exceeds the plan's concurrency
WITH point AS (
    SELECT user_id, claimed_at AS at, 1 AS step FROM attempts
    UNION ALL
    SELECT user_id, ended_at, -1 FROM attempts WHERE ended_at IS NOT NULL
), running AS (
    SELECT *, sum(step) OVER (PARTITION BY user_id ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS active
      FROM point
), plan AS (
    SELECT *, lead(since, 1, 'infinity') OVER (PARTITION BY user_id ORDER BY since, id) AS until
      FROM plan_history
)
SELECT r.user_id, r.at, r.active, max(p.max_active) AS max_active
  FROM running r
  JOIN plan p ON p.user_id = r.user_id AND r.at BETWEEN p.since AND p.until
 WHERE r.step = 1
 GROUP BY r.user_id, r.at, r.active
HAVING r.active > max(p.max_active);

-- name: I07
-- no claim exceeds the hours left, and a month's charges stay within the limit at its last claim
WITH point AS (
    -- A claim counts in the month of its claimed_at. At one instant, rows that free hours are ordered first.
    SELECT a.user_id, a.claimed_at AS at, 1 AS place, a.granted_seconds AS promise, 0 AS seconds,
           cycle_boundary(u.billing_anchor_at, cycle_at(u.billing_anchor_at, a.claimed_at)) AS month
      FROM attempts a JOIN users u ON u.id = a.user_id
    UNION ALL
    SELECT user_id, ended_at, 0, -granted_seconds, 0, NULL FROM attempts WHERE ended_at IS NOT NULL
    UNION ALL
    SELECT l.user_id, coalesce(a.ended_at, l.recorded_at), CASE WHEN a.task_id IS NULL AND l.seconds > 0 THEN 2 ELSE 0 END,
           0, l.seconds, l.period_started_at
      FROM usage_ledger l LEFT JOIN attempts a USING (task_id, epoch)
), promised AS (
    SELECT *, sum(promise) OVER (PARTITION BY user_id ORDER BY at, place ROWS UNBOUNDED PRECEDING)
              + sum(seconds) OVER (PARTITION BY user_id, month ORDER BY at, place ROWS UNBOUNDED PRECEDING) AS in_all
      FROM point
), charged AS (
    SELECT l.user_id, l.period_started_at, sum(l.seconds) AS seconds, max(a.claimed_at) AS claimed_at
      FROM usage_ledger l
      JOIN attempts a USING (task_id, epoch)
     GROUP BY l.user_id, l.period_started_at
), plan AS (
    SELECT *, lead(since, 1, 'infinity') OVER (PARTITION BY user_id ORDER BY since, id) AS until
      FROM plan_history
)
SELECT c.user_id, c.period_started_at, c.seconds
  FROM charged c
  JOIN plan p ON p.user_id = c.user_id AND c.claimed_at BETWEEN p.since AND p.until
 GROUP BY c.user_id, c.period_started_at, c.seconds
HAVING c.seconds > max(coalesce(p.limit_seconds, 'Infinity'::numeric)) + 1
UNION ALL
SELECT c.user_id, c.month, c.in_all
  FROM promised c
  JOIN plan p ON p.user_id = c.user_id AND c.at BETWEEN p.since AND p.until
 WHERE c.promise > 0
 GROUP BY c.user_id, c.at, c.month, c.in_all
HAVING c.in_all > max(coalesce(p.limit_seconds, 'Infinity'::numeric)) + 1;

-- name: I08
-- a started attempt is charged for its time, or for what its worker measured, and refunded if the deployment failed
WITH charged AS (
    SELECT task_id, epoch,
           sum(seconds) FILTER (WHERE kind = 'usage') AS used,
           sum(seconds) FILTER (WHERE kind = 'refund') AS refunded
      FROM usage_ledger
     WHERE task_id IS NOT NULL AND kind <> 'adjustment'
     GROUP BY task_id, epoch
), lasted AS (
    SELECT *, least(extract(epoch FROM ended_at - started_at), granted_seconds) AS seconds FROM attempts
), worked AS (
    SELECT task_id, epoch, min(seconds) AS seconds FROM exec_log GROUP BY task_id, epoch
)
SELECT task_id, epoch, a.outcome, a.seconds, w.seconds AS worked, c.used, c.refunded
  FROM lasted a
  FULL JOIN charged c USING (task_id, epoch)
  LEFT JOIN worked w USING (task_id, epoch)
 WHERE a.claimed_at IS NULL
    OR (a.started_at IS NOT NULL AND a.ended_at IS NOT NULL) <> (c.used IS NOT NULL)
    OR c.used > a.seconds + 0.01
    -- A worker subtracts the time that a run waited in its bundle, but not the time that its handler worked. An
    -- interrupted run may be charged less, because its handler may not have started, and a lost run is charged
    -- until its last heartbeat.
    OR (c.used < least(a.seconds, w.seconds) - 0.05 AND :has_record
        AND a.outcome NOT IN ('bundle_crash', 'busy', 'cancelled', 'crash', 'interrupted', 'worker_lost'))
    OR c.refunded IS DISTINCT FROM
       CASE WHEN a.outcome IN ('busy', 'expired', 'interrupted', 'worker_lost', 'bundle_crash') THEN -c.used END;

-- name: I09
-- claim columns and one open attempt exist exactly while a task is active, and have the same values
SELECT t.id, t.state, t.epoch, a.epoch AS open_epoch
  FROM tasks t
  LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL
 WHERE num_nonnulls(t.token, t.claimed_by, t.pool, t.claimed_at, t.expires_at, t.reserved_seconds)
       <> CASE WHEN t.state IN ('claimed', 'running', 'validating') THEN 6 ELSE 0 END
    OR (t.state IN ('claimed', 'running', 'validating')) <> (a.task_id IS NOT NULL)
    OR (a.task_id IS NOT NULL
        AND (a.epoch, a.token, a.pool, a.agent, a.bundle, a.granted_seconds, a.claimed_at, a.started_at)
            IS DISTINCT FROM
            (t.epoch, t.token, t.pool, t.claimed_by, t.bundle, t.reserved_seconds, t.claimed_at, t.started_at))
    OR (a.started_at IS NOT NULL) <> (t.state IN ('running', 'validating'));

-- name: I10
-- no lease or retry time is in the past for longer than the sweeps may take
SELECT id, state, expires_at, retry_at
  FROM tasks
 WHERE least(expires_at, retry_at) < clock() - CAST(:sweep_time AS interval);

-- name: I11
-- no task is claimed before its parents have ended; claims from before an edge was added are exempt
SELECT e.parent_id, e.child_id, a.epoch
  FROM task_edges e
  JOIN attempts a ON a.task_id = e.child_id AND a.epoch > e.since_epoch
 WHERE e.satisfied_at IS NULL OR e.satisfied_at > a.claimed_at;

-- name: I12
-- an edge is satisfied exactly if its parent ended as its condition says, unmet counts the others, and no task waits for an edge that cannot be satisfied
SELECT t.id, t.state, t.unmet, count(e.child_id) AS unsatisfied
  FROM tasks t
  LEFT JOIN task_edges e ON e.child_id = t.id AND e.satisfied_at IS NULL
 GROUP BY t.id
HAVING t.unmet <> count(e.child_id)
    OR (t.state = 'pending' AND t.unmet = 0 AND t.awaits_budget IS NULL)
    OR (t.unmet > 0 AND t.state NOT IN ('pending', 'cancelled', 'dead_lettered'))
UNION ALL
-- Satisfied edges whose parent never ended in such a state. An end that a retry has undone since counts.
SELECT e.child_id, p.state, NULL, NULL
  FROM task_edges e
  JOIN tasks p ON p.id = e.parent_id
 WHERE e.satisfied_at IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM events v
                    WHERE v.task_id = e.parent_id
                      AND v.at <= e.satisfied_at
                      AND v.to_state = ANY (CASE WHEN e.condition = 'finished' OR e.on_unmet = 'continue'
                                                 THEN ARRAY['completed', 'dead_lettered', 'cancelled']
                                                 WHEN e.condition = 'success' THEN ARRAY['completed']
                                                 ELSE ARRAY['dead_lettered'] END))
UNION ALL
-- Unsatisfied edges whose parent ended in such a state, and children that wait for an edge that cannot be satisfied.
SELECT e.child_id, c.state, NULL, NULL
  FROM task_edges e
  JOIN tasks p ON p.id = e.parent_id
  JOIN tasks c ON c.id = e.child_id
 WHERE e.satisfied_at IS NULL
   AND p.state IN ('completed', 'dead_lettered', 'cancelled')
   AND (e.condition = 'finished' OR e.on_unmet = 'continue'
        OR (e.condition = 'success') = (p.state = 'completed') AND p.state <> 'cancelled'
        OR c.state NOT IN ('cancelled', 'dead_lettered'))
UNION ALL
-- Tasks cancelled because of a parent, without such a parent.
SELECT c.id, c.failure_reason, NULL, NULL
  FROM tasks c
 WHERE c.state = 'cancelled'
   AND c.failure_reason IN ('not_needed', 'upstream_cancelled', 'upstream_failed')
   AND NOT EXISTS (SELECT 1
                     FROM task_edges e
                     JOIN tasks p ON p.id = e.parent_id
                    WHERE e.child_id = c.id
                      AND e.satisfied_at IS NULL
                      AND p.state IN ('completed', 'dead_lettered', 'cancelled'));

-- name: I13
-- no graph has a cycle
WITH RECURSIVE above (task_id, ancestor_id) AS (
    SELECT child_id, parent_id FROM task_edges
    UNION
    SELECT a.task_id, e.parent_id FROM above a JOIN task_edges e ON e.child_id = a.ancestor_id
)
SELECT task_id FROM above WHERE task_id = ancestor_id;

-- name: I14
-- a graph's status follows from the states of its tasks
SELECT g.id, g.status
  FROM dags g
  LEFT JOIN tasks t ON t.dag_id = g.id
 GROUP BY g.id
HAVING g.status <> CASE
           WHEN count(t.id) = 0 THEN 'pending'
           WHEN bool_or(t.state NOT IN ('completed', 'dead_lettered', 'cancelled')) THEN 'running'
           WHEN bool_or(t.state = 'dead_lettered') THEN 'failed'
           WHEN bool_or(t.state = 'cancelled' AND coalesce(
                    t.failure_reason NOT IN ('not_needed', 'upstream_cancelled', 'upstream_failed'), true))
           THEN 'cancelled'
           ELSE 'completed' END
    OR (g.finished_at IS NOT NULL)
       <> coalesce(bool_and(t.state IN ('completed', 'dead_lettered', 'cancelled')), false);

-- name: I15
-- every row about a task has the task's user and graph
SELECT 'dag' AS what, t.id
  FROM tasks t LEFT JOIN dags g ON g.id = t.dag_id
 WHERE t.dag_id <> t.id AND g.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT 'attempt', x.task_id FROM attempts x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT 'edge', e.child_id
  FROM task_edges e
  LEFT JOIN tasks c ON c.id = e.child_id
  LEFT JOIN tasks p ON p.id = e.parent_id
 WHERE (e.user_id, e.dag_id) IS DISTINCT FROM (c.user_id, c.dag_id)
    OR (e.user_id, e.dag_id) IS DISTINCT FROM (p.user_id, p.dag_id)
UNION ALL
SELECT 'child', c.id
  FROM tasks c
  LEFT JOIN tasks p ON p.id = c.parent_id
 WHERE c.parent_id IS NOT NULL AND (c.user_id, c.dag_id) IS DISTINCT FROM (p.user_id, p.dag_id)
UNION ALL
SELECT 'artifact', x.task_id FROM artifacts x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT 'ledger', x.task_id FROM usage_ledger x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.task_id IS NOT NULL AND x.user_id IS DISTINCT FROM t.user_id
UNION ALL
SELECT 'event', x.task_id FROM events x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE (x.user_id, x.dag_id) IS DISTINCT FROM (t.user_id, t.dag_id)
UNION ALL
SELECT 'graph event', x.dag_id FROM dag_events x LEFT JOIN dags d ON d.id = x.dag_id
 WHERE x.user_id IS DISTINCT FROM d.user_id
UNION ALL
SELECT 'spending', x.task_id FROM spending x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE (x.user_id, x.dag_id) IS DISTINCT FROM (t.user_id, t.dag_id)
UNION ALL
SELECT 'dead letter', x.task_id FROM dead_letters x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE (x.user_id, x.dag_id) IS DISTINCT FROM (t.user_id, t.dag_id);

-- name: I16
-- no two tasks of a user have the same idempotency key
SELECT user_id, idempotency_key, count(*) AS tasks
  FROM tasks
 WHERE idempotency_key IS NOT NULL
 GROUP BY user_id, idempotency_key
HAVING count(*) > 1;

-- name: I18
-- a task's events have no gap, are legal moves and lead to its state; only people move a task out of a final state
WITH path AS (
    SELECT *, lag(seq, 1, 0) OVER w AS seq_before, lag(to_state) OVER w AS state_before,
           lag(at) OVER w AS at_before, lag(epoch) OVER w AS epoch_before
      FROM events
    WINDOW w AS (PARTITION BY task_id ORDER BY seq)
)
SELECT task_id, seq, from_state, to_state, actor
  FROM path
 WHERE seq <> seq_before + 1
    OR from_state IS DISTINCT FROM state_before
    OR (from_state IS NULL AND to_state NOT IN ('created', 'pending', 'ready')
        AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = path.task_id AND t.copied_from IS NOT NULL))
    OR (from_state || '>' || to_state) <> ALL (CAST(:moves AS text[]))
    OR (from_state IN ('completed', 'dead_lettered', 'cancelled') AND actor !~ '^(human|operator|user):')
    OR at < at_before
    OR epoch <> coalesce(epoch_before, 0) + (to_state = 'claimed' OR from_state = 'ready' AND to_state = 'running')::int
UNION ALL
SELECT t.id, l.seq, NULL, l.to_state, NULL
  FROM tasks t
  LEFT JOIN (SELECT DISTINCT ON (task_id) * FROM events ORDER BY task_id, seq DESC) l ON l.task_id = t.id
 WHERE (l.to_state, l.seq) IS DISTINCT FROM (t.state, t.revision);

-- name: I19
-- each move to dead_lettered has a dead letter, and a task is dead-lettered until its letter is resolved
SELECT t.id, t.state, l.letters, d.deaths, l.dead
  FROM tasks t
  LEFT JOIN (SELECT task_id, count(*) AS letters,
                    bool_or(resolution IS NULL) AS dead
               FROM dead_letters GROUP BY task_id) l ON l.task_id = t.id
  LEFT JOIN (SELECT task_id, count(*) AS deaths
               FROM events WHERE to_state = 'dead_lettered' GROUP BY task_id) d ON d.task_id = t.id
 WHERE l.letters IS DISTINCT FROM d.deaths
    OR (t.state = 'dead_lettered') <> coalesce(l.dead, false);

-- name: I20
-- an accepted result belongs to the run that owned the attempt; no attempt is started twice or without its claim
WITH owned AS (
    -- A run is identified by the suffix of its claim token, which is too short to be used as a token.
    SELECT task_id, epoch, outcome, started_at,
           right(encode(sha256(convert_to('overnight-claim|' || task_id || '|' || epoch || '|' || token, 'UTF8')), 'hex'),
                 16) AS token_suffix
      FROM attempts
)
SELECT o.task_id, o.epoch, count(x.epoch) AS runs
  FROM owned o
  LEFT JOIN exec_log x ON x.task_id = o.task_id AND x.epoch = o.epoch AND x.token_suffix = o.token_suffix AND x.ok
 WHERE :has_record AND o.outcome = 'completed'
 GROUP BY o.task_id, o.epoch
HAVING count(x.epoch) <> 1
UNION ALL
SELECT task_id, epoch, count(*)
  FROM exec_log
 GROUP BY task_id, epoch
HAVING count(*) > 1
UNION ALL
SELECT x.task_id, x.epoch, NULL
  FROM exec_log x
  LEFT JOIN owned o ON o.task_id = x.task_id AND o.epoch = x.epoch AND o.token_suffix = x.token_suffix AND o.started_at IS NOT NULL
 WHERE o.task_id IS NULL;

-- name: H01
-- every user has a lane, and its counters and limits equal those computed from the user's rows
SELECT u.id AS user_id, l.active, l.ready, l.waiting, l.reserved_seconds, l.used_seconds
  FROM users u
  LEFT JOIN lanes l ON l.user_id = u.id
  LEFT JOIN (SELECT user_id,
                    count(*) FILTER (WHERE state IN ('claimed', 'running', 'validating')) AS active,
                    count(*) FILTER (WHERE state = 'ready') AS ready,
                    count(*) FILTER (WHERE state IN ('created', 'pending', 'ready', 'retrying')) AS waiting,
                    coalesce(sum(reserved_seconds), 0) AS reserved
               FROM tasks GROUP BY user_id) t ON t.user_id = u.id
  LEFT JOIN (SELECT user_id, period_started_at, sum(seconds) AS used
               FROM usage_ledger GROUP BY user_id, period_started_at) e
         ON e.user_id = u.id AND e.period_started_at = l.cycle_started_at
 WHERE (l.active, l.ready, l.waiting, l.reserved_seconds, l.used_seconds) IS DISTINCT FROM
       (coalesce(t.active, 0), coalesce(t.ready, 0), coalesce(t.waiting, 0), coalesce(t.reserved, 0),
        coalesce(e.used, 0))
    OR (l.max_active, l.max_task_seconds, l.limit_seconds) IS DISTINCT FROM
       (CASE WHEN u.disabled_at IS NULL THEN u.max_concurrent_agents ELSE 0 END,
        u.max_task_duration_minutes * 60, u.monthly_agent_hours_limit * 3600::bigint);

-- name: H02
-- a graph's counters equal the counts of its tasks
SELECT g.id, g.total, g.open, g.completed, g.dead, g.cancelled, g.stopped
  FROM dags g
  LEFT JOIN tasks t ON t.dag_id = g.id
 GROUP BY g.id
HAVING (g.total, g.completed, g.dead, g.cancelled, g.stopped, g.open) IS DISTINCT FROM
       (count(t.id),
        count(*) FILTER (WHERE t.state = 'completed'),
        count(*) FILTER (WHERE t.state = 'dead_lettered'),
        count(*) FILTER (WHERE t.state = 'cancelled'),
        count(*) FILTER (WHERE t.state = 'cancelled' AND coalesce(
            t.failure_reason NOT IN ('not_needed', 'upstream_cancelled', 'upstream_failed'), true)),
        count(*) FILTER (WHERE t.state NOT IN ('completed', 'dead_lettered', 'cancelled')));

-- name: H03
-- a lock is held by one attempt at a time; a path also excludes its directories and what is below it
WITH held AS (
    SELECT t.user_id, a.task_id, a.epoch, a.claimed_at, coalesce(a.ended_at, 'infinity') AS ended_at, key
      FROM attempts a
      JOIN tasks t ON t.id = a.task_id
     CROSS JOIN unnest(t.locks) key
), path AS (
    -- Each path with itself and every directory above it.
    SELECT held.*, above.name, above.name = key AS is_itself
      FROM held
     CROSS JOIN LATERAL (
        SELECT 'path:.' AS name
        UNION
        SELECT array_to_string((string_to_array(key, '/'))[1:depth], '/')
          FROM generate_series(1, cardinality(string_to_array(key, '/'))) depth) above
     WHERE key LIKE 'path:%'
)
SELECT user_id, key, task_id, epoch
  FROM (SELECT *, max(ended_at) OVER (PARTITION BY user_id, key ORDER BY claimed_at, ended_at
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest_end
          FROM held) holders
 WHERE claimed_at < latest_end
UNION ALL
SELECT above.user_id, above.key, above.task_id, above.epoch
  FROM path above
  JOIN path below ON below.user_id = above.user_id AND below.name = above.name
 WHERE above.is_itself
   AND (above.task_id, above.epoch) <> (below.task_id, below.epoch)
   AND above.claimed_at < below.ended_at AND below.claimed_at < above.ended_at;

-- name: H04
-- a task's cost is the sum of its attempts' costs, a graph's cost the sum of its tasks' costs
SELECT t.id, t.cost_usd, sum(a.cost_usd) AS of_attempts
  FROM tasks t LEFT JOIN attempts a ON a.task_id = t.id
 GROUP BY t.id
HAVING t.cost_usd <> coalesce(sum(a.cost_usd), 0)
UNION ALL
SELECT g.id, g.spent_usd, sum(t.cost_usd)
  FROM dags g LEFT JOIN tasks t ON t.dag_id = g.id
 GROUP BY g.id
HAVING g.spent_usd <> coalesce(sum(t.cost_usd), 0);

-- name: H08
-- an attempt's cost is the sum of its spending rows, and the counter of a night the sum of that night's rows
SELECT a.task_id, a.epoch, a.cost_usd, sum(s.usd) AS spent
  FROM attempts a LEFT JOIN spending s USING (task_id, epoch)
 GROUP BY a.task_id, a.epoch
HAVING a.cost_usd <> coalesce(sum(s.usd), 0)
UNION ALL
SELECT l.user_id, NULL, l.night_spent_usd, sum(s.usd)
  FROM lanes l LEFT JOIN spending s USING (user_id, night_started_at)
 GROUP BY l.user_id
HAVING l.night_spent_usd <> coalesce(sum(s.usd), 0)
    OR (l.night_started_at IS NULL) <> (l.night_ends_at IS NULL);

-- name: H09
-- money is reserved for active tasks only, and the counters of user and graph are the sums of it
SELECT l.user_id, l.night_reserved_usd, sum(t.reserved_usd) AS promised
  FROM lanes l LEFT JOIN tasks t ON t.user_id = l.user_id AND t.reserved_usd > 0
 GROUP BY l.user_id
HAVING l.night_reserved_usd <> coalesce(sum(t.reserved_usd), 0)
UNION ALL
SELECT g.id, g.reserved_usd, sum(t.reserved_usd)
  FROM dags g LEFT JOIN tasks t ON t.dag_id = g.id AND t.reserved_usd > 0
 GROUP BY g.id
HAVING g.reserved_usd <> coalesce(sum(t.reserved_usd), 0)
UNION ALL
SELECT id, reserved_usd, run_cost_usd
  FROM tasks
 WHERE (reserved_usd IS NOT NULL OR run_cost_usd <> 0) AND state NOT IN ('claimed', 'running', 'validating');

-- name: H10
-- no task beyond its cost limit can run, and a task awaits a budget only if it has reached one
SELECT t.id, t.state, t.cost_usd, t.max_cost_usd, t.awaits_budget
  FROM tasks t
 WHERE (t.state IN ('ready', 'retrying', 'claimed') AND t.cost_usd > 0 AND t.cost_usd >= t.max_cost_usd)
    OR (t.awaits_budget IS NOT NULL
        AND (t.state <> 'pending' OR t.cost_usd = 0 OR t.unmet > 0
             OR (t.awaits_budget = 'task' AND t.cost_usd < t.max_cost_usd)));

-- name: H11
-- each user has one notice for each mark of used hours that was reached
SELECT l.user_id, mark, count(n.id) AS notices
  FROM lanes l
 CROSS JOIN unnest(ARRAY[50, 80, 100]) mark
  LEFT JOIN notices n ON n.user_id = l.user_id AND n.kind = 'usage.' || mark
                     AND n.subject = to_char(l.cycle_started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
 WHERE EXISTS (SELECT 1 FROM plan_history h
                WHERE h.user_id = l.user_id
                GROUP BY h.user_id
               HAVING max(coalesce(h.limit_seconds, 9e15)) * mark <= l.used_seconds * 100)
   AND l.used_seconds > 0
 GROUP BY l.user_id, mark
HAVING count(n.id) <> 1;

-- name: H05
-- the seconds of a charge are those of the run within that billing month, and a refund equals its charge
WITH charged AS (
    SELECT l.*, sum(l.seconds) OVER (PARTITION BY l.task_id, l.epoch) AS in_all
      FROM usage_ledger l
     WHERE l.kind = 'usage'
)
SELECT e.id, e.task_id, e.epoch, e.period_started_at, e.seconds
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
SELECT r.id, r.task_id, r.epoch, r.period_started_at, r.seconds
  FROM usage_ledger r
  LEFT JOIN charged e USING (task_id, epoch, period_started_at)
 WHERE r.kind = 'refund' AND r.seconds IS DISTINCT FROM -e.seconds;

-- name: H06
-- an expired claim was never started, and an attempt with a result was
SELECT task_id, epoch, outcome
  FROM attempts
 WHERE (outcome = 'expired' AND started_at IS NOT NULL)
    OR (outcome NOT IN ('busy', 'expired', 'interrupted', 'cancelled') AND started_at IS NULL);

-- name: H07
-- held_locks has exactly the locks of the active tasks
SELECT coalesce(t.id, h.task_id) AS task_id, t.state, coalesce(t.key, h.key) AS key
  FROM (SELECT id, user_id, state, key FROM tasks CROSS JOIN unnest(locks) key
         WHERE state IN ('claimed', 'running', 'validating')) t
  FULL JOIN held_locks h ON h.task_id = t.id AND h.user_id = t.user_id AND h.key = t.key
 WHERE t.id IS NULL OR h.task_id IS NULL;

-- name: H12
-- a trigger is due once its graph has ended as its condition says, and the graph it submitted belongs to its user
SELECT t.id, t.condition, g.status
  FROM dag_triggers t
  LEFT JOIN dags g ON g.id = t.dag_id
  LEFT JOIN tasks f ON f.dag_id = t.fired_dag_id
 WHERE (t.due_at IS NULL AND t.dropped_at IS NULL AND g.finished_at IS NOT NULL
        AND t.condition IN ('finished', g.status))
    OR (t.fired_at IS NOT NULL AND (t.due_at IS NULL OR f.user_id IS DISTINCT FROM t.user_id));

-- name: H13
-- a bulk operation's counters add up, and a completed one has processed every chosen task
SELECT b.id, b.state, b.total, b.done, b.changed, b.skipped, b.refused
  FROM bulk_operations b
 CROSS JOIN LATERAL (SELECT coalesce(sum(CAST(value AS int)), 0) AS refusals FROM jsonb_each_text(b.refused)) r
 WHERE b.done <> b.changed + b.skipped + r.refusals
    OR (b.state = 'completed' AND b.done <> b.total);
