-- name: drill_open
-- How many tasks of a drill have not ended.
SELECT count(*) AS open
  FROM tasks
 WHERE user_id = :user_id
   AND (is_waiting(state) OR is_active(state));

-- name: drill_release
-- Their messages are lost on purpose; when the claims have expired, any worker may claim them.
UPDATE tasks
   SET required_capabilities = '{}'
 WHERE user_id = :user_id
   AND required_capabilities <> '{}';

-- name: drill_verdict
-- What became of the tasks of a drill: each should exist, be completed, and have been started once. A
-- claim that expired was never started.
SELECT count(t.id) AS found,
       count(*) FILTER (WHERE t.state = 'completed') AS completed,
       count(*) FILTER (WHERE a.runs > 1) AS doubled,
       coalesce(sum(a.expired), 0) AS resent,
       coalesce(sum(a.runs), 0) AS runs,
       coalesce(max(extract(epoch FROM t.finished_at - t.created_at)), 0)::float8 AS longest_seconds
  FROM unnest(CAST(:tasks AS uuid[])) expected(id)
  LEFT JOIN tasks t ON t.id = expected.id
  LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE started_at IS NOT NULL) AS runs,
               count(*) FILTER (WHERE outcome = 'expired') AS expired
          FROM attempts
         WHERE task_id = t.id) a ON true;
