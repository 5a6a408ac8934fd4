-- Partitions, and the deletion of what is older than its retention.

-- name: partitions_of
-- The partitions of a table for ranges of ids, oldest first, with the database's clock; without any, one row of NULLs.
SELECT clock() AS now, p.name, p.first_at, p.end_at
  FROM (SELECT) one
  LEFT JOIN partitions_of(:table_name) p ON true;

-- name: add_partition
SELECT add_partition(:table_name, CAST(:first_at AS timestamptz), CAST(:end_at AS timestamptz));

-- name: drop_events_partition
SELECT drop_events_partition(:partition, :max_kept);

-- name: delete_events_of_gone_tasks
SELECT last_id, deleted FROM delete_events_of_gone_tasks(:partition, CAST(:after_id AS uuid), :limit);

-- name: delete_old_rows
SELECT delete_old_rows(:rule, CAST(:older_than AS interval), :limit);

-- name: count_old_rows
SELECT count_old_rows(:rule, CAST(:older_than AS interval), :limit);

-- name: next_tasks_to_prune
-- The next tasks by id that were created longer ago than any task is kept, and which of them are lone tasks that have
-- ended that long ago. An id begins with the time of creation, so the walk ends at the first younger task.
SELECT id, dag_id = id AND NOT has_dag_row AND coalesce(finished_at < clock() - CAST(:shortest AS interval), false) AS is_candidate,
       1 AS total
  FROM tasks
 WHERE id > :after_id
   AND id < first_id_at(clock() - CAST(:shortest AS interval))
 ORDER BY id
 LIMIT :limit;

-- name: next_graphs_to_prune
-- The same for graphs of several tasks. A graph that a lone task became has the id of that task.
SELECT id, coalesce(finished_at < clock() - CAST(:shortest AS interval), false) AS is_candidate, total
  FROM dags
 WHERE id > :after_id
   AND id < first_id_at(clock() - CAST(:shortest AS interval))
 ORDER BY id
 LIMIT :limit;

-- name: lock_tasks_to_prune
-- Lock those of the lone tasks that are not kept any longer; a task that somebody else has locked is left to a later pass.
SELECT t.id, t.dag_id, true AS is_due
  FROM tasks t
  JOIN users u ON u.id = t.user_id
 WHERE t.id = ANY (CAST(:tasks AS uuid[]))
   AND t.dag_id = t.id
   AND NOT t.has_dag_row
   AND is_final(t.state)
   AND t.finished_at < clock() - task_retention(CAST(:days AS jsonb), u.plan_tier, t.state)
 ORDER BY t.id
   FOR UPDATE OF t SKIP LOCKED;

-- name: lock_graphs_to_prune
SELECT id, total
  FROM dags
 WHERE id = ANY (CAST(:dags AS uuid[]))
   AND finished_at < clock() - CAST(:shortest AS interval)
 ORDER BY id
   FOR UPDATE SKIP LOCKED;

-- name: lock_tasks_of_graphs_to_prune
SELECT t.id, t.dag_id,
       coalesce(is_final(t.state) AND t.finished_at < clock() - task_retention(CAST(:days AS jsonb), u.plan_tier, t.state), false)
       AS is_due
  FROM tasks t
  JOIN users u ON u.id = t.user_id
 WHERE t.dag_id = ANY (CAST(:dags AS uuid[]))
 ORDER BY t.id
   FOR UPDATE OF t SKIP LOCKED;

-- name: artifacts_of_tasks
SELECT id, task_id FROM artifacts WHERE task_id = ANY (CAST(:tasks AS uuid[]));

-- name: tasks_in_use
-- Those of these tasks that must stay: with a dead letter that nobody has resolved, copied by a fork, with a task spawned
-- that stays, or with a graph waiting for their end. Read after they were locked, so that nothing is added any more.
SELECT task_id FROM dead_letters WHERE task_id = ANY (CAST(:tasks AS uuid[])) AND resolution IS NULL
UNION
SELECT copied_from FROM tasks WHERE copied_from = ANY (CAST(:tasks AS uuid[])) AND id <> ALL (CAST(:tasks AS uuid[]))
UNION
SELECT parent_id FROM tasks WHERE parent_id = ANY (CAST(:tasks AS uuid[])) AND id <> ALL (CAST(:tasks AS uuid[]))
UNION
SELECT t.id
  FROM dag_triggers d
  JOIN tasks t ON t.dag_id = d.dag_id
 WHERE d.dag_id = ANY (CAST(:dags AS uuid[]))
   AND t.id = ANY (CAST(:tasks AS uuid[]))
   AND d.fired_at IS NULL AND d.dropped_at IS NULL;

-- name: references_that_may_be_read
-- Those of the ids, as they are shown to people, to which other tasks refer that have not completed: these may still run.
SELECT DISTINCT r.value
  FROM tasks t
 CROSS JOIN LATERAL jsonb_each_text(t.context_refs) r
 WHERE t.context_refs IS NOT NULL
   AND jsonb_path_query_array(t.context_refs, '$.*') ?| CAST(:shown AS text[])
   AND t.state <> 'completed'
   AND t.id <> ALL (CAST(:tasks AS uuid[]));

-- name: delete_tasks
SELECT delete_tasks(CAST(:tasks AS uuid[]));

-- name: delete_graphs
SELECT delete_graphs(CAST(:dags AS uuid[]));

-- name: count_old_tasks (not prepared)
-- Ended tasks that are older than they are kept, up to a limit; something may still need some of them.
SELECT count(*)
  FROM (SELECT FROM tasks t
          JOIN users u ON u.id = t.user_id
         WHERE t.id < first_id_at(clock() - CAST(:shortest AS interval))
           AND t.finished_at < clock() - task_retention(CAST(:days AS jsonb), u.plan_tier, t.state)
         LIMIT :limit) old;

-- name: count_old_rows_of_sweep (not prepared)
-- The same for what the sweeps `logs`, `artifacts` and `audit` delete.
SELECT CASE CAST(:rule AS text)
    WHEN 'logs' THEN (SELECT count(*) FROM (SELECT FROM log_chunks
                                             WHERE NOT is_tail AND at < clock() - CAST(:older_than AS interval) LIMIT :limit) o)
    WHEN 'failed_logs' THEN (SELECT count(*) FROM (SELECT FROM log_chunks
                                             WHERE is_tail AND at < clock() - CAST(:older_than AS interval) LIMIT :limit) o)
    WHEN 'artifacts' THEN (SELECT count(*) FROM (SELECT FROM artifacts a JOIN tasks t ON t.id = a.task_id
                                             WHERE a.created_at < clock() - CAST(:older_than AS interval)
                                               AND t.finished_at < clock() - CAST(:older_than AS interval) LIMIT :limit) o)
    ELSE (SELECT count(*) FROM (SELECT FROM audit_findings
                                             WHERE ended_at < clock() - CAST(:older_than AS interval) LIMIT :limit) o)
    END;
