-- name: ensure_pull_pool
-- The pool of one agent; it serves one user, or everybody. Its name contains the owner's id, so that no
-- other user's agent gets the same.
INSERT INTO pools AS p (name, kind, serves)
VALUES (:pool, 'pull', CAST(:serves AS uuid))
    ON CONFLICT (name) DO UPDATE SET serves = excluded.serves;

-- name: register_agent
-- An agent that registers again under its name keeps what is left of its budget. It is another process:
-- claims of the previous one are lost, and a drain of it no longer applies.
INSERT INTO agents AS g (id, kind, pool, owner_id, name, capabilities, types, models, slots, budget_remaining_usd,
                         claim_ttl_seconds, stale_after_seconds, authorized_by, authorized_until)
VALUES (:id, 'pull', :pool, :user_id, :name, CAST(:capabilities AS text[]), nullif(CAST(:types AS text[]), '{}'), CAST(:models AS text[]),
        :slots, CAST(:budget_usd AS numeric), :claim_ttl, :silence, :authorized_by, CAST(:authorized_until AS timestamptz))
    ON CONFLICT (owner_id, name) DO UPDATE
   SET capabilities = excluded.capabilities, types = excluded.types, models = excluded.models, slots = excluded.slots,
       claim_ttl_seconds = excluded.claim_ttl_seconds, stale_after_seconds = excluded.stale_after_seconds,
       authorized_by = excluded.authorized_by, authorized_until = excluded.authorized_until,
       status = 'active', drain_requested_at = NULL, joined_at = clock(), last_heartbeat_at = clock()
RETURNING g.id, g.xmax = 0 AS is_new;

-- name: count_other_agents
-- How many agents a user has besides the one of this name: those online, and all names; at most `limit` are read.
SELECT count(*) FILTER (WHERE status <> 'offline') AS online, count(*) AS names
  FROM (SELECT status
          FROM agents
         WHERE owner_id = :user_id AND name <> :name
         ORDER BY status = 'offline'
         LIMIT :limit) other;

-- name: touch_own_agent
-- Record a heartbeat of an agent, and with which credential it was sent; return what the agent may claim. Not for
-- an HTTP agent, whose driver alone says that it is alive.
UPDATE agents g
   SET last_heartbeat_at = clock(),
       authorized_by = :authorized_by,
       authorized_until = CAST(:authorized_until AS timestamptz)
 WHERE g.id = :id
   AND g.owner_id = :user_id
   AND g.status <> 'offline'
   AND NOT EXISTS (SELECT 1 FROM http_agents h WHERE h.user_id = g.owner_id AND h.name = g.name AND h.removed_at IS NULL)
RETURNING g.id, g.status, g.pool, coalesce(g.types, '{}') AS types, g.claim_ttl_seconds, g.stale_after_seconds,
          (SELECT p.serves FROM pools p WHERE p.name = g.pool) AS serves;

-- name: own_agent
SELECT id, name, pool, status FROM agents WHERE id = :id AND owner_id = :user_id;

-- name: drain_own_agent
UPDATE agents
   SET status = 'draining', drain_requested_at = coalesce(drain_requested_at, clock())
 WHERE id = :id
   AND status <> 'offline'
RETURNING id;

-- name: heartbeat_claim_holder
-- A heartbeat of a run is also one of its pull agent.
UPDATE agents g
   SET last_heartbeat_at = clock()
  FROM tasks t
 WHERE t.id = :task_id
   AND t.epoch = :epoch
   AND g.id = t.claimed_by
   AND g.kind = 'pull'
   AND g.status <> 'offline';

-- name: view_own_agents
-- A page of a user's pull agents, and how many tasks each runs.
SELECT g.id, g.name, g.pool, g.status, g.capabilities, coalesce(g.types, '{}') AS types, g.models, g.slots, g.budget_remaining_usd,
       g.claim_ttl_seconds, g.stale_after_seconds, g.joined_at, g.last_heartbeat_at AS last_seen_at,
       g.last_heartbeat_at > clock() - make_interval(secs => g.stale_after_seconds) AS is_alive,
       p.serves IS NULL AS serves_everyone,
       (SELECT count(*) FROM tasks t
         WHERE t.state IN ('claimed', 'running', 'validating') AND t.claimed_by = g.id) AS busy,
       h.url, h.health, h.health_detail, h.checked_at
  FROM agents g
  JOIN pools p ON p.name = g.pool
  LEFT JOIN http_agents h ON h.user_id = g.owner_id AND h.name = g.name AND h.removed_at IS NULL
 WHERE g.owner_id = :user_id
   AND (CAST(:agent_id AS text) IS NULL OR g.id = CAST(:agent_id AS text))
   AND (CAST(:after AS text) IS NULL OR g.name > CAST(:after AS text))
 ORDER BY g.name
 LIMIT :limit;

-- name: agents_with_work
-- Which of the waiting agents may find a task; each then claims for itself. A due lane counts, because its
-- tasks become visible only when it is refreshed.
SELECT w.pool
  FROM unnest(CAST(:names AS text[]), CAST(:users AS uuid[])) AS w(pool, serves)
  JOIN pools p ON p.name = w.pool AND NOT p.paused
 WHERE NOT EXISTS (SELECT 1 FROM pauses WHERE scope = 'all' AND resumed_at IS NULL)
   AND CASE WHEN w.serves IS NULL
            THEN EXISTS (SELECT 1 FROM lanes_in_fair_order(w.pool, '{}', 1))
                 OR EXISTS (SELECT 1 FROM lanes l WHERE l.due_at <= clock())
            ELSE EXISTS (SELECT 1 FROM lanes l
                          WHERE l.user_id = w.serves
                            AND (l.due_at <= clock() OR (l.eligible AND NOT (w.pool = ANY (l.skipped_by_pools)))))
        END;

-- name: held_claim
-- A claim with everything that its holder needs to run and settle it, whether it was started or not.
SELECT t.id, t.state, t.claimed_by, t.user_id, t.dag_id, t.type, t.title, t.description, t.payload, t.spec,
       t.attempts, t.max_attempts, CAST(t.retry AS text) AS retry, t.bundle, t.reserved_seconds AS granted_seconds,
       (t.timeout_seconds IS NULL OR t.reserved_seconds < t.timeout_seconds) AS plan_limited,
       t.max_cost_usd AS ceiling_usd, t.cost_usd - t.run_cost_usd AS spent_usd,
       (t.dag_id <> t.id OR t.has_dag_row OR t.context_refs IS NOT NULL) AS is_linked,
       t.execution, CASE WHEN t.attempts > 0 THEN spent_runs(t.id, t.failures_reset_epoch) END AS failures,
       lease_of_agent(t.claimed_by) AS lease_seconds,
       coalesce(g.kind = 'pull' AND g.owner_id = t.user_id, false) AS is_own_agent,
       (SELECT l.stops_runs_at <= clock() FROM lanes l WHERE l.user_id = t.user_id) AS window_closed,
       -- How often the owner's agents gave earlier runs back, not counting those that the window ended.
       CASE WHEN t.epoch > 1
            THEN (SELECT count(*) FROM attempts a
                   WHERE a.task_id = t.id AND a.epoch > t.failures_reset_epoch
                     AND a.outcome = 'released' AND a.error IS DISTINCT FROM 'window_closed')
            ELSE 0 END AS releases
  FROM tasks t
  LEFT JOIN agents g ON g.id = t.claimed_by
 WHERE t.id = :task_id
   AND t.epoch = :epoch
   AND t.token = :token;

-- name: outcome_of_claim
-- How a claim ended, for a holder that repeats a request because it got no response.
SELECT outcome, agent FROM attempts WHERE task_id = :task_id AND epoch = :epoch;
