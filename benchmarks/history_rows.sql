-- A month of finished work for many users, beside what waits and runs now. benchmarks/history_rows.py executes all of it as
-- one script with the number of tasks and of users.

-- The users have existed for longer than their tasks, and so has what the gate saw of them.
UPDATE users SET created_at = clock() - interval '90 days';
UPDATE lane_history SET since = clock() - interval '90 days';

-- The large user owns every tenth task: a number of its own tasks is n / 10. Ids rise with time as ours do.
WITH new AS MATERIALIZED (
    SELECT n, n / 10 AS own, lpad(to_hex(n + (1::bigint << 40)), 32, '0')::uuid AS id,
           pg_temp.user_of(n, %(users)s) AS user_id,
           clock() - interval '30 days' * (1 - n::float8 / %(tasks)s) - interval '2 hours' AS at,
           CASE WHEN n >= %(tasks)s - 50 AND n %% 10 = 0 THEN 'running'
                WHEN n >= %(tasks)s * 0.9 AND n / 10 %% 2 = 0 THEN 'ready'
                WHEN n < 1000 AND n %% 100 = 0 THEN 'cancelled'
                WHEN n / 10 %% 25 = 7 THEN 'dead_lettered'
                ELSE 'completed' END AS state,
           -- Every fifth hundred of the large user's tasks is five graphs of twenty.
           CASE WHEN n %% 10 = 0 AND n / 1000 %% 5 = 1 THEN (n / 200) * 200 ELSE n END AS graph
      FROM generate_series(0, %(tasks)s::bigint - 1) AS n
)
INSERT INTO tasks (id, user_id, dag_id, has_dag_row, type, title, created_by, payload, tags, state, priority, sort_key,
                   created_at, started_at, finished_at, updated_at, attempts, epoch, revision, failure_reason, error,
                   result_summary, output, cost_usd, token, claimed_by, pool, claimed_at, expires_at, heartbeat_at,
                   reserved_seconds)
SELECT id, user_id, lpad(to_hex(graph + (1::bigint << 40)), 32, '0')::uuid, false,
       CASE n %% 3 WHEN 0 THEN 'code' WHEN 1 THEN 'translate' ELSE 'survey' END,
       'Translate chapter ' || own || ' of the handbook', 'human:local',
       jsonb_build_object('prompt', repeat('Read the page and write it again. ', 5), 'chapter', own),
       CASE WHEN n < 500 THEN '{night,rare}'::text[] ELSE '{night}' END,
       state, 50, 50 + 0.1 * extract(epoch FROM at)::float8 / 60, at,
       CASE WHEN state IN ('completed', 'dead_lettered') THEN at + interval '50 minutes'
            WHEN state = 'running' THEN clock() - interval '5 minutes' END,
       CASE WHEN state IN ('completed', 'dead_lettered', 'cancelled') THEN at + interval '1 hour' END,
       at + interval '1 hour',
       CASE WHEN state = 'dead_lettered' THEN 1 ELSE 0 END,
       CASE WHEN state IN ('ready', 'cancelled') THEN 0 ELSE 1 END,
       CASE state WHEN 'ready' THEN 1 WHEN 'cancelled' THEN 2 WHEN 'running' THEN 3 ELSE 4 END,
       CASE state WHEN 'dead_lettered' THEN CASE WHEN n < 2000 THEN 'rare' ELSE 'error' || own %% 40 END
                  WHEN 'cancelled' THEN 'cancelled' END,
       CASE state WHEN 'dead_lettered' THEN 'the chapter "' || own || '" has ' || own || ' tokens, too many for the model' END,
       CASE state WHEN 'completed' THEN 'Translated ' || own || ' pages.' END,
       CASE state WHEN 'completed' THEN '{"pages": 4}'::jsonb END,
       CASE WHEN n < 300 THEN 2 WHEN state IN ('completed', 'dead_lettered') THEN 0.25 ELSE 0 END,
       CASE state WHEN 'running' THEN id END, CASE state WHEN 'running' THEN 'bench' END,
       CASE state WHEN 'running' THEN 'default' END,
       CASE state WHEN 'running' THEN clock() - interval '6 minutes' END,
       CASE state WHEN 'running' THEN clock() + interval '1 day' END,
       CASE state WHEN 'running' THEN clock() END, CASE state WHEN 'running' THEN 3600 END
  FROM new;

ANALYZE tasks;

WITH graphs AS (
    SELECT dag_id, user_id, min(created_at) AS at, max(finished_at) AS ended, count(*) AS total,
           count(*) FILTER (WHERE finished_at IS NULL) AS open,
           count(*) FILTER (WHERE state = 'completed') AS completed,
           count(*) FILTER (WHERE state = 'dead_lettered') AS dead,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled
      FROM tasks
     WHERE user_id = pg_temp.user_of(0, %(users)s)
     GROUP BY dag_id, user_id
    HAVING count(*) > 1
), made AS (
    INSERT INTO dags (id, user_id, title, created_by, total, open, completed, dead, cancelled, stopped, created_at, finished_at)
    SELECT dag_id, user_id, 'The handbook in French', 'human:local', total, open, completed, dead, cancelled, cancelled, at,
           CASE WHEN open = 0 THEN ended END
      FROM graphs
    RETURNING id
), edges AS (
    INSERT INTO task_edges (parent_id, child_id, dag_id, user_id, satisfied_at)
    SELECT t.dag_id, t.id, t.dag_id, t.user_id, t.created_at
      FROM tasks t
      JOIN made ON made.id = t.dag_id
     WHERE t.id <> t.dag_id
)
UPDATE tasks SET has_dag_row = true WHERE dag_id IN (SELECT id FROM made) AND dag_id = id;

INSERT INTO attempts (task_id, epoch, user_id, token, pool, agent, granted_seconds, claimed_at, started_at, ended_at, outcome,
                      spent, error_class, error, cost_usd)
SELECT id, 1, user_id, id, 'default', 'bench', 3600, coalesce(claimed_at, started_at), started_at, finished_at,
       CASE state WHEN 'running' THEN NULL ELSE state END, state = 'dead_lettered', failure_reason, error, cost_usd
  FROM tasks
 WHERE epoch = 1
 ORDER BY id;

INSERT INTO usage_ledger (user_id, task_id, epoch, period_started_at, kind, seconds, recorded_at)
SELECT t.user_id, t.id, 1, l.cycle_started_at, 'usage', 600, t.finished_at
  FROM tasks t
  JOIN lanes l ON l.user_id = t.user_id
 WHERE t.epoch = 1 AND t.finished_at IS NOT NULL
 ORDER BY t.id;

INSERT INTO spending (task_id, epoch, night_started_at, user_id, dag_id, usd)
SELECT id, 1, date_trunc('day', finished_at), user_id, dag_id, cost_usd
  FROM tasks
 WHERE epoch = 1 AND finished_at IS NOT NULL;

INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, reason, actor, at)
SELECT t.id, e.seq, t.user_id, t.dag_id, 'task.' || e.to_state, e.from_state, e.to_state, e.epoch,
       CASE e.seq WHEN 4 THEN t.failure_reason END, 'overnight-worker',
       CASE e.seq WHEN 1 THEN t.created_at WHEN 4 THEN t.finished_at ELSE t.started_at END
  FROM tasks t
 CROSS JOIN LATERAL (
    VALUES (1, NULL, 'ready', 0), (2, 'ready', 'claimed', 1), (3, 'claimed', 'running', 1), (4, 'running', t.state, 1)
 ) e (seq, from_state, to_state, epoch)
 WHERE e.seq <= t.revision AND t.state <> 'cancelled'
 ORDER BY t.id, e.seq;

INSERT INTO dead_letters (task_id, dag_id, user_id, fingerprint, failure_history, total_cost_usd, dead_lettered_at)
SELECT id, dag_id, user_id, error_fingerprint(type, failure_reason, error),
       jsonb_build_array(jsonb_build_object('agent', 'bench', 'error', error, 'error_class', failure_reason, 'duration_sec', 600)),
       cost_usd, finished_at
  FROM tasks
 WHERE state = 'dead_lettered'
 ORDER BY id;
