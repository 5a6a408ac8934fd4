-- name: drill_standing
-- How far a drill's tasks are: still open, and claimed without having begun (their messages are
-- on the way, or lost).
SELECT count(*) FILTER (WHERE is_waiting(state) OR is_active(state)) AS open,
       count(*) FILTER (WHERE state = 'claimed') AS on_the_way
  FROM tasks
 WHERE user_id = :user_id;

-- name: drill_verdict
-- What became of a drill's tasks: each should exist, be completed, by one attempt, charged once.
SELECT count(t.id) AS found,
       count(*) FILTER (WHERE t.state = 'completed') AS completed,
       count(*) FILTER (WHERE a.completions > 1 OR a.charges > 1) AS doubled,
       coalesce(sum(a.expired), 0) AS resent,
       coalesce(max(extract(epoch FROM t.finished_at - t.created_at)), 0)::float8 AS longest_seconds
  FROM unnest(CAST(:tasks AS uuid[])) wanted(id)
  LEFT JOIN tasks t ON t.id = wanted.id
  LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE outcome = 'completed') AS completions,
               count(*) FILTER (WHERE outcome = 'expired') AS expired,
               max(l.entries) AS charges
          FROM attempts x
          LEFT JOIN LATERAL (SELECT count(*) AS entries
                               FROM usage_ledger e
                              WHERE e.task_id = x.task_id AND e.epoch = x.epoch AND e.kind = 'usage'
                              GROUP BY e.period_started_at
                              ORDER BY 1 DESC LIMIT 1) l ON true
         WHERE x.task_id = t.id) a ON true;
