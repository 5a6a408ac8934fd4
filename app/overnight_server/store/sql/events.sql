-- What event streams read. An event gets its id when it is written, but becomes visible when its
-- transaction commits, so a smaller id may appear after a larger one. A stream therefore reads only up to
-- the id below which no transaction is still writing.

-- name: last_event_id_given
-- The last id given out to anyone, committed or not.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS reach FROM events_id_seq;

-- name: event_writers
-- Transactions that may have written events which are not visible yet: a writer holds this table lock until
-- its transaction ends.
SELECT virtualtransaction
  FROM pg_locks
 WHERE locktype = 'relation'
   AND relation = 'events'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND mode = 'RowExclusiveLock';

-- name: tasks_with_new_events
-- The tasks of these users that have events in this part of the log.
SELECT user_id, task_id, dag_id
  FROM tasks_with_events(CAST(:users AS uuid[]), CAST(:after AS bigint), CAST(:until AS bigint));

-- name: events_of_user
-- The ends of graphs need no horizon of their own: a transaction that writes one also writes events of tasks.
(SELECT id, kind, task_id, dag_id, from_state, to_state, epoch, reason, at
   FROM events
  WHERE user_id = :user_id
    AND id > CAST(:after AS bigint)
    AND id <= CAST(:until AS bigint)
  ORDER BY id
  LIMIT :limit)
UNION ALL
(SELECT id, kind, NULL, dag_id, NULL, status, 0, NULL, at
   FROM dag_events
  WHERE user_id = :user_id
    AND id > CAST(:after AS bigint)
    AND id <= CAST(:until AS bigint)
  ORDER BY id
  LIMIT :limit)
 ORDER BY id
 LIMIT :limit;

-- name: events_of_task
-- The owner is checked on the task: with user_id on events the planner would read the user's whole log.
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
-- Found through its tasks: an index of events by graph would be written with every change of state.
SELECT e.id, e.kind, e.task_id, e.dag_id, e.from_state, e.to_state, e.epoch, e.reason, e.at
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.dag_id = :dag_id
   AND t.user_id = :user_id
   AND e.id > CAST(:after AS bigint)
   AND e.id <= CAST(:until AS bigint)
UNION ALL
SELECT id, kind, NULL, dag_id, NULL, status, 0, NULL, at
  FROM dag_events
 WHERE dag_id = :dag_id
   AND user_id = :user_id
   AND id > CAST(:after AS bigint)
   AND id <= CAST(:until AS bigint)
 ORDER BY id
 LIMIT :limit;

-- name: last_event_of_task
-- The last event of an ended task; NULL while it has not ended, no row if there is no such task.
SELECT CASE WHEN t.finished_at IS NOT NULL THEN max(e.id) END AS last_id
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.id = :task_id
   AND t.user_id = :user_id
 GROUP BY t.id;

-- name: last_event_of_dag
-- The same for a whole graph, whose end may have an event too.
SELECT CASE WHEN bool_and(t.finished_at IS NOT NULL)
            THEN greatest(max(e.id), (SELECT max(id) FROM dag_events d WHERE d.dag_id = t.dag_id)) END AS last_id
  FROM tasks t
  JOIN events e ON e.task_id = t.id
 WHERE t.dag_id = :dag_id
   AND t.user_id = :user_id
 GROUP BY t.dag_id;
