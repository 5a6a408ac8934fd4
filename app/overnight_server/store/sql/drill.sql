-- name: drill_open
-- How many of a drill's tasks have not come to an end.
SELECT count(*) AS open
  FROM tasks
 WHERE user_id = :user_id
   AND (is_waiting(state) OR is_active(state));

-- name: drill_release
-- Their messages are lost: when the claims have expired, any worker may have them.
UPDATE tasks
   SET required_capabilities = '{}'
 WHERE user_id = :user_id
   AND required_capabilities <> '{}';

-- name: drill_verdict
-- What became of a drill's tasks: each should exist, be completed, and have begun once. A claim that
-- expired never began.
SELECT count(t.id) AS found,
       count(*) FILTER (WHERE t.state = 'completed') AS completed,
       count(*) FILTER (WHERE a.runs > 1) AS doubled,
       coalesce(sum(a.expired), 0) AS resent,
       coalesce(sum(a.runs), 0) AS runs,
       coalesce(max(extract(epoch FROM t.finished_at - t.created_at)), 0)::float8 AS longest_seconds
  FROM unnest(CAST(:tasks AS uuid[])) wanted(id)
  LEFT JOIN tasks t ON t.id = wanted.id
  LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE started_at IS NOT NULL) AS runs,
               count(*) FILTER (WHERE outcome = 'expired') AS expired
          FROM attempts
         WHERE task_id = t.id) a ON true;
