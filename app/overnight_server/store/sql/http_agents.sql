-- name: save_http_agent
-- Add the address of an agent, or change it. Health and boot belong to the earlier address.
INSERT INTO http_agents AS h (user_id, name, url, secret, private_allowed)
VALUES (:user_id, :name, :url, :secret, :private_allowed)
    ON CONFLICT (user_id, name) DO UPDATE
   SET url = :url, secret = :secret, private_allowed = :private_allowed, removed_at = NULL,
       health = 'unknown', health_detail = NULL, checked_at = NULL, boot_id = NULL, boot_seen_at = NULL;

-- name: remove_http_agent
UPDATE http_agents SET removed_at = clock() WHERE user_id = :user_id AND name = :name AND removed_at IS NULL;

-- name: is_http_agent
SELECT EXISTS (SELECT 1 FROM http_agents WHERE user_id = :user_id AND name = :name AND removed_at IS NULL);

-- name: take_http_agents
-- Let a driver hold addresses: those that it holds already, then those that no live driver holds. Keys that were
-- rotated pass their agents on to their successors, as they do with the keys that were made with them.
WITH taken AS MATERIALIZED (
    SELECT h.user_id, h.name
      FROM http_agents h
     WHERE h.removed_at IS NULL
       AND (h.driven_by = :driver OR h.driven_until IS NULL OR h.driven_until <= clock())
     ORDER BY h.driven_by IS NOT DISTINCT FROM :driver DESC, h.user_id, h.name
     LIMIT :limit
       FOR NO KEY UPDATE
), handed_over AS (
    UPDATE agents g
       SET authorized_by = 'key:' || k.replaced_by
      FROM taken, api_keys k
     WHERE g.owner_id = taken.user_id AND g.name = taken.name
       AND starts_with(g.authorized_by, 'key:')
       AND k.id = substr(g.authorized_by, 5)
       AND k.replaced_by IS NOT NULL
)
UPDATE http_agents h
   SET driven_by = :driver, driven_until = clock() + make_interval(secs => :seconds)
  FROM taken
  JOIN agents g ON g.owner_id = taken.user_id AND g.name = taken.name
  JOIN pools p ON p.name = g.pool
  JOIN users u ON u.id = taken.user_id
 WHERE h.user_id = taken.user_id AND h.name = taken.name
RETURNING h.user_id, h.name, h.url, h.secret, h.private_allowed, h.boot_id, g.id, g.pool, p.serves, g.slots, g.status,
          g.capabilities, coalesce(g.types, '{}') AS types, g.claim_ttl_seconds, g.stale_after_seconds,
          g.budget_remaining_usd IS NOT NULL AS has_budget,
          u.disabled_at IS NULL AND is_authorized(g.authorized_by, g.authorized_until) AS is_authorized;

-- name: leave_http_agents
-- The addresses of a driver that ends are free for another one at once.
UPDATE http_agents SET driven_until = clock() WHERE driven_by = :driver AND removed_at IS NULL;

-- name: record_http_health
-- What the checks of a driver found. A boot is seen from the first answer of that process on.
UPDATE http_agents h
   SET health = c.health, health_detail = c.detail, checked_at = clock(),
       boot_id = coalesce(c.boot_id, h.boot_id),
       boot_seen_at = CASE WHEN c.boot_id IS NULL OR c.boot_id IS NOT DISTINCT FROM h.boot_id THEN h.boot_seen_at
                           ELSE clock() END
  FROM jsonb_to_recordset(CAST(:checks AS jsonb)) AS c(user_id uuid, name text, health text, detail text, boot_id text)
 WHERE h.user_id = c.user_id
   AND h.name = c.name
   AND h.driven_by = :driver;

-- name: heartbeat_http_agents
-- The heartbeats of agents that answered.
UPDATE agents g
   SET last_heartbeat_at = clock()
  FROM (SELECT id
          FROM agents
         WHERE id = ANY (CAST(:agents AS text[])) AND status <> 'offline'
         ORDER BY id
           FOR NO KEY UPDATE) online
 WHERE g.id = online.id
RETURNING g.id;

-- name: revive_http_agent
-- An agent that was offline and answers again is active, or draining as before.
UPDATE agents
   SET last_heartbeat_at = clock(), joined_at = clock(),
       status = CASE WHEN drain_requested_at IS NULL THEN 'active' ELSE 'draining' END
 WHERE id = :agent AND status = 'offline';

-- name: claims_of_http_agents
-- What agents hold, for a driver that takes them over. `same_boot`: the process that the agent's boot names was
-- seen before the claim, so the claim was made for it.
SELECT t.id, t.epoch, t.token, t.state, t.claimed_by,
       coalesce(extract(epoch FROM clock() - t.started_at), 0)::float8 AS ran_seconds,
       coalesce(h.boot_seen_at <= t.claimed_at, false) AS same_boot
  FROM tasks t
  JOIN agents g ON g.id = t.claimed_by
  JOIN http_agents h ON h.user_id = g.owner_id AND h.name = g.name
 WHERE t.state IN ('claimed', 'running', 'validating')
   AND t.claimed_by = ANY (CAST(:agents AS text[]));

-- name: stop_requests_of_http_agents
-- Runs whose owner has asked them to stop.
SELECT t.id, t.epoch
  FROM tasks t
 WHERE t.state IN ('running', 'validating')
   AND t.claimed_by = ANY (CAST(:agents AS text[]))
   AND t.cancel_requested_at IS NOT NULL;

-- name: give_up_removed_http_agents
-- A driver learns once that an address was removed, and then stops what runs there.
UPDATE http_agents
   SET driven_by = NULL, driven_until = NULL
 WHERE driven_by = :driver AND removed_at IS NOT NULL
RETURNING user_id, name;

-- name: ended_runs_of_http_agent
-- Runs that an agent says it works on, although their claims have ended.
SELECT a.task_id, a.epoch
  FROM unnest(CAST(:tasks AS uuid[]), CAST(:epochs AS int[])) AS k(task_id, epoch)
  JOIN attempts a ON a.task_id = k.task_id AND a.epoch = k.epoch AND a.agent = :agent
  JOIN tasks t ON t.id = a.task_id
 WHERE a.ended_at IS NOT NULL OR t.epoch <> a.epoch;
