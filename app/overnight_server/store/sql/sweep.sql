-- name: expired_claims
-- Expired claims, read without locks; `settle` checks each again. A run is known to have lived until its
-- last heartbeat, however far its lease reached and however late the reaper looks: it is out of time only
-- if it sent a heartbeat after its limit, and is billed up to that heartbeat.
-- `died` (the run itself failed) only if its pull agent is still alive; workers report dead pool processes
-- themselves, and a silent worker may be the deployment's fault. After an outage runs have a grace; a claim that
-- expired cannot be started any more, so it has none.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       coalesce(alive.until >= t.started_at + make_interval(secs => t.reserved_seconds), false) AS out_of_time,
       extract(epoch FROM alive.until - t.started_at)::float8 AS alive_seconds,
       EXISTS (SELECT 1
                 FROM agents g
                WHERE g.id = t.claimed_by
                  AND g.kind = 'pull'
                  -- An agent that registered again since then is another process.
                  AND g.joined_at <= t.started_at
                  AND g.status <> 'offline'
                  AND g.last_heartbeat_at > clock() - make_interval(secs => g.stale_after_seconds)) AS died,
       false AS ended_by_worker,
       false AS out_of_memory,
       spent_runs(t.id, t.failures_reset_epoch) AS failures
  FROM tasks t
 CROSS JOIN LATERAL (SELECT greatest(t.started_at, t.heartbeat_at) AS until) alive
 WHERE t.state IN ('claimed', 'running', 'validating')
   AND t.expires_at <= clock()
   AND (t.state = 'claimed' OR NOT is_in_grace(t.expires_at - alive.until))
 ORDER BY t.id
 LIMIT :limit;

-- name: overdue_runs
-- Runs whose worker still sends heartbeats although the timeout or a stop request is long past. Runs whose
-- lease has ended are left to the reaper, because it is not known whether they lived that long. A command may
-- have a longer grace of its own (`own_grace`), after which its worker ends it within seconds.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       clock() >= t.started_at + make_interval(secs => t.reserved_seconds) AS out_of_time,
       extract(epoch FROM clock() - t.started_at)::float8 AS alive_seconds,
       true AS died,
       false AS ended_by_worker,
       false AS out_of_memory,
       spent_runs(t.id, t.failures_reset_epoch) AS failures
  FROM tasks t
 CROSS JOIN LATERAL (
       SELECT CASE WHEN :own_grace
                   THEN greatest(:grace, 5 + CAST(t.execution -> 'limits' ->> 'grace_seconds' AS float8))
                   ELSE :grace END AS seconds
       ) grace
 WHERE t.state IN ('running', 'validating')
   AND t.expires_at > clock()
   AND (t.started_at + make_interval(secs => t.reserved_seconds + grace.seconds) <= clock()
        OR t.cancel_requested_at + make_interval(secs => grace.seconds) <= clock())
 ORDER BY t.id
 LIMIT :limit;

-- name: runs_of_dead_workers
-- The runs of a worker process that died :dead_seconds ago, if it still holds them; `settle` checks each
-- again. A timeout counts if it was reached before the process died. A process that outlived its lease was
-- frozen or disconnected, and was ended for that: its runs are known to have lived until their last heartbeat.
SELECT t.id, t.user_id, t.epoch, t.token, t.state, t.claimed_by, t.bundle, t.attempts, t.max_attempts,
       CAST(t.retry AS text) AS retry,
       t.cancel_requested_at IS NOT NULL AS cancel_requested,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       alive.until >= t.started_at + make_interval(secs => t.reserved_seconds) AS out_of_time,
       extract(epoch FROM alive.until - t.started_at)::float8 AS alive_seconds,
       CAST(:handling AS boolean) AND t.expires_at > death.at AS died,
       CAST(:ended_by_worker AS boolean) AS ended_by_worker,
       CAST(:out_of_memory AS boolean) AS out_of_memory,
       spent_runs(t.id, t.failures_reset_epoch) AS failures
  FROM tasks t
 CROSS JOIN (SELECT clock() - make_interval(secs => :dead_seconds) AS at) death
 CROSS JOIN LATERAL (
    SELECT CASE WHEN t.expires_at > death.at THEN death.at ELSE greatest(t.started_at, t.heartbeat_at) END AS until) alive
 WHERE t.state IN ('running', 'validating')
   AND t.id = ANY (CAST(:tasks AS uuid[]))
   AND t.token = ANY (CAST(:tokens AS uuid[]))
 ORDER BY t.id
 LIMIT :limit;

-- name: due_tasks
-- Tasks whose retry or start is due.
(SELECT id, user_id
   FROM tasks
  WHERE state = 'retrying'
    AND retry_at <= clock()
  ORDER BY retry_at
  LIMIT :limit)
UNION ALL
(SELECT id, user_id
   FROM tasks
  WHERE awaits_start
    AND start_at <= clock()
  ORDER BY start_at
  LIMIT :limit);

-- name: promote
UPDATE tasks
   SET state = :target, retry_at = NULL, awaits_start = false
 WHERE id = ANY (CAST(:tasks AS uuid[]))
   AND (state = ANY (CAST(:sources AS text[])) AND retry_at <= clock()
        OR state = ANY (CAST(:start_sources AS text[])) AND awaits_start AND start_at <= clock());

-- name: passed_deadlines
-- Tasks that were not started by their deadline, read without locks; dead_letter_passed checks each again.
SELECT id, user_id
  FROM tasks
 WHERE state IN ('created', 'pending', 'ready', 'retrying')
   AND deadline_at <= clock()
   AND (epoch = 0 OR NOT has_started(id))
 ORDER BY deadline_at, id
 LIMIT :limit;

-- name: dead_letter_passed
-- These tasks do not run, so no attempt is spent and nothing is billed.
UPDATE tasks t
   SET state = :target,
       retry_at = NULL,
       finished_at = clock(),
       failure_reason = 'deadline_exceeded',
       error = 'not started by its deadline'
 WHERE t.id = ANY (CAST(:tasks AS uuid[]))
   AND t.state = ANY (CAST(:sources AS text[]))
   AND t.deadline_at <= clock()
   AND NOT has_started(t.id)
RETURNING t.id;

-- name: near_deadlines (not prepared)
-- Tasks whose deadline is near enough to change their order, a page at a time.
SELECT id, user_id, deadline_at
  FROM tasks
 WHERE state IN ('created', 'pending', 'ready', 'retrying')
   AND deadline_at > clock()
   AND deadline_at < clock() + make_interval(secs => :horizon)
   AND (CAST(:after_at AS timestamptz) IS NULL
        OR (deadline_at, id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid)))
 ORDER BY deadline_at, id
 LIMIT :limit;

-- name: raise_deadline_priority
-- Rows are written only if the change is large enough to matter.
UPDATE tasks t
   SET sort_key = now.key
  FROM tasks o
 CROSS JOIN LATERAL (
    SELECT sort_key(o.priority, o.priority_boost_per_minute, coalesce(o.requeued_at, o.created_at), o.dependency_boost,
                    o.deadline_at, clock()) AS key) now
 WHERE o.id = ANY (CAST(:tasks AS uuid[]))
   AND t.id = o.id
   AND t.state IN ('created', 'pending', 'ready', 'retrying')
   AND abs(t.sort_key - now.key) >= :step;

-- name: begin_sweep
-- Of several beat processes the first to update the row runs the sweep; the others get no row.
INSERT INTO sweeps AS s (name, started_at)
VALUES (:name, clock())
    ON CONFLICT (name) DO UPDATE
   SET started_at = clock()
 WHERE s.started_at <= clock() - make_interval(secs => :gap)
RETURNING s.name;

-- name: begin_grace
-- Note that the reaper resumes after a gap. A gap that follows a grace is no outage but a slow reaper, which
-- would otherwise never take a task back.
UPDATE sweeps
   SET resumed_at = clock()
 WHERE name = 'reap'
   AND finished_at <= clock() - make_interval(secs => :gap)
   AND coalesce(resumed_at <= finished_at - make_interval(secs => :lease), true)
RETURNING extract(epoch FROM clock() - finished_at)::float8 AS seconds;

-- name: finish_sweep
UPDATE sweeps SET finished_at = clock(), touched = :touched WHERE name = :name;

-- name: sweep_position
SELECT position FROM sweeps WHERE name = :name;

-- name: set_sweep_position
INSERT INTO sweeps AS s (name, started_at, position)
VALUES (:name, clock(), CAST(:position AS text))
    ON CONFLICT (name) DO UPDATE SET position = excluded.position;

-- name: note_handled_types
-- Note that workers handle these types now. After a gap in the passes of the sweep it is not known what was
-- handled meanwhile, so every type counts as handled until now.
INSERT INTO handled_types AS h (type, last_at)
SELECT type, clock()
  FROM (SELECT unnest(CAST(:types AS text[])) AS type
        UNION
        SELECT CAST(:every_type AS text)
         WHERE NOT EXISTS (SELECT 1 FROM sweeps
                            WHERE name = :sweep AND finished_at >= clock() - make_interval(secs => :gap))) seen
 ORDER BY type
    ON CONFLICT (type) DO UPDATE SET last_at = excluded.last_at;

-- name: ready_page
-- A page of ready tasks in the order of their index, and whether each has been ready, and its type unhandled,
-- for too long.
SELECT page.id, page.user_id, page.sort_key,
       page.updated_at <= clock() - make_interval(secs => :seconds)
       AND page.type NOT IN (SELECT h.type FROM handled_types h WHERE h.last_at > clock() - make_interval(secs => :seconds))
       AND NOT EXISTS (SELECT 1 FROM handled_types h
                        WHERE h.type = :every_type AND h.last_at > clock() - make_interval(secs => :seconds)) AS is_due
  FROM (SELECT id, user_id, sort_key, type, updated_at
          FROM tasks
         WHERE state = 'ready'
           AND (user_id, sort_key, id) > (CAST(:user_id AS uuid), CAST(:sort_key AS float8), CAST(:task_id AS uuid))
         ORDER BY user_id, sort_key, id
         LIMIT :limit) page
 ORDER BY page.user_id, page.sort_key, page.id;

-- name: dead_letter_unhandled
-- These tasks do not run, so no attempt is spent and nothing is billed.
UPDATE tasks t
   SET state = :target,
       finished_at = clock(),
       failure_reason = :reason,
       error = format('no worker handled the type %s for %s', t.type, make_interval(secs => :seconds))
 WHERE t.id = ANY (CAST(:tasks AS uuid[]))
   AND t.state = ANY (CAST(:sources AS text[]))
   AND t.updated_at <= clock() - make_interval(secs => :seconds)
   AND NOT EXISTS (SELECT 1 FROM handled_types h
                    WHERE h.type IN (t.type, :every_type) AND h.last_at > clock() - make_interval(secs => :seconds))
RETURNING t.id;

-- name: silent_agents
-- Whether there is work for retire_agents; read without locks.
SELECT 1
  FROM agents
 WHERE status <> 'offline'
   AND last_heartbeat_at <= clock() - make_interval(secs => greatest(stale_after_seconds, :silence))
   AND NOT is_in_grace(make_interval(secs => stale_after_seconds))
 LIMIT 1;

-- name: retire_agents
-- Mark workers offline that sent no heartbeat for too long; their pools may accept other tasks now.
WITH silent AS MATERIALIZED (
    SELECT id
      FROM agents
     WHERE status <> 'offline'
       AND last_heartbeat_at <= clock() - make_interval(secs => greatest(stale_after_seconds, :silence))
       AND NOT is_in_grace(make_interval(secs => stale_after_seconds))
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE agents g
   SET status = 'offline'
  FROM silent
 WHERE g.id = silent.id
RETURNING g.id, g.pool, g.owner_id, g.last_heartbeat_at;

-- name: delete_offline_agents
SELECT delete_offline_agents(:worker_seconds, :pull_agent_seconds, :limit) AS deleted;
