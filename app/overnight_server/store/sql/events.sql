-- What event streams read. Ids are given out when an event is written and seen when its
-- transaction commits, so a smaller id can come to light after a larger one. A stream therefore
-- reads no further than the point below which nobody can still be writing.

-- name: last_event_id_given
-- The last id given out to anyone, committed or not.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS reach FROM events_id_seq;

-- name: event_writers
-- Who may be holding an id that nobody sees yet: whoever has written to the log holds this lock
-- until it has ended.
SELECT virtualtransaction
  FROM pg_locks
 WHERE locktype = 'relation'
   AND relation = 'events'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND mode = 'RowExclusiveLock';

-- name: tasks_with_new_events
-- Whom of these users something happened to, in this part of the log.
SELECT user_id, task_id, dag_id
  FROM tasks_with_events(CAST(:users AS uuid[]), CAST(:after AS bigint), CAST(:until AS bigint));

-- name: events_of_user
SELECT id, kind, task_id, dag_id, from_state, to_state, epoch, reason, at
  FROM events
 WHERE user_id = :user_id
   AND id > CAST(:after AS bigint)
   AND id <= CAST(:until AS bigint)
 ORDER BY id
 LIMIT :limit;

-- name: events_of_task
-- Whose it is, is asked of the task: a user's whole log would be read to find a task's few events.
SELECT e.id, e.kind, e.task_id, e.dag_id, e.from_state, e.to_state, e.epoch, e.reason, e.at
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.id = :task_id
   AND t.user_id = :user_id
   AND e.id > CAST(:after AS bigint)
   AND e.id <= CAST(:until AS bigint)
 ORDER BY e.seq
 LIMIT :limit;

-- name: events_of_dag
-- Found through its tasks: the log has no index by graph, which would be written to with every move.
SELECT e.id, e.kind, e.task_id, e.dag_id, e.from_state, e.to_state, e.epoch, e.reason, e.at
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.dag_id = :dag_id
   AND t.user_id = :user_id
   AND e.id > CAST(:after AS bigint)
   AND e.id <= CAST(:until AS bigint)
 ORDER BY e.id
 LIMIT :limit;

-- name: last_event_of_task
-- The last event of a task that has ended; nothing while it can still move, no row if there is none.
SELECT CASE WHEN t.finished_at IS NOT NULL THEN max(e.id) END AS last_id
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.id = :task_id
   AND t.user_id = :user_id
 GROUP BY t.id;

-- name: last_event_of_dag
-- The same for a whole graph.
SELECT CASE WHEN bool_and(t.finished_at IS NOT NULL) THEN max(e.id) END AS last_id
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.dag_id = :dag_id
   AND t.user_id = :user_id
 GROUP BY t.dag_id;
