-- name: referred_tasks
-- Tasks that references name: by id among the user's tasks, and by name within one graph. The lock keeps retention from
-- deleting a task to which a task refers that is not committed yet.
WITH by_id AS MATERIALIZED (
    SELECT id, name, state, dag_id
      FROM tasks
     WHERE id = ANY (CAST(:tasks AS uuid[]))
       AND user_id = :user_id
       FOR KEY SHARE
), by_name AS MATERIALIZED (
    SELECT id, name, state, dag_id
      FROM tasks
     WHERE dag_id = CAST(:dag_id AS uuid)
       AND user_id = :user_id
       AND name = ANY (CAST(:names AS text[]))
       FOR KEY SHARE
)
SELECT * FROM by_id UNION SELECT * FROM by_name;

-- name: referred_artifacts
-- The lock is the same as in referred_tasks.
SELECT a.id
  FROM artifacts a
  JOIN tasks t ON t.id = a.task_id
 WHERE a.id = ANY (CAST(:artifacts AS uuid[])) AND a.user_id = :user_id
   FOR KEY SHARE OF t;

-- name: lock_claimed_task
-- The running task of a claim, locked until the transaction ends; no row if the claim was lost. While its output is
-- validated, its log is kept as an artifact.
SELECT id, user_id, dag_id, has_dag_row, type, priority, role, required_capabilities,
       cancel_requested_at IS NOT NULL AS is_stopping
  FROM tasks
 WHERE id = :task_id
   AND epoch = :epoch
   AND token = :token
   AND state IN ('running', 'validating')
   FOR NO KEY UPDATE;

-- name: find_spawned
-- The child that was already spawned under the same key, by an earlier run or by a call without a response.
SELECT id, dag_id FROM tasks WHERE parent_id = :task_id AND spawn_key = :key;

-- name: spawn_counts
-- The depth of a task, how many tasks it has spawned, the size of its graph, and whether its owner is
-- disabled.
WITH RECURSIVE above AS (
    SELECT parent_id, 0 AS depth FROM tasks WHERE id = :task_id
    UNION ALL
    SELECT t.parent_id, a.depth + 1 FROM above a JOIN tasks t ON t.id = a.parent_id
)
SELECT (SELECT max(depth) FROM above) AS depth,
       (SELECT count(*) FROM tasks WHERE parent_id = :task_id) AS children,
       coalesce((SELECT total FROM dags WHERE id = :dag_id), 1) AS total,
       EXISTS (SELECT 1 FROM users WHERE id = :user_id AND disabled_at IS NOT NULL) AS is_disabled;

-- name: mark_has_dag_row
-- Before the graph of a lone task gets a row in dags; otherwise the trigger would count the task twice.
UPDATE tasks SET has_dag_row = true WHERE id = :task_id AND dag_id = id AND NOT has_dag_row RETURNING id;

-- name: insert_dag_of_lone_task
-- The row in dags of a task that was a lone task until now; the id stays the same.
INSERT INTO dags (id, user_id, title, created_by, total, open, completed, dead, cancelled, stopped, finished_at,
                  spent_usd, reserved_usd)
SELECT id, user_id, title, created_by, 1, (is_active(state) OR is_waiting(state))::int, (state = 'completed')::int,
       (state = 'dead_lettered')::int, (state = 'cancelled')::int, was_stopped(state, failure_reason)::int, finished_at,
       cost_usd, coalesce(reserved_usd, 0)
  FROM tasks
 WHERE id = :task_id;

-- name: graph_to_join
-- A graph of the user and its size; a lone task has no row in dags yet. The lane is locked; retention deletes without it,
-- so the graph is locked too.
WITH graph AS MATERIALIZED (
    SELECT g.id, g.total FROM dags g WHERE g.id = :dag_id AND g.user_id = :user_id FOR KEY SHARE
), lone AS MATERIALIZED (
    SELECT t.id
      FROM tasks t
     WHERE t.id = :dag_id AND t.dag_id = t.id AND NOT t.has_dag_row AND t.user_id = :user_id
       FOR KEY SHARE
)
SELECT id, total, false AS is_lone FROM graph
UNION ALL
SELECT id, 1, true FROM lone;

-- name: add_edges
-- Add edges between existing tasks; their lane is locked. A parent that has ended counts immediately. An
-- edge that was satisfied by a parent which was revived since must be satisfied again.
WITH edge AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:edges AS jsonb)) AS w(parent_id uuid, child_id uuid, condition text)
), added AS (
    INSERT INTO task_edges AS e (parent_id, child_id, dag_id, user_id, condition, since_epoch, satisfied_at)
    SELECT w.parent_id, w.child_id, c.dag_id, c.user_id, w.condition, c.epoch,
           CASE WHEN is_met(w.condition, 'cancel', p.state) THEN clock() END
      FROM edge w
      JOIN tasks p ON p.id = w.parent_id
      JOIN tasks c ON c.id = w.child_id
        ON CONFLICT (parent_id, child_id) DO UPDATE
       SET condition = excluded.condition, since_epoch = excluded.since_epoch, satisfied_at = NULL
     WHERE e.satisfied_at IS NOT NULL AND excluded.satisfied_at IS NULL
    RETURNING child_id, satisfied_at
), unmet AS MATERIALIZED (
    SELECT child_id, count(*)::int AS edges FROM added WHERE satisfied_at IS NULL GROUP BY child_id
)
UPDATE tasks t
   SET unmet = t.unmet + unmet.edges
  FROM unmet
 WHERE t.id = unmet.child_id;

-- name: dependency_boosts_of_graph
SELECT id, dependency_boost FROM tasks WHERE dag_id = :dag_id ORDER BY id;

-- name: update_dependency_boosts
-- Write new boosts, and the order that follows from them, for tasks that do not run yet.
UPDATE tasks t
   SET dependency_boost = w.boost,
       sort_key = sort_key(t.priority, t.priority_boost_per_minute, coalesce(t.requeued_at, t.created_at), w.boost, t.deadline_at, clock())
  FROM jsonb_to_recordset(CAST(:weights AS jsonb)) AS w(id uuid, boost float8)
 WHERE t.id = w.id
   AND t.state IN ('created', 'pending', 'ready', 'retrying');

-- name: tasks_to_connect
-- The tasks at both ends of new edges; no row for a task of another user.
SELECT id, dag_id, title, state, awaits_budget
  FROM tasks
 WHERE id = ANY (CAST(:tasks AS uuid[]))
   AND user_id = :user_id;

-- name: tasks_reached_from
-- Which of these tasks depend on a task, at any depth; an edge back would make a cycle.
WITH RECURSIVE below AS (
    SELECT child_id FROM task_edges WHERE parent_id = :task_id
    UNION
    SELECT e.child_id FROM below b JOIN task_edges e ON e.parent_id = b.child_id
)
SELECT child_id FROM below WHERE child_id = ANY (CAST(:tasks AS uuid[]));

-- name: children_of (not prepared)
-- The tasks that a task has spawned, in that order, with their results.
SELECT id, spawn_key, title, type, state, output, failure_reason, error
  FROM tasks
 WHERE parent_id = :task_id
   AND (CAST(:tasks AS uuid[]) IS NULL OR id = ANY (CAST(:tasks AS uuid[])))
 ORDER BY id;

-- name: tasks_not_spawned_by
-- Which of these tasks were not spawned by the given task.
SELECT id
  FROM unnest(CAST(:tasks AS uuid[])) given(id)
 WHERE NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = given.id AND t.parent_id = :task_id);

-- name: inputs_of
-- The outputs of a task's parents.
SELECT p.id, p.name, p.output
  FROM task_edges e
  JOIN tasks p ON p.id = e.parent_id
 WHERE e.child_id = :task_id
 ORDER BY p.id;

-- name: refs_of
SELECT context_refs FROM tasks WHERE id = :task_id;

-- name: outputs_of
SELECT id, output FROM tasks WHERE id = ANY (CAST(:tasks AS uuid[])) AND user_id = :user_id;

-- name: size_of_artifacts
SELECT coalesce(sum(size), 0)::bigint FROM artifacts WHERE id = ANY (CAST(:artifacts AS uuid[])) AND user_id = :user_id;

-- name: contents_of
SELECT id, kind, content, digest FROM artifacts WHERE id = ANY (CAST(:artifacts AS uuid[])) AND user_id = :user_id;

-- name: other_artifacts
-- How many other artifacts a task would have if the run ended now, and their size.
SELECT count(*) AS number, coalesce(sum(size), 0) AS size
  FROM (SELECT DISTINCT ON (name) name, size
          FROM (SELECT name, size, 0 AS epoch FROM artifacts WHERE task_id = :task_id
                UNION ALL
                SELECT name, size, epoch FROM staged_artifacts WHERE task_id = :task_id AND epoch = :epoch) a
         WHERE name <> :name
         ORDER BY name, epoch DESC) kept;

-- name: artifact_limits
-- What limits the artifacts of a task's user, and how much is stored.
SELECT u.plan_tier, u.artifact_storage_mb, coalesce(s.bytes, 0) AS stored_bytes
  FROM tasks t
  JOIN users u ON u.id = t.user_id
  LEFT JOIN artifact_usage s ON s.user_id = t.user_id
 WHERE t.id = :task_id;

-- name: view_artifact_usage
SELECT u.plan_tier, u.artifact_storage_mb, coalesce(s.artifacts, 0) AS artifacts, coalesce(s.bytes, 0) AS bytes
  FROM users u
  LEFT JOIN artifact_usage s ON s.user_id = u.id
 WHERE u.id = :user_id;

-- name: stored_bytes
-- The statement that stored an artifact has locked the row, so the number is exact until the transaction ends.
SELECT bytes FROM artifact_usage WHERE user_id = :user_id;

-- name: lock_blob
SELECT lock_blob(:digest);

-- name: needed_blobs
SELECT needed_blobs(CAST(:digests AS text[]));

-- name: stage_artifact
-- The same name again replaces the content, also that of an earlier run, which did not come to its end. Its id is that
-- of the name in this and in earlier runs, because other tasks may refer to it. `replaced` is the blob that was there.
INSERT INTO staged_artifacts AS s (task_id, epoch, name, artifact_id, user_id, kind, size, content, digest)
SELECT new.task_id, CAST(:epoch AS int), new.name,
       coalesce((SELECT a.id FROM artifacts a WHERE a.task_id = new.task_id AND a.name = new.name),
                CAST(:artifact_id AS uuid)),
       CAST(:user_id AS uuid), CAST(:kind AS text), CAST(:size AS bigint), CAST(:content AS bytea),
       CAST(:digest AS text)
  FROM (SELECT CAST(:task_id AS uuid) AS task_id, CAST(:name AS text) AS name) new
    ON CONFLICT (task_id, name) DO UPDATE
   SET epoch = excluded.epoch, kind = excluded.kind, size = excluded.size, content = excluded.content,
       digest = excluded.digest, created_at = clock()
RETURNING s.artifact_id,
          (SELECT o.digest FROM staged_artifacts o WHERE o.task_id = s.task_id AND o.name = s.name) AS replaced;

-- name: promote_artifacts
SELECT promote_artifacts(:task_id, :epoch, CAST(:artifacts AS uuid[]));

-- name: delete_stale_artifacts
SELECT delete_stale_artifacts(CAST(:older_than AS interval), :limit) AS deleted;

-- name: user_with_old_artifacts
-- The user with the oldest artifact of a task that ended long ago, besides those users who were looked at.
SELECT a.user_id
  FROM artifacts a
  JOIN tasks t ON t.id = a.task_id
 WHERE a.created_at < clock() - CAST(:older_than AS interval)
   AND t.finished_at < clock() - CAST(:older_than AS interval)
   AND a.user_id <> ALL (CAST(:seen AS uuid[]))
 ORDER BY a.created_at
 LIMIT 1;

-- name: referred_by_open_tasks
-- The ids of all artifacts and tasks to which open tasks of a user refer, as they are shown to people.
SELECT DISTINCT r.value
  FROM tasks t
 CROSS JOIN LATERAL jsonb_each_text(t.context_refs) r
 WHERE t.user_id = :user_id
   AND t.finished_at IS NULL
   AND t.context_refs IS NOT NULL;

-- name: delete_old_artifacts
SELECT delete_old_artifacts(:user_id, CAST(:older_than AS interval), CAST(:needed AS uuid[]), :limit);

-- name: delete_artifact
SELECT task_id, digest FROM delete_artifact(:user_id, :artifact_id);

-- name: view_artifacts
SELECT id, task_id, name, kind, size, created_at
  FROM artifacts
 WHERE task_id = :task_id AND user_id = :user_id
 ORDER BY name;

-- name: view_artifact
SELECT id, task_id, name, kind, size, created_at, epoch, content, digest
  FROM artifacts
 WHERE id = :artifact_id AND user_id = :user_id;

-- name: graphs_of
SELECT DISTINCT user_id, dag_id FROM tasks WHERE id = ANY (CAST(:tasks AS uuid[]));
