-- Statements that each violate one invariant in a correct history, under the invariant or the rule of the
-- audit that must report it. The parameters done, bundled, lost, dead, revived, handed_back, child, running, blocked
-- and waiting are tasks of the history; exec_log is the handlers' own record.

-- name: completions
UPDATE attempts SET outcome = 'completed' WHERE task_id = :dead;
UPDATE attempts SET outcome = 'failed' WHERE task_id = :done;
UPDATE attempts SET spent = false WHERE task_id = :done;

-- name: attempt_numbers
UPDATE tasks SET attempts = attempts + 1 WHERE id = :done;
UPDATE tasks SET max_attempts = 0 WHERE id = :done;
UPDATE tasks SET epoch = epoch + 1 WHERE id = :done;
UPDATE attempts SET epoch = 7 WHERE task_id = :done;
UPDATE attempts SET outcome = 'interrupted' WHERE task_id = :done;
DELETE FROM attempts WHERE task_id = :done;

-- name: attempt_times
UPDATE attempts SET ended_at = ended_at + interval '1 day'
 WHERE task_id = :handed_back AND epoch = 1;
UPDATE attempts SET ended_at = NULL WHERE task_id = :handed_back AND epoch = 1;
UPDATE attempts SET started_at = claimed_at - interval '1 s' WHERE task_id = :done;
UPDATE attempts SET ended_at = started_at - interval '1 s' WHERE task_id = :done;
UPDATE attempts SET outcome = 'expired' WHERE task_id = :done;
UPDATE attempts SET started_at = NULL WHERE task_id = :done;

-- name: N01
DELETE FROM notification_deliveries;
UPDATE notification_deliveries SET user_id = :other;
UPDATE notification_channels SET user_id = :other;
UPDATE notification_deliveries SET kind = 'test';
UPDATE notification_deliveries SET thread = NULL;
UPDATE notification_deliveries SET state = 'delivered', ended_at = clock();

-- name: N02
DELETE FROM notifications;

-- name: N03
INSERT INTO notification_deliveries (notification_id, channel_id, user_id, kind, thread, state, token, claimed_until, message)
 SELECT notification_id, channel_id, user_id, kind, thread, 'sending', gen_random_uuid(), clock(), 'msg_x'
   FROM notification_deliveries;

-- name: I06
UPDATE attempts SET ended_at = NULL WHERE user_id = :user;
UPDATE plan_history SET max_active = 1 WHERE user_id = :user;

-- name: I07
UPDATE usage_ledger SET seconds = 360002 WHERE task_id = :done;
UPDATE plan_history SET limit_seconds = 60 WHERE user_id = :user;
UPDATE attempts SET granted_seconds = 360001 WHERE task_id = :running;
UPDATE attempts SET granted_seconds = 353000 WHERE task_id = :running;
INSERT INTO usage_ledger (user_id, period_started_at, kind, seconds, recorded_at)
 SELECT user_id, cycle_started_at, 'adjustment', 353000, '-infinity' FROM lanes WHERE user_id = :user;

-- name: I08
UPDATE usage_ledger SET seconds = 0 WHERE task_id = :done;
UPDATE usage_ledger SET seconds = seconds - 1 WHERE task_id = :done;
UPDATE usage_ledger SET seconds = 0 WHERE task_id = :bundled;
UPDATE usage_ledger SET seconds = seconds - 1 WHERE task_id = :bundled;
UPDATE exec_log SET seconds = seconds + 1 WHERE task_id = :bundled;

-- name: charges
UPDATE usage_ledger SET seconds = 600 * sign(seconds) WHERE task_id = :lost;
DELETE FROM usage_ledger WHERE task_id = :done;
UPDATE usage_ledger SET seconds = seconds + 1 WHERE task_id = :done;
UPDATE usage_ledger SET epoch = 9 WHERE task_id = :done;
DELETE FROM usage_ledger WHERE task_id = :handed_back AND kind = 'refund';
UPDATE attempts SET outcome = 'worker_lost' WHERE task_id = :done;
UPDATE usage_ledger SET kind = 'refund', seconds = -seconds WHERE task_id = :done;

-- name: claims
UPDATE tasks SET token = NULL WHERE id = :running;
UPDATE tasks SET token = gen_random_uuid() WHERE id = :running;
UPDATE tasks SET token = gen_random_uuid() WHERE id = :waiting;
UPDATE tasks SET reserved_seconds = 1 WHERE id = :running;
UPDATE tasks SET bundle = gen_random_uuid() WHERE id = :running;
UPDATE tasks SET state = 'claimed' WHERE id = :running;
UPDATE attempts SET ended_at = clock(), outcome = 'failed' WHERE task_id = :running;

-- name: early_claims
UPDATE task_edges SET satisfied_at = clock() + interval '1 hour' WHERE child_id = :child;
UPDATE task_edges SET satisfied_at = NULL WHERE child_id = :child;

-- name: unmet_counts
UPDATE tasks SET unmet = 1 WHERE id = :waiting;
UPDATE tasks SET unmet = 0 WHERE id = :blocked;
UPDATE tasks SET state = 'pending' WHERE id = :waiting;
UPDATE tasks SET state = 'ready' WHERE id = :blocked;

-- name: edges
UPDATE task_edges SET satisfied_at = NULL WHERE child_id = :child;
UPDATE task_edges SET satisfied_at = clock() WHERE child_id = :blocked;
UPDATE task_edges SET condition = 'failure' WHERE child_id = :child;
UPDATE tasks SET state = 'cancelled' WHERE id = (SELECT parent_id FROM task_edges WHERE child_id = :blocked);
UPDATE tasks SET state = 'completed' WHERE id = (SELECT parent_id FROM task_edges WHERE child_id = :blocked);

-- name: cancel_reasons
UPDATE tasks SET state = 'cancelled', failure_reason = 'upstream_failed' WHERE id = :waiting;

-- name: graph_cycle
INSERT INTO task_edges (parent_id, child_id, dag_id, user_id)
 SELECT child_id, parent_id, dag_id, user_id FROM task_edges WHERE child_id = :blocked;

-- name: graph_counters
UPDATE dags SET open = 1, completed = 1 WHERE id = (SELECT dag_id FROM tasks WHERE id = :member);
UPDATE dags SET finished_at = NULL WHERE id = (SELECT dag_id FROM tasks WHERE id = :member);
UPDATE tasks SET state = 'cancelled' WHERE id = :member;
UPDATE dags SET total = total + 1 WHERE user_id = :user;
UPDATE dags SET open = open + 1 WHERE user_id = :user;
UPDATE dags SET completed = completed + 1 WHERE user_id = :user;
UPDATE dags SET dead = dead + 1 WHERE user_id = :user;
UPDATE dags SET cancelled = cancelled + 1 WHERE user_id = :user;
UPDATE dags SET stopped = stopped + 1 WHERE user_id = :user;
UPDATE dags SET spent_usd = 9 WHERE id = (SELECT dag_id FROM tasks WHERE id = :member);
UPDATE dags SET reserved_usd = 1 WHERE id = (SELECT dag_id FROM tasks WHERE id = :member);

-- name: owners
UPDATE dags SET user_id = :other WHERE id = (SELECT dag_id FROM tasks WHERE id = :member);
UPDATE tasks SET dag_id = gen_random_uuid() WHERE id = :done;
UPDATE attempts SET user_id = :other WHERE task_id = :done;
UPDATE task_edges SET user_id = :other WHERE child_id = :child;
UPDATE usage_ledger SET user_id = :other WHERE task_id = :done;
UPDATE events SET user_id = :other WHERE task_id = :done;
INSERT INTO dag_events SELECT 0, dag_id, :other, 'dag.completed', 'completed', clock() FROM tasks WHERE id = :member;
UPDATE spending SET user_id = :other WHERE task_id = :done;
UPDATE dead_letters SET user_id = :other WHERE task_id = :dead;
UPDATE tasks SET dag_id = (SELECT dag_id FROM tasks WHERE id = :member) WHERE id = :child;
DELETE FROM tasks WHERE id = :done;
DELETE FROM users WHERE id = :other;
INSERT INTO stale_results (task_id, epoch, agent, outcome, result) VALUES (gen_random_uuid(), 1, 'a', 'completed', '{}');
DELETE FROM dags WHERE id = (SELECT dag_id FROM tasks WHERE id = :member);

-- name: I16
UPDATE tasks SET idempotency_key = 'twice' WHERE id IN (:done, :dead);

-- name: events
DELETE FROM events WHERE task_id = :done AND seq = 1;
DELETE FROM events WHERE task_id = :done AND seq = 2;
DELETE FROM events WHERE task_id = :done AND seq = 4;
DELETE FROM events WHERE task_id = :done;
UPDATE events SET from_state = 'ready' WHERE task_id = :done AND seq = 3;
UPDATE events SET to_state = 'running' WHERE task_id = :waiting AND seq = 1;
UPDATE events SET to_state = CASE seq WHEN 3 THEN 'completed' ELSE to_state END,
       from_state = CASE seq WHEN 4 THEN 'completed' ELSE from_state END
 WHERE task_id = :done;
UPDATE events SET actor = 'overnight-worker' WHERE task_id = :revived;
UPDATE events SET at = at - interval '1 day' WHERE task_id = :done AND seq = 3;
UPDATE events SET epoch = 2 WHERE task_id = :done AND seq = 3;
UPDATE tasks SET state = 'cancelled' WHERE id = :done;
UPDATE tasks SET revision = 9 WHERE id = :done;

-- name: dead_letters
DELETE FROM dead_letters WHERE task_id = :dead;
UPDATE dead_letters SET resolution = 'retry' WHERE task_id = :dead;
UPDATE dead_letters SET resolution = NULL WHERE task_id = :revived;
UPDATE dead_letters SET task_id = :done WHERE task_id = :dead;

-- name: I17
UPDATE schedule_fires SET dag_id = gen_random_uuid();
UPDATE schedule_fires SET dag_id = NULL;
INSERT INTO schedule_fires SELECT * FROM schedule_fires;
INSERT INTO schedule_fires (schedule_id, fire_at, user_id, kind, status, dag_id)
SELECT schedule_id, fire_at - interval '1 day', user_id, kind, status, dag_id FROM schedule_fires;
DELETE FROM schedule_fires;
WITH changed AS (UPDATE schedule_fires SET kind = 'scheduled')
UPDATE schedules SET next_fire_at = '2000-01-01';

-- name: I20
DELETE FROM exec_log WHERE task_id = :done;
UPDATE exec_log SET ok = false WHERE task_id = :done;
UPDATE exec_log SET ok = NULL WHERE task_id = :done;
UPDATE exec_log SET epoch = epoch + 1 WHERE task_id = :done;
UPDATE exec_log SET token_suffix = 'of another claim' WHERE task_id = :done;
UPDATE exec_log SET token_suffix = 'of another claim' WHERE task_id = :dead;
UPDATE attempts SET token = gen_random_uuid() WHERE task_id = :done;
UPDATE attempts SET outcome = 'completed' WHERE task_id = :dead;
UPDATE attempts SET started_at = NULL WHERE task_id = :dead;
INSERT INTO exec_log SELECT * FROM exec_log WHERE task_id = :done;
INSERT INTO exec_log (task_id, epoch, token_suffix) SELECT task_id, epoch, token_suffix FROM exec_log WHERE task_id = :dead;
INSERT INTO exec_log (task_id, epoch, token_suffix) VALUES (:waiting, 1, 'of nobody');

-- name: lane_counters
UPDATE lanes SET active = active + 1 WHERE user_id = :user;
UPDATE lanes SET ready = ready + 1 WHERE user_id = :user;
UPDATE lanes SET waiting = waiting + 1 WHERE user_id = :user;
UPDATE lanes SET reserved_seconds = reserved_seconds + 1 WHERE user_id = :user;
UPDATE lanes SET used_seconds = used_seconds + 1 WHERE user_id = :user;
UPDATE lanes SET night_spent_usd = night_spent_usd + 1 WHERE user_id = :user;
UPDATE lanes SET night_started_at = NULL WHERE user_id = :user;
UPDATE lanes SET night_reserved_usd = 1 WHERE user_id = :user;
UPDATE tasks SET reserved_usd = 1 WHERE id = :running;

-- name: lane_limits
UPDATE users SET max_concurrent_agents = 99 WHERE id = :user;
UPDATE users SET monthly_agent_hours_limit = NULL WHERE id = :user;
UPDATE lanes SET max_active = 999 WHERE user_id = :user;
UPDATE lanes SET limit_seconds = NULL WHERE user_id = :user;
UPDATE lanes SET eligible = NOT eligible WHERE user_id = :user;
UPDATE lanes SET due_at = due_at + interval '1 year' WHERE user_id = :user;
UPDATE lanes SET plan_weight = 4 WHERE user_id = :user;
UPDATE lanes SET window_closed = true WHERE user_id = :user;
UPDATE users SET window_zone = 'UTC', window_from = '22:00', window_to = '06:00' WHERE id = :user;

-- name: artifact_usage
INSERT INTO artifact_usage (user_id, artifacts, bytes) VALUES (:user, 1, 0)
    ON CONFLICT (user_id) DO UPDATE SET artifacts = artifact_usage.artifacts + 1;
INSERT INTO artifact_usage (user_id, artifacts, bytes) VALUES (:user, 0, 1)
    ON CONFLICT (user_id) DO UPDATE SET bytes = artifact_usage.bytes + 1;

-- name: lane_missing
DELETE FROM lanes WHERE user_id = :other;
DELETE FROM users WHERE id = :other;

-- name: H03
UPDATE tasks SET locks = '{repository}' WHERE id IN (:running, :child);
UPDATE tasks SET locks = ARRAY[CASE WHEN id = :child THEN 'path:src' ELSE 'path:src/a' END] WHERE id IN (:running, :child);

-- name: costs
UPDATE tasks SET cost_usd = 9 WHERE id = :done;
UPDATE spending SET usd = 9 WHERE task_id = :done;
DELETE FROM spending WHERE task_id = :member;
UPDATE attempts SET cost_usd = 9 WHERE task_id = :done;

-- name: task_budgets
UPDATE tasks SET reserved_usd = 1 WHERE id = :waiting;
UPDATE tasks SET run_cost_usd = 1 WHERE id = :done;
UPDATE tasks SET cost_usd = 2, max_cost_usd = 1 WHERE id = :waiting;
UPDATE tasks SET awaits_budget = 'task' WHERE id = :waiting;
UPDATE tasks SET awaits_budget = 'night' WHERE id = :blocked;

-- name: H11
UPDATE plan_history SET limit_seconds = 60 WHERE user_id = :user;
DELETE FROM notices WHERE user_id = :other;

-- name: charge_months
UPDATE usage_ledger SET period_started_at = period_started_at + interval '1 hour'
 WHERE task_id = :done;
UPDATE usage_ledger SET period_started_at = period_started_at - interval '1 month'
 WHERE task_id = :done;
UPDATE usage_ledger SET period_started_at = period_started_at - interval '1 month'
 WHERE task_id = :lost AND kind = 'refund';
UPDATE usage_ledger SET seconds = seconds - 1 WHERE task_id = :lost AND kind = 'refund';
WITH less AS (UPDATE usage_ledger SET seconds = seconds - 60 WHERE task_id = :done)
INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds)
 SELECT user_id, task_id, epoch, period_started_at + interval '1 month', kind, 60 FROM usage_ledger WHERE task_id = :done;

-- name: missing_locks
UPDATE tasks SET locks = '{repository}' WHERE id = :running;

-- name: leaked_locks
INSERT INTO held_locks (user_id, key, task_id) SELECT user_id, 'repository', id FROM tasks WHERE id = :waiting;
INSERT INTO held_locks (user_id, key, task_id) VALUES (:user, 'repository', gen_random_uuid());

-- name: triggers
UPDATE dag_triggers SET due_at = NULL;
UPDATE dag_triggers SET fired_dag_id = (SELECT dag_id FROM tasks WHERE id = :waiting);
UPDATE dag_triggers SET user_id = :other;

-- name: bulk_counters
UPDATE bulk_operations SET changed = changed + 1;
UPDATE bulk_operations SET refused = '{"NOT_RETRYABLE": 1}';
UPDATE bulk_operations SET total = total + 1;

-- name: lane_pauses
UPDATE lanes SET paused = true WHERE user_id = :user;
INSERT INTO pauses (scope, target, paused_by) VALUES ('user', CAST(:user AS text), 'test');

-- name: pool_pauses
UPDATE pools SET paused = true;
INSERT INTO pauses (scope, target, paused_by) SELECT 'pool', name, 'test' FROM pools;
