-- Conditions that every database meets at every instant and that the audit of the deployment cannot check: they
-- concern what only a test knows, or the whole history at once. Each query returns the rows that violate one
-- invariant. Parameters: acked (uuid[]), drained (boolean), sweep_time (interval), has_record (boolean:
-- exec_log was written). The table plan_history has each user's limits with the time
-- since when they apply. exec_log is the handlers' own record: one row for each start of a handler.

-- name: I01
-- every acknowledged submission exists
SELECT acked.id
  FROM unnest(CAST(:acked AS uuid[])) acked(id)
  LEFT JOIN tasks t ON t.id = acked.id
 WHERE t.id IS NULL;

-- name: N01
-- an event has exactly its deliveries: one or more, each to a channel of the user whom it concerns, of its own kind
SELECT n.id, n.user_id, d.id AS delivery_id, d.channel_id
  FROM notifications n
  LEFT JOIN notification_deliveries d ON d.notification_id = n.id
  LEFT JOIN notification_channels c ON c.id = d.channel_id
 WHERE d.id IS NULL OR d.user_id <> n.user_id OR c.user_id <> n.user_id OR d.kind <> n.kind
    OR d.thread IS DISTINCT FROM coalesce(n.task_id, n.dag_id)
    OR d.state = 'delivered' AND d.message IS NULL;

-- name: N02
-- each dead letter is told to the channels of its owner that want dead letters
SELECT l.id, c.id AS channel_id
  FROM dead_letters l
  JOIN notification_channels c ON c.user_id = l.user_id AND c.created_at < l.dead_lettered_at AND c.removed_at IS NULL
   AND c.disabled_at IS NULL AND c.subscribed @> '{task.dead_lettered}'
  LEFT JOIN notifications n ON n.user_id = l.user_id AND n.subject = 'dead_letter:' || l.id
  LEFT JOIN notification_deliveries d ON d.notification_id = n.id AND d.channel_id = c.id
 WHERE d.id IS NULL;

-- name: N03
-- messages about one task or graph reach a channel in their order: none is sent while an earlier one is open
SELECT later.id, earlier.id AS earlier_id
  FROM notification_deliveries later
  JOIN notification_deliveries earlier ON earlier.channel_id = later.channel_id AND earlier.thread = later.thread
   AND earlier.id < later.id AND earlier.message IS DISTINCT FROM later.message
 WHERE later.state = 'sending' AND earlier.ended_at IS NULL;

-- name: I02
-- after a drain every task has ended
SELECT id, state, unmet, epoch, retry_at
  FROM tasks
 WHERE :drained AND state NOT IN ('completed', 'dead_lettered', 'cancelled');

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
-- a run is charged for the time that its handler worked
WITH charged AS (
    SELECT task_id, epoch, sum(seconds) AS used FROM usage_ledger WHERE kind = 'usage' GROUP BY task_id, epoch
), worked AS (
    SELECT task_id, epoch, min(seconds) AS seconds FROM exec_log GROUP BY task_id, epoch
)
SELECT task_id, epoch, a.outcome, w.seconds AS worked, c.used
  FROM attempts a
  JOIN charged c USING (task_id, epoch)
  JOIN worked w USING (task_id, epoch)
    -- A worker subtracts the time that a run waited in its bundle, but not the time that its handler worked. An
    -- interrupted run may be charged less, because its handler may not have started, and a lost run is charged
    -- until its last heartbeat.
 WHERE :has_record
   AND c.used < least(extract(epoch FROM a.ended_at - a.started_at), a.granted_seconds, w.seconds) - 0.05
   AND a.outcome NOT IN ('bundle_crash', 'busy', 'cancelled', 'crash', 'interrupted', 'worker_lost');

-- name: I10
-- no lease or retry time is in the past for longer than the sweeps may take
SELECT id, state, expires_at, retry_at
  FROM tasks
 WHERE least(expires_at, retry_at) < clock() - CAST(:sweep_time AS interval);

-- name: I16
-- no two tasks of a user have the same idempotency key
SELECT user_id, idempotency_key, count(*) AS tasks
  FROM tasks
 WHERE idempotency_key IS NOT NULL
 GROUP BY user_id, idempotency_key
HAVING count(*) > 1;

-- name: I17
-- a fire time of a schedule has exactly one outcome, and what it submitted was submitted for it alone
SELECT schedule_id, fire_at, status, dag_id
  FROM schedule_fires
 WHERE (status = 'queued') <> (dag_id IS NOT NULL)
UNION ALL
SELECT schedule_id, fire_at, 'twice', NULL
  FROM schedule_fires
 GROUP BY schedule_id, fire_at
HAVING count(*) > 1
UNION ALL
SELECT NULL, NULL, 'one graph for ' || count(*) || ' fire times', dag_id
  FROM schedule_fires
 WHERE dag_id IS NOT NULL
 GROUP BY dag_id
HAVING count(*) > 1
UNION ALL
SELECT NULL, NULL, 'no fire time', t.dag_id
  FROM tasks t
 WHERE t.source = 'scheduler'
   AND EXISTS (SELECT 1 FROM schedules s
                WHERE s.user_id = t.user_id AND 'cron:' || s.name = t.created_by AND s.created_at <= t.created_at)
   AND NOT EXISTS (SELECT 1 FROM dags g WHERE g.id = t.dag_id AND g.forked_from IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM schedule_fires f WHERE f.dag_id = t.dag_id)
UNION ALL
SELECT f.schedule_id, f.fire_at, 'before its time', f.dag_id
  FROM schedules s
  JOIN schedule_fires f ON f.schedule_id = s.id
 WHERE f.kind = 'scheduled'
   AND f.fire_at >= s.next_fire_at;

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
   -- A command in a sandbox cannot write the record.
   AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = o.task_id AND t.execution IS NOT NULL)
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
