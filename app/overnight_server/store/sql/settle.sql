-- name: settle
-- End runs. Epoch and token are the fence: a holder that lost its claim matches no row and changes nothing.
-- A reaper's verdict (`only_expired`) also requires that the lease is still over, because a heartbeat may
-- have arrived after the reaper read the row.
WITH verdict AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:verdicts AS jsonb)) AS v(
        task_id uuid, epoch int, token uuid, sources text[], target text, is_final boolean, only_expired boolean,
        outcome text, reason text, message text, detail text, wait_seconds float8, spent boolean, billed boolean,
        run_alone boolean, to_back boolean, ran_seconds float8, escalation text,
        output jsonb, summary text, files_changed jsonb, cost_usd numeric, tokens jsonb, waits boolean)
), held AS MATERIALIZED (
    -- `goal` is the state to write: a task whose owner requested a stop is cancelled instead of retried; a task
    -- that has used up a budget waits for a raise.
    SELECT v.*, t.user_id, t.dag_id, t.started_at AS ran_since, t.reserved_seconds, unrecorded.usd AS unrecorded_usd, exhausted.budget,
           CASE WHEN v.escalation = 'priority' THEN greatest(t.priority - :escalated_priority, 0) ELSE 0 END AS boost,
           CASE WHEN t.cancel_requested_at IS NOT NULL AND NOT v.is_final THEN 'cancelled'
                WHEN exhausted.budget IS NOT NULL THEN 'pending'
                WHEN v.target = 'pending' AND v.waits IS NOT TRUE THEN 'ready'
                ELSE v.target END AS goal
      FROM (SELECT * FROM verdict ORDER BY task_id) v
     -- OFFSET 0: each row is found by its key and read after it is locked.
     CROSS JOIN LATERAL (SELECT user_id, dag_id, state, epoch, token, expires_at, started_at, reserved_seconds, priority,
                                cancel_requested_at, max_cost_usd, cost_usd, run_cost_usd
                           FROM tasks WHERE id = v.task_id OFFSET 0 FOR NO KEY UPDATE) t
     -- Without what was reported while it ran.
     CROSS JOIN LATERAL (SELECT greatest(round(v.cost_usd, 6) - t.run_cost_usd, 0) AS usd) unrecorded
     CROSS JOIN LATERAL (
        -- A run that suspended itself is checked when it continues.
        SELECT CASE WHEN NOT v.is_final AND v.waits IS NOT TRUE AND t.state IN ('running', 'validating')
                         AND t.run_cost_usd + unrecorded.usd > 0
                    THEN exhausted_budget(t.user_id, t.dag_id, t.max_cost_usd, t.cost_usd, unrecorded.usd) END AS budget) exhausted
     WHERE t.epoch = v.epoch
       AND t.token = v.token
       AND t.state = ANY (v.sources)
       AND (NOT v.only_expired OR t.expires_at <= clock())
), ended AS (
    UPDATE tasks t
       SET state = h.goal,
           attempts = t.attempts + h.spent::int,
           token = NULL, claimed_by = NULL, pool = NULL, claimed_at = NULL, expires_at = NULL,
           reserved_seconds = NULL, bundle = NULL,
           runs_alone = t.runs_alone OR h.run_alone,
           retry_at = CASE WHEN h.goal = 'retrying' THEN clock() + make_interval(secs => h.wait_seconds) END,
           finished_at = CASE WHEN h.is_final OR h.goal = 'cancelled' THEN clock() END,
           failure_reason = CASE h.goal WHEN 'cancelled' THEN 'cancelled'
                                        WHEN 'pending' THEN CASE WHEN h.budget IS NOT NULL THEN 'budget_exceeded' END
                                        WHEN 'ready' THEN NULL ELSE h.reason END,
           -- What returned a task to the queue is no error of the task.
           error = CASE WHEN h.goal <> 'ready' THEN h.message END,
           output = h.output,
           result_summary = h.summary,
           files_changed = h.files_changed,
           cost_usd = t.cost_usd + h.unrecorded_usd,
           awaits_budget = CASE WHEN h.goal = 'pending' THEN h.budget END,
           -- An escalated task moves forward in its queue by as much.
           priority = t.priority - h.boost,
           -- A task whose agent was busy is ordered as if it were new.
           requeued_at = CASE WHEN h.to_back THEN clock() ELSE t.requeued_at END,
           sort_key = CASE WHEN h.to_back
                           THEN sort_key(t.priority, t.priority_boost_per_minute, clock(), t.dependency_boost,
                                         t.deadline_at, clock())
                           ELSE t.sort_key - h.boost END,
           tokens_used = h.tokens
      FROM held h
     WHERE t.id = h.task_id
    RETURNING t.id
), closed AS (
    UPDATE attempts a
       SET ended_at = clock(), outcome = h.outcome, spent = h.spent, error_class = h.reason, error = h.message,
           detail = h.detail, cost_usd = a.cost_usd + h.unrecorded_usd, tokens_used = h.tokens
      FROM held h
     WHERE a.task_id = h.task_id AND a.epoch = h.epoch
), charged AS MATERIALIZED (
    -- The time to charge: not more than was reserved for the run, nor than its holder measured.
    SELECT h.task_id, h.epoch, h.user_id, h.billed, h.outcome, h.ran_since,
           greatest(h.ran_since, least(clock(), h.ran_since + make_interval(secs => h.reserved_seconds),
                                       h.ran_since + make_interval(secs => h.ran_seconds))) AS ran_until
      FROM held h
     WHERE h.ran_since IS NOT NULL
), used AS MATERIALIZED (
    -- The seconds in each billing month that the run touched; nearly always only the lane's current one.
    SELECT s.*, slice.period_started_at, slice.seconds
      FROM charged s
      JOIN lanes l ON l.user_id = s.user_id
      JOIN users u ON u.id = s.user_id
     CROSS JOIN LATERAL (
        SELECT l.cycle_started_at AS period_started_at,
               round(extract(epoch FROM s.ran_until - s.ran_since), 3) AS seconds
         WHERE s.ran_since >= l.cycle_started_at AND s.ran_until < l.resets_at
        UNION ALL
        SELECT across.period_started_at, across.seconds
          FROM billing_slices(u.billing_anchor_at, s.ran_since, s.ran_until) across
         WHERE NOT (s.ran_since >= l.cycle_started_at AND s.ran_until < l.resets_at)) slice
), recorded AS (
    INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds, note)
    SELECT user_id, task_id, epoch, period_started_at, 'usage', seconds, outcome FROM used
    UNION ALL
    SELECT user_id, task_id, epoch, period_started_at, 'refund', -seconds, outcome FROM used WHERE NOT billed
)
SELECT h.task_id, h.epoch, h.goal, h.unrecorded_usd,
       EXISTS (SELECT 1 FROM task_edges e WHERE e.parent_id = h.task_id) AS has_dependents,
       EXISTS (SELECT 1 FROM staged_artifacts s WHERE s.task_id = h.task_id AND s.epoch = h.epoch) AS has_artifacts
  FROM held h;

-- name: claims_by_token
-- Claims of a token, for a worker that got no response to its claim. Bounded by the slots of the pool.
SELECT id, epoch, token
  FROM tasks
 WHERE pool = :pool AND state IN ('claimed', 'running', 'validating') AND token = :token;

-- name: keep_rejected_outputs
-- Keep outputs that validators rejected, with the attempts that returned them; a task keeps only its latest one.
UPDATE attempts a
   SET validator = CASE WHEN a.epoch = r.epoch THEN r.validator ELSE a.validator END,
       rejected = CASE WHEN a.epoch = r.epoch THEN r.rejected END
  FROM jsonb_to_recordset(CAST(:rejections AS jsonb)) AS r(task_id uuid, epoch int, validator text, rejected jsonb)
 WHERE a.task_id = r.task_id
   AND (a.epoch = r.epoch OR a.rejected IS NOT NULL);

-- name: record_spending
-- Record costs that were not reported while the runs were active; their lanes are locked.
INSERT INTO spending AS s (task_id, epoch, night_started_at, user_id, dag_id, usd)
SELECT t.id, cost.epoch, night.started_at, t.user_id, t.dag_id, cost.usd
  FROM jsonb_to_recordset(CAST(:costs AS jsonb)) AS cost(task_id uuid, epoch int, usd numeric)
  JOIN tasks t ON t.id = cost.task_id
 CROSS JOIN LATERAL current_night(t.user_id) night
    ON CONFLICT (task_id, epoch, night_started_at) DO UPDATE SET usd = s.usd + excluded.usd;

-- name: insert_escalation_notices
-- Notify the owners of tasks that keep failing.
INSERT INTO notices (user_id, kind, subject, task_id, detail)
SELECT t.user_id, 'task.escalated', t.id || ':' || e.epoch, t.id,
       jsonb_build_object('rule', e.rule, 'reason', e.reason, 'error', e.error)
  FROM jsonb_to_recordset(CAST(:escalations AS jsonb)) AS e(task_id uuid, epoch int, rule text, reason text, error text)
  JOIN tasks t ON t.id = e.task_id;

-- name: cancel_spawned
-- Cancel the open tasks that cancelled tasks spawned, at any depth: waiting ones now; running ones are
-- requested to stop.
WITH RECURSIVE below AS (
    SELECT id FROM tasks WHERE parent_id = ANY (CAST(:parents AS uuid[]))
    UNION
    SELECT t.id FROM below b JOIN tasks t ON t.parent_id = b.id
), open AS MATERIALIZED (
    SELECT t.id, t.epoch, t.state = ANY (CAST(:sources AS text[])) AS is_waiting
      FROM (SELECT id FROM below ORDER BY id) b
     CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = b.id OFFSET 0 FOR NO KEY UPDATE) t
     WHERE t.finished_at IS NULL
), closed AS (
    UPDATE attempts a
       SET ended_at = clock(), outcome = 'cancelled'
      FROM open o
     WHERE o.is_waiting AND a.task_id = o.id AND a.epoch = o.epoch AND a.ended_at IS NULL
)
UPDATE tasks t
   SET state = CASE WHEN o.is_waiting THEN :target ELSE t.state END,
       cancel_requested_at = coalesce(t.cancel_requested_at, clock()),
       token = CASE WHEN NOT o.is_waiting THEN t.token END,
       claimed_by = CASE WHEN NOT o.is_waiting THEN t.claimed_by END,
       pool = CASE WHEN NOT o.is_waiting THEN t.pool END,
       claimed_at = CASE WHEN NOT o.is_waiting THEN t.claimed_at END,
       expires_at = CASE WHEN NOT o.is_waiting THEN t.expires_at END,
       reserved_seconds = CASE WHEN NOT o.is_waiting THEN t.reserved_seconds END,
       bundle = CASE WHEN NOT o.is_waiting THEN t.bundle END,
       retry_at = NULL,
       finished_at = CASE WHEN o.is_waiting THEN clock() END,
       failure_reason = CASE WHEN o.is_waiting THEN :reason ELSE t.failure_reason END
  FROM open o
 WHERE t.id = o.id
RETURNING t.id, o.is_waiting;

-- name: insert_dead_letters
-- Insert dead letters for failed tasks, with every attempt that counts.
INSERT INTO dead_letters (task_id, dag_id, user_id, fingerprint, failure_history, total_cost_usd, poison_pill)
SELECT t.id, t.dag_id, t.user_id, error_fingerprint(t.type, t.failure_reason, t.error),
       coalesce((SELECT jsonb_agg(jsonb_build_object(
                           'attempt', a.number, 'epoch', a.epoch, 'agent', a.agent, 'outcome', a.outcome,
                           'error_class', a.error_class, 'error', a.error, 'detail', a.detail,
                           'started_at', a.started_at, 'ended_at', a.ended_at,
                           'duration_sec', round(extract(epoch FROM a.ended_at - a.started_at), 3),
                           'cost_usd', a.cost_usd) ORDER BY a.epoch)
                   FROM (SELECT *, row_number() OVER (ORDER BY epoch) AS number
                           FROM attempts
                          WHERE task_id = t.id AND spent) a), '[]'),
       t.cost_usd,
       t.id = ANY (CAST(:poisoned AS uuid[]))
  FROM tasks t
 WHERE t.id = ANY (CAST(:tasks AS uuid[]));

-- name: insert_stale_result
-- A result that came after the claim was lost: kept for inspection, never applied. One per claim is enough.
INSERT INTO stale_results (task_id, epoch, agent, outcome, result)
VALUES (:task_id, :epoch, :agent, :outcome, CAST(:result AS jsonb))
    ON CONFLICT (task_id, epoch) DO NOTHING;
