-- name: view_locks
-- Held locks with their holders and the tasks that wait for them. Only the first :look tasks of each queue
-- are read, so that a long queue costs no more.
SELECT u.name AS user_name, h.key, h.task_id, t.title, t.project_id, t.state, t.epoch, t.claimed_by, t.claimed_at,
       t.expires_at, queue.waiting, queue.first_waiting
  FROM held_locks h
  JOIN tasks t ON t.id = h.task_id
  JOIN users u ON u.id = h.user_id
 CROSS JOIN LATERAL (
    SELECT count(*) AS waiting, (array_agg(front.id ORDER BY front.sort_key, front.id))[1:10] AS first_waiting
      FROM (SELECT w.id, w.locks, w.lock_paths, w.sort_key
              FROM tasks w
             WHERE w.user_id = h.user_id AND w.state = 'ready'
             ORDER BY w.sort_key, w.id
             LIMIT :look) front
     WHERE h.key = ANY (front.locks) OR front.lock_paths && h.path_range) queue
 WHERE (CAST(:user_id AS uuid) IS NULL OR h.user_id = CAST(:user_id AS uuid))
   AND (CAST(:project AS text) IS NULL OR t.project_id = CAST(:project AS text)
        OR h.key = 'project:' || CAST(:project AS text))
 ORDER BY t.claimed_at, h.user_id, h.key
 LIMIT :limit;

-- name: view_lock_waits
-- The latest waits for a lock.
SELECT u.name AS user_name, w.key, w.holder_id, w.waiter_id, w.waiting, w.since, w.until
  FROM lock_waits w
  JOIN users u ON u.id = w.user_id
 WHERE (CAST(:user_id AS uuid) IS NULL OR w.user_id = CAST(:user_id AS uuid))
 ORDER BY w.id DESC
 LIMIT :limit;

-- name: stale_locks
-- Claims with locks that were not renewed for :max_age seconds, or whose lease is over. Each renewal sets
-- expires_at one lease ahead; a claim that was not started was never renewed.
SELECT id, user_id, epoch, expires_at <= clock() AS expired
  FROM tasks
 WHERE state IN ('claimed', 'running', 'validating')
   AND locks IS NOT NULL
   AND expires_at <= clock() + greatest(interval '0',
           make_interval(secs => CASE state WHEN 'claimed' THEN CAST(:claim_ttl AS float8)
                                            ELSE CAST(:lease AS float8) END - CAST(:max_age AS float8)))
   AND (CAST(:project AS text) IS NULL OR project_id = CAST(:project AS text))
 ORDER BY id
 LIMIT :limit;

-- name: claim_of_task
SELECT user_id, epoch, claimed_at FROM tasks WHERE id = :task_id;

-- name: active_claims
SELECT id, epoch
  FROM tasks
 WHERE id = ANY (CAST(:tasks AS uuid[]))
   AND state IN ('claimed', 'running', 'validating');

-- name: lock_holder
-- The claim that holds a lock of a user; the row is locked, so that no heartbeat renews it meanwhile.
SELECT id, user_id, epoch, token, state, claimed_by, bundle, locks
  FROM tasks
 WHERE id = :task_id
   AND user_id = :user_id
   AND state IN ('claimed', 'running', 'validating')
   AND locks IS NOT NULL
   FOR NO KEY UPDATE;
