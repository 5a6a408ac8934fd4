-- Improvement rules: what they measure, and the tasks that they file.

-- name: add_improvement_rule
INSERT INTO improvement_rules (id, user_id, name, figure, grouped_by, subject, threshold, window_seconds, min_tasks, template,
                               created_by)
VALUES (:rule_id, :user_id, :name, :figure, :grouped_by, CAST(:subject AS text), :threshold, :window_seconds, :min_tasks,
        CAST(:template AS jsonb), :actor);

-- name: count_improvement_rules
SELECT count(*) AS total, count(*) FILTER (WHERE name = :name) AS same
  FROM improvement_rules
 WHERE user_id = :user_id
   AND removed_at IS NULL;

-- name: remove_improvement_rule
UPDATE improvement_rules
   SET removed_at = clock()
 WHERE id = :rule_id
   AND user_id = :user_id
   AND removed_at IS NULL
RETURNING id;

-- name: view_improvement_rules (not prepared)
-- The rules of a user by name, or one of them, with the latest task that each has filed.
SELECT r.id, r.name, r.figure, r.grouped_by, r.subject, r.threshold, r.window_seconds, r.min_tasks, r.template, r.created_at,
       r.problem, latest.task_id AS last_task_id, latest.filed_at AS last_filed_at
  FROM improvement_rules r
  LEFT JOIN LATERAL (SELECT i.task_id, i.filed_at FROM improvement_tasks i
                      WHERE i.rule_id = r.id ORDER BY i.id DESC LIMIT 1) latest ON true
 WHERE r.user_id = :user_id
   AND r.removed_at IS NULL
   AND (CAST(:rule_id AS uuid) IS NULL OR r.id = CAST(:rule_id AS uuid))
 ORDER BY r.name;

-- name: active_improvement_rules
-- The rules of all users who are not disabled, those first that were looked at longest ago: a pass may stop before the end.
SELECT r.id, r.user_id
  FROM improvement_rules r
  JOIN users u ON u.id = r.user_id
 WHERE r.removed_at IS NULL
   AND u.disabled_at IS NULL
 ORDER BY r.applied_at NULLS FIRST, r.user_id, r.name;

-- name: read_improvement_rule
SELECT id, name, figure, grouped_by, subject, threshold, window_seconds, min_tasks, template
  FROM improvement_rules
 WHERE id = :rule_id
   AND user_id = :user_id
   AND removed_at IS NULL;

-- name: measure_improvement_rule (not prepared)
-- The figures of each subject of a rule. A task counts from the end of the last task that the rule filed about its
-- subject: the failures before it have been dealt with. Tasks that rules have filed do not count, and neither do
-- cancelled ones. A run counts if it spent an attempt, so that those which the deployment interrupted do not.
WITH ended AS MATERIALIZED (
    SELECT t.id, t.attempts, t.cost_usd, t.finished_at, t.state, s.subject
      FROM tasks t
     CROSS JOIN LATERAL (
               SELECT t.type AS subject WHERE :grouped_by = 'type'
               UNION ALL
               SELECT DISTINCT tag FROM unnest(t.tags) tag WHERE :grouped_by = 'tag'
               UNION ALL
               SELECT coalesce(t.execution ->> 'agent',
                               (SELECT substr(c, 7) FROM unnest(t.required_capabilities) c
                                 WHERE starts_with(c, 'agent:') LIMIT 1))
                WHERE :grouped_by = 'agent') s
     WHERE t.user_id = :user_id
       AND t.finished_at > clock() - make_interval(secs => :window_seconds)
       AND t.finished_at IS NOT NULL
       AND t.state IN ('completed', 'dead_lettered')
       AND t.source <> 'rule'
       AND t.copied_from IS NULL
       AND s.subject IS NOT NULL
       AND (CAST(:subject AS text) IS NULL OR s.subject = CAST(:subject AS text))
), counted AS (
    SELECT e.*
      FROM ended e
     WHERE NOT EXISTS (SELECT 1
                         FROM improvement_tasks i
                         JOIN tasks filed ON filed.id = i.task_id
                        WHERE i.rule_id = :rule_id
                          AND i.subject = e.subject
                          AND filed.finished_at >= e.finished_at)
)
SELECT c.subject, count(*) AS tasks, sum(runs.runs)::bigint AS runs, sum(runs.failures)::bigint AS failures,
       count(*) FILTER (WHERE c.state = 'dead_lettered') AS dead_lettered,
       round(CASE :figure WHEN 'failure_rate' THEN sum(runs.failures) / nullif(sum(runs.runs), 0)
                          WHEN 'retries' THEN avg(greatest(c.attempts - 1, 0))
                          WHEN 'cost_usd' THEN avg(c.cost_usd)
                          ELSE avg(runs.seconds) END, 6) AS value,
       (array_agg(c.id ORDER BY runs.failures DESC, c.cost_usd DESC, c.finished_at DESC))[1:5] AS examples,
       (array_agg(runs.error ORDER BY c.finished_at DESC) FILTER (WHERE runs.error IS NOT NULL))[1:5] AS errors,
       (SELECT i.task_id
          FROM improvement_tasks i
          JOIN tasks filed ON filed.id = i.task_id
         WHERE i.rule_id = :rule_id
           AND i.subject = c.subject
           AND filed.state NOT IN ('completed', 'cancelled')
         ORDER BY i.id DESC
         LIMIT 1) AS open_task_id
  FROM counted c
 CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE a.spent)::numeric AS runs,
                  count(*) FILTER (WHERE a.spent AND a.outcome <> 'completed')::numeric AS failures,
                  coalesce(sum(extract(epoch FROM a.ended_at - a.started_at)), 0) AS seconds,
                  left((array_agg(a.error ORDER BY a.epoch DESC) FILTER (WHERE a.error IS NOT NULL))[1], 300) AS error
             FROM attempts a
            WHERE a.task_id = c.id) runs
 GROUP BY c.subject
 ORDER BY value DESC NULLS LAST, c.subject
 LIMIT :limit;

-- name: find_open_improvement
-- The task that a rule has filed about a subject and that has not ended well. The lane is locked.
SELECT i.task_id
  FROM improvement_tasks i
  JOIN tasks t ON t.id = i.task_id
 WHERE i.rule_id = :rule_id
   AND i.subject = :subject
   AND t.state NOT IN ('completed', 'cancelled')
 LIMIT 1;

-- name: record_improvement
INSERT INTO improvement_tasks (rule_id, user_id, subject, task_id, evidence)
VALUES (:rule_id, :user_id, :subject, :task_id, CAST(:evidence AS jsonb));

-- name: note_rule_applied
UPDATE improvement_rules SET applied_at = clock(), problem = CAST(:problem AS text) WHERE id = :rule_id;
