-- name: view_task
-- One task as its owner sees it. After a submit in the same transaction `depth` is that of the queue before it.
SELECT t.*, address_of_agent(t.claimed_by) AS agent_address, nullif(current_setting('overnight.depth', true), '') AS depth, CAST(:max_position AS int) AS max_position,
       wait_reason(t.id, t.state, t.epoch, t.unmet, t.awaits_budget) AS wait_reason,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS effective_timeout_seconds,
       CASE WHEN t.state = 'ready' THEN
            (SELECT count(*) FROM (SELECT 1 FROM tasks o
                                    WHERE o.user_id = t.user_id AND o.state = 'ready'
                                      AND (o.sort_key, o.id) < (t.sort_key, t.id)
                                    LIMIT :max_position) ahead) END AS ahead
  FROM tasks t
  JOIN lanes l ON l.user_id = t.user_id
 WHERE t.user_id = :user_id
   AND t.id = :task_id;

-- name: view_tasks (not prepared)
-- The newest tasks of a user that a filter selects, a page at a time. Positions are found in the first
-- max_position tasks of the queue, which are read once, so that a page costs the same for any backlog.
SELECT t.*, :max_position AS max_position,
       wait_reason(t.id, t.state, t.epoch, t.unmet, t.awaits_budget) AS wait_reason,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS effective_timeout_seconds,
       CASE WHEN t.state = 'ready' THEN
            coalesce(array_position(ARRAY(SELECT o.id FROM tasks o
                                           WHERE o.user_id = :user_id AND o.state = 'ready'
                                           ORDER BY o.sort_key, o.id
                                           LIMIT :max_position), t.id) - 1, :max_position) END AS ahead
  FROM selected_tasks(:user_id, CAST(:states AS text[]), CAST(:of_type AS text), CAST(:of_tag AS text), CAST(:of_project AS text),
                     CAST(:of_source AS text), CAST(:made_from AS timestamptz), CAST(:made_until AS timestamptz),
                     CAST(:titled AS text), CAST(:of_dag AS uuid), CAST(:ended_from AS timestamptz),
                     CAST(:ended_until AS timestamptz), CAST(:of_creator AS text), CAST(:of_error AS text),
                     CAST(:of_lock AS text), CAST(:cost_from AS numeric), CAST(:cost_until AS numeric),
                     CAST(:attempts_from AS int), CAST(:of_wait AS text),
                     CAST(:of_fingerprint AS text)) t
  JOIN lanes l ON l.user_id = t.user_id
 WHERE (CAST(:before AS uuid) IS NULL OR t.id < CAST(:before AS uuid))
   -- As an array: for a range the planner may read the tasks of all users in it.
   AND (CAST(:reach AS uuid) IS NULL
        OR t.id = ANY (ARRAY(SELECT id FROM tasks
                              WHERE user_id = :user_id AND id >= CAST(:reach AS uuid)
                                AND (CAST(:before AS uuid) IS NULL OR id < CAST(:before AS uuid)))))
   -- What the states imply, in a form for which there is an index.
   AND (NOT :only_open OR t.finished_at IS NULL)
   AND (NOT :only_dead
        OR t.id = ANY (ARRAY(SELECT task_id FROM dead_letters WHERE user_id = :user_id AND resolution IS NULL)))
 ORDER BY t.id DESC
 LIMIT :limit;

-- name: reach_of_search
-- The last of the newest tasks of a user, or of those before another one, that a search reads at once; nothing if there
-- are no more than these.
SELECT id
  FROM tasks
 WHERE user_id = :user_id
   AND (CAST(:before AS uuid) IS NULL OR id < CAST(:before AS uuid))
 ORDER BY id DESC
OFFSET :look
 LIMIT 1;

-- name: view_some_tasks (not prepared)
-- Some tasks of a user, by their ids, as `view_tasks` shows them.
SELECT t.*, :max_position AS max_position,
       wait_reason(t.id, t.state, t.epoch, t.unmet, t.awaits_budget) AS wait_reason,
       least(coalesce(t.timeout_seconds, l.max_task_seconds), l.max_task_seconds) AS effective_timeout_seconds,
       CASE WHEN t.state = 'ready' THEN
            coalesce(array_position(ARRAY(SELECT o.id FROM tasks o
                                           WHERE o.user_id = :user_id AND o.state = 'ready'
                                           ORDER BY o.sort_key, o.id
                                           LIMIT :max_position), t.id) - 1, :max_position) END AS ahead
  FROM tasks t
  JOIN lanes l ON l.user_id = t.user_id
 WHERE t.user_id = :user_id
   AND t.id = ANY (CAST(:tasks AS uuid[]));

-- name: recent_tasks
SELECT id FROM tasks ORDER BY id DESC LIMIT :limit;

-- name: view_limits
SELECT u.plan_tier AS plan, u.max_concurrent_agents, u.max_task_duration_minutes, u.monthly_agent_hours_limit,
       u.max_pending, u.max_tasks_per_dag, u.artifact_storage_mb,
       coalesce((SELECT s.bytes FROM artifact_usage s WHERE s.user_id = u.id), 0) AS artifact_bytes,
       u.on_exhausted, u.night_budget_usd, l.active, l.waiting, l.ready, l.eligible, l.used_seconds, l.reserved_seconds,
       l.night_limit_usd, l.night_spent_usd, l.night_reserved_usd,
       CASE WHEN l.night_limit_usd IS NOT NULL THEN (SELECT ends_at FROM current_night(u.id)) END AS next_night_at,
       u.window_zone, u.window_from, u.window_to, u.window_at_closing,
       l.resets_at AS billing_cycle_resets_at, l.window_closed, l.window_changes_at, l.carry_over_until,
       l.due_at <= clock() AS is_due
  FROM users u
  JOIN lanes l ON l.user_id = u.id
 WHERE u.id = :user_id;

-- name: view_dead_letters (not prepared)
-- The letters are chosen first: with row-level security the planner would begin with all tasks of the user.
SELECT d.id, d.task_id, d.dag_id, u.name AS user_name, t.title, t.type, t.required_capabilities, t.payload,
       t.attempts, why.failure_reason, t.error, d.fingerprint, d.failure_history,
       d.total_cost_usd, d.poison_pill, d.dead_lettered_at, d.reviewed, d.resolution, d.resolved_at, d.resolved_by,
       d.note
  FROM (SELECT *
          FROM dead_letters d
         WHERE (CAST(:user_id AS uuid) IS NULL OR d.user_id = CAST(:user_id AS uuid))
           AND (CAST(:tasks AS uuid[]) IS NULL OR d.task_id = ANY (CAST(:tasks AS uuid[])))
           AND (:resolved OR d.resolution IS NULL)
           AND (CAST(:fingerprint AS text) IS NULL OR d.fingerprint = CAST(:fingerprint AS text))
           AND (CAST(:before_id AS bigint) IS NULL OR d.id < CAST(:before_id AS bigint))
         ORDER BY d.id DESC
         LIMIT :limit) d
  JOIN tasks t ON t.id = d.task_id
  JOIN users u ON u.id = d.user_id
 -- Of a task that was discarded, the reason for which it had failed.
 CROSS JOIN LATERAL (
    SELECT CASE WHEN t.failure_reason = 'discarded' THEN d.failure_history -> -1 ->> 'error_class'
                ELSE t.failure_reason END AS failure_reason) why
 ORDER BY d.id DESC;

-- name: group_dead_letters (not prepared)
-- The newest open dead letters by how they failed, the largest group first, with their sums over all groups.
WITH letters AS (
    SELECT d.id, d.task_id, d.total_cost_usd, d.dead_lettered_at, d.fingerprint
      FROM dead_letters d
     WHERE d.resolution IS NULL
       AND (CAST(:user_id AS uuid) IS NULL OR d.user_id = CAST(:user_id AS uuid))
     ORDER BY d.id DESC
     LIMIT :look
), groups AS (
    SELECT fingerprint, max(id) AS newest, count(*) AS count,
           sum(total_cost_usd) AS total_cost_usd, min(dead_lettered_at) AS first_at, max(dead_lettered_at) AS last_at,
           array_agg(task_id ORDER BY id DESC) AS task_ids,
           count(*) OVER () AS all_groups, sum(count(*)) OVER () AS all_letters,
           sum(sum(total_cost_usd)) OVER () AS all_cost_usd
      FROM letters
     WHERE CAST(:fingerprint AS text) IS NULL OR fingerprint = CAST(:fingerprint AS text)
     GROUP BY fingerprint
     ORDER BY count(*) DESC, max(id) DESC
     LIMIT :limit
)
-- All letters of a group have the type and the reason of its newest.
SELECT g.fingerprint, t.type, t.failure_reason, t.error, g.count, g.total_cost_usd, g.first_at, g.last_at, g.task_ids,
       g.all_groups, g.all_letters, g.all_cost_usd
  FROM groups g
  JOIN tasks t ON t.id = g.task_ids[1]
 ORDER BY g.count DESC, g.newest DESC;

-- name: view_attempts (not prepared)
-- The claims of a task, the latest first. A task without claims gives one row of NULLs; an unknown task
-- gives no row.
SELECT a.epoch, a.pool, a.agent, a.granted_seconds, a.claimed_at, a.started_at, a.ended_at, a.outcome, a.spent,
       a.error_class, a.error, a.detail, a.cost_usd, a.tokens_used, a.external_id, a.sandbox,
       a.validator, a.rejected -> 'output' AS rejected_output
  FROM tasks t
  LEFT JOIN attempts a ON a.task_id = t.id AND (CAST(:before_epoch AS int) IS NULL OR a.epoch < CAST(:before_epoch AS int))
 WHERE t.id = :task_id
   AND t.user_id = :user_id
 ORDER BY a.epoch DESC
 LIMIT :limit;

-- name: view_usage_by_day (not prepared)
-- What was charged to a user's current month on each day, less refunds. A correction by an admin is no run. A run is
-- charged once in a month (usage_ledger_once), so that charges are counted, which is faster than counting runs.
SELECT CAST(e.recorded_at AT TIME ZONE 'UTC' AS date) AS day, sum(e.seconds) AS seconds,
       count(*) FILTER (WHERE e.kind = 'usage') AS runs
  FROM usage_ledger e
  JOIN lanes l ON l.user_id = e.user_id AND l.cycle_started_at = e.period_started_at
 WHERE e.user_id = :user_id
 GROUP BY 1
 ORDER BY 1;

-- name: view_usage_by_type (not prepared)
-- The same by type of task. As a subquery: with row-level security a join would read all tasks of the user first.
SELECT type, sum(seconds) AS seconds, count(*) FILTER (WHERE kind = 'usage') AS runs
  FROM (SELECT (SELECT t.type FROM tasks t WHERE t.id = e.task_id) AS type, e.seconds, e.kind
          FROM usage_ledger e
          JOIN lanes l ON l.user_id = e.user_id AND l.cycle_started_at = e.period_started_at
         WHERE e.user_id = :user_id
        OFFSET 0) e
 GROUP BY type
 ORDER BY seconds DESC, type;

-- name: view_workers
SELECT count(*) AS workers, coalesce(sum(slots), 0) AS slots
  FROM agents
 WHERE status = 'active'
   AND last_heartbeat_at > clock() - make_interval(secs => coalesce(stale_after_seconds, :liveness));

-- name: view_sweeps
SELECT name, extract(epoch FROM clock() - started_at)::float8 AS seconds_ago FROM sweeps ORDER BY name;

-- name: open_pools
SELECT name
  FROM pools
 WHERE NOT paused
   AND kind = 'celery'
   AND NOT EXISTS (SELECT 1 FROM pauses WHERE scope = 'all' AND resumed_at IS NULL)
 ORDER BY name;

-- name: view_active
-- The tasks that hold a slot now, counted by project and by user; at most one row per slot.
SELECT u.name AS user_name, t.project_id, count(*) AS tasks,
       count(*) FILTER (WHERE t.bundle IS NULL) AS singles, array_agg(DISTINCT t.bundle) AS bundles
  FROM tasks t
  JOIN users u ON u.id = t.user_id
 WHERE t.state IN ('claimed', 'running', 'validating')
 GROUP BY u.name, t.project_id
 ORDER BY u.name, t.project_id;

-- name: view_urgent
-- How many tasks of high priority wait, counted up to a limit, so that a large backlog costs no more.
SELECT count(*)
  FROM (SELECT 1
          FROM tasks
         WHERE state IN ('created', 'pending', 'ready', 'retrying') AND priority < 30
         LIMIT :limit) urgent;

-- name: view_agents
-- The workers and pull agents with the owner of each pull agent and the number of tasks that each runs.
SELECT g.id, g.kind, g.pool, u.name AS owner, g.name, g.slots,
       CASE WHEN g.deaf_since IS NOT NULL AND g.status <> 'offline' THEN 'deaf' ELSE g.status END AS status,
       g.capabilities, coalesce(g.types, '{}') AS types, g.dropped_messages, g.joined_at,
       g.last_heartbeat_at AS last_seen_at,
       g.last_heartbeat_at > clock() - make_interval(secs => coalesce(g.stale_after_seconds, :liveness)) AS is_alive,
       coalesce(b.busy, 0) AS busy
  FROM agents g
  LEFT JOIN users u ON u.id = g.owner_id
  LEFT JOIN (SELECT claimed_by, count(*) AS busy
               FROM tasks
              WHERE state IN ('claimed', 'running', 'validating')
              GROUP BY claimed_by) b ON b.claimed_by = g.id
 WHERE (:offline OR g.status <> 'offline')
   AND (CAST(:after AS text) IS NULL
        OR (g.pool, g.id) > (SELECT last.pool, last.id FROM agents last WHERE last.id = CAST(:after AS text)))
 ORDER BY g.pool, g.id
 LIMIT :limit;

-- name: view_pools
-- The pools: the workers of each, whose tasks it takes, the capabilities and types that all of its workers
-- have, and how many of its slots are busy.
SELECT p.name, p.kind, u.name AS serves, p.paused, count(a.id) AS workers,
       coalesce(sum(a.slots) FILTER (WHERE a.status = 'active'), 0) AS slots,
       coalesce(b.busy, 0) AS busy, count(a.id) FILTER (WHERE a.status = 'draining') AS draining,
       ARRAY(SELECT c
               FROM agents o CROSS JOIN unnest(o.capabilities) c
              WHERE o.id = ANY (array_agg(a.id))
              GROUP BY c
             HAVING count(DISTINCT o.id) = count(DISTINCT a.id)
              ORDER BY c) AS capabilities,
       p.created_at
  FROM pools p
  LEFT JOIN users u ON u.id = p.serves
  LEFT JOIN agents a ON a.pool = p.name
                    AND a.status IN ('active', 'draining')
                    AND a.last_heartbeat_at > clock() - make_interval(secs => coalesce(a.stale_after_seconds, :liveness))
  LEFT JOIN (SELECT pool, count(*) AS busy
               FROM tasks
              WHERE state IN ('claimed', 'running', 'validating')
              GROUP BY pool) b ON b.pool = p.name
 WHERE CAST(:after AS text) IS NULL OR p.name > CAST(:after AS text)
 GROUP BY p.name, u.name, b.busy
 ORDER BY p.name
 LIMIT :limit;

-- name: view_pauses (not prepared)
-- The active pauses that apply to a user; without a user all active pauses.
SELECT p.scope, coalesce(u.name, p.target) AS target, p.note, p.paused_by, p.paused_at
  FROM pauses p
  LEFT JOIN users u ON p.scope = 'user' AND u.id::text = p.target
 WHERE p.resumed_at IS NULL
   AND (CAST(:user_id AS uuid) IS NULL OR p.scope <> 'user' OR p.target = CAST(:user_id AS uuid)::text)
 ORDER BY p.id;

-- name: view_audit (not prepared)
-- The acts of people, newest first. The audit log and the event log are each read backwards by their index.
SELECT t.at, t.actor,
       (SELECT a.name FROM users a
         WHERE a.id = CAST(substring(t.actor FROM '^user:([0-9a-f-]{36})$') AS uuid)) AS actor_name,
       t.via, t.key_id, t.act, u.name AS "user", t.target, t.detail
  FROM audit_trail t
  LEFT JOIN users u ON u.id = t.user_id
 WHERE (CAST(:user_id AS uuid) IS NULL OR t.user_id = CAST(:user_id AS uuid))
   AND (CAST(:since AS timestamptz) IS NULL OR t.at >= CAST(:since AS timestamptz))
   AND (CAST(:within AS interval) IS NULL OR t.at >= clock() - CAST(:within AS interval))
   AND (CAST(:until AS timestamptz) IS NULL OR t.at <= CAST(:until AS timestamptz))
   AND starts_with(t.act, :act)
 -- Acts of one transaction have one instant; the other columns give them an order that pages can rely on.
 ORDER BY t.at DESC, t.act, t.target
OFFSET :skip
 LIMIT :limit;

-- name: view_entries (not prepared)
-- A user's tasks that have not ended: first the claimed and running tasks, then the ready tasks in the
-- order in which they start, then the tasks that cannot start yet. An index finds each of the first two
-- parts. The third part has no index, so it is read only as far as the counters of the lane say that there
-- are such tasks.
SELECT t.*, address_of_agent(t.claimed_by) AS agent_address, :max_position AS max_position,
       wait_reason(t.id, t.state, t.epoch, t.unmet, t.awaits_budget) AS wait_reason,
       CASE WHEN t.state = 'ready' THEN row_number() OVER (PARTITION BY open.part ORDER BY t.sort_key, t.id) - 1 END AS ahead
  FROM ((SELECT id, 1 AS part FROM tasks
          WHERE user_id = :user_id AND state IN ('claimed', 'running', 'validating')
          ORDER BY id LIMIT :limit)
        UNION ALL
        (SELECT id, 2 FROM tasks
          WHERE user_id = :user_id AND state = 'ready'
          ORDER BY sort_key, id LIMIT :limit)
        UNION ALL
        (SELECT id, 3 FROM tasks
          WHERE user_id = :user_id AND state IN ('created', 'pending', 'retrying')
          ORDER BY id DESC
          LIMIT (SELECT least(waiting - ready, :limit) FROM lanes WHERE user_id = :user_id))) open
  JOIN tasks t ON t.id = open.id
 ORDER BY open.part, CASE WHEN open.part = 2 THEN t.sort_key END, t.id
 LIMIT :limit;

-- name: oldest_entry
-- For how many seconds the oldest of a user's ready tasks has waited. Only the next thousand tasks are
-- read, so that a large backlog costs no more.
SELECT extract(epoch FROM clock() - min(created_at))
  FROM (SELECT created_at FROM tasks
         WHERE user_id = :user_id AND state = 'ready'
         ORDER BY sort_key, id LIMIT 1000) next;

-- name: task_row_facts
-- What the rows of a list say about tasks besides the task itself: the graph, and the latest runs.
SELECT t.id, g.title AS graph, g.total AS graph_size, runs.number AS runs, runs.seconds AS worked
  FROM tasks t
  LEFT JOIN dags g ON g.id = t.dag_id
 CROSS JOIN LATERAL (SELECT count(*) AS number,
                            coalesce(sum(extract(epoch FROM coalesce(a.ended_at, clock()) - a.started_at)), 0) AS seconds
                       FROM (SELECT * FROM attempts a WHERE a.task_id = t.id AND a.started_at IS NOT NULL
                               ORDER BY a.epoch DESC LIMIT :most_runs) a) runs
 WHERE t.user_id = :user_id
   AND t.id = ANY (CAST(:tasks AS uuid[]));

-- name: task_by_ending
-- The newest task of a user, among the latest, whose id ends with these bits.
SELECT id
  FROM (SELECT id FROM tasks WHERE user_id = :user_id ORDER BY id DESC LIMIT :look) latest
 WHERE CAST(CAST('x' || right(replace(CAST(id AS text), '-', ''), 8) AS bit(32)) AS bigint) % 1073741824 = :ending
 ORDER BY id DESC
 LIMIT 1;

-- name: dag_by_ending
-- The same for graphs.
SELECT id
  FROM (SELECT id FROM dags WHERE user_id = :user_id ORDER BY id DESC LIMIT :look) latest
 WHERE CAST(CAST('x' || right(replace(CAST(id AS text), '-', ''), 8) AS bit(32)) AS bigint) % 1073741824 = :ending
 ORDER BY id DESC
 LIMIT 1;

-- name: task_neighbours
-- The tasks that a task waits or waited for, and those that wait for it; the first few of each.
(SELECT 'after' AS side, p.id, p.title, p.state, e.satisfied_at IS NOT NULL AS satisfied
   FROM task_edges e
   JOIN tasks p ON p.id = e.parent_id
  WHERE e.child_id = :task_id AND p.user_id = :user_id
  ORDER BY p.id
  LIMIT :limit)
UNION ALL
(SELECT 'before', c.id, c.title, c.state, e.satisfied_at IS NOT NULL
   FROM task_edges e
   JOIN tasks c ON c.id = e.child_id
  WHERE e.parent_id = :task_id AND c.user_id = :user_id
  ORDER BY c.id
  LIMIT :limit);

-- name: task_titles
SELECT id, title FROM tasks WHERE user_id = :user_id AND id = ANY (CAST(:tasks AS uuid[]));

-- name: tasks_behind_dead
-- How many tasks ended because those of a group did, and would come back with them, by group. `groups` has the group of
-- each of `tasks`. They are counted up to a limit for all groups together. The subqueries make the planner look up each
-- edge and each task: it expects many rows behind the recursion, and would read all cancelled tasks instead.
WITH RECURSIVE behind (of_group, id) AS (
    SELECT dead.of_group, e.child_id
      FROM unnest(CAST(:tasks AS uuid[]), CAST(:groups AS text[])) dead(id, of_group)
     CROSS JOIN LATERAL (SELECT child_id, user_id FROM task_edges WHERE parent_id = dead.id OFFSET 0) e
     WHERE e.user_id = :user_id
       AND (SELECT c.state = 'cancelled' AND c.failure_reason = 'upstream_failed' FROM tasks c WHERE c.id = e.child_id)
    UNION
    SELECT b.of_group, e.child_id
      FROM behind b
     CROSS JOIN LATERAL (SELECT child_id FROM task_edges WHERE parent_id = b.id OFFSET 0) e
     WHERE (SELECT c.state = 'cancelled' AND c.failure_reason IN ('upstream_failed', 'upstream_cancelled')
              FROM tasks c WHERE c.id = e.child_id)
)
SELECT of_group, count(*) AS number FROM (SELECT of_group FROM behind LIMIT :most) counted GROUP BY of_group;
