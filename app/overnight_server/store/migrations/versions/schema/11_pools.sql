-- Pools, the workers and pull agents in them, pauses, and the state of maintenance.

-- A group of workers that receive the same messages, or the single pull agent of kind `pull`. `serves`
-- limits a pull agent to the tasks of one user.
CREATE TABLE pools (
    name TEXT NOT NULL,
    kind TEXT DEFAULT 'celery' NOT NULL,
    serves UUID,
    paused BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (name),
    CONSTRAINT pools_kind_known CHECK (kind IN ('celery', 'pull')),
    FOREIGN KEY(serves) REFERENCES users (id)
);
CREATE INDEX pools_serves ON pools (serves) WHERE serves IS NOT NULL;

-- A worker or pull agent. budget_remaining_usd may become negative, because runs report their cost
-- afterwards. claim_ttl_seconds and stale_after_seconds are set for pull agents; workers use the
-- settings. drain_requested_at is kept beside the status, so that a worker that was unreachable for a
-- while is still draining. authorized_by is the key or token with which a pull agent last registered or asked
-- for work, and authorized_until the end of that token; the tokens of its claims end with it. deaf_since is when a
-- worker noticed that it reads no messages; it drains from then on. dropped_messages counts the messages that a
-- worker dropped since its start, because the service did not send them.
CREATE TABLE agents (
    id TEXT NOT NULL,
    kind TEXT DEFAULT 'celery' NOT NULL,
    pool TEXT NOT NULL,
    capabilities TEXT[] DEFAULT '{}' NOT NULL,
    types TEXT[],
    slots INTEGER NOT NULL,
    budget_remaining_usd NUMERIC(18, 6),
    status TEXT DEFAULT 'active' NOT NULL,
    joined_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    last_heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    owner_id UUID,
    name TEXT,
    models TEXT[] DEFAULT '{}' NOT NULL,
    claim_ttl_seconds INTEGER,
    stale_after_seconds INTEGER,
    drain_requested_at TIMESTAMP WITH TIME ZONE,
    authorized_by TEXT,
    authorized_until TIMESTAMP WITH TIME ZONE,
    deaf_since TIMESTAMP WITH TIME ZONE,
    dropped_messages BIGINT DEFAULT 0 NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT agents_status_known CHECK (status IN ('active', 'draining', 'offline')),
    CONSTRAINT agents_slots_not_negative CHECK (slots >= 0),
    CONSTRAINT agents_outside_have_owners CHECK (num_nonnulls(owner_id, name, claim_ttl_seconds, stale_after_seconds) = CASE kind WHEN 'pull' THEN 4 ELSE 0 END),
    FOREIGN KEY(pool) REFERENCES pools (name),
    FOREIGN KEY(owner_id) REFERENCES users (id)
)
 WITH (fillfactor = 50);
CREATE INDEX agents_offline ON agents (last_heartbeat_at) WHERE status = 'offline';
CREATE UNIQUE INDEX agents_of_owner ON agents (owner_id, name);
CREATE INDEX agents_online ON agents (pool) WHERE status <> 'offline';
CREATE INDEX agents_pull_pool ON agents (pool) WHERE kind = 'pull';

-- The address of an HTTP agent: a pull agent whose work the agent driver sends to `url`. `secret` signs the
-- requests. `private_allowed`: an operator added it, so it may be in a private network. A driver holds the address
-- until driven_until. `health` is what the last check found. boot_id names the process that answered last, and
-- boot_seen_at is when it answered first.
CREATE TABLE http_agents (
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    secret TEXT NOT NULL,
    private_allowed BOOLEAN NOT NULL,
    added_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    removed_at TIMESTAMP WITH TIME ZONE,
    driven_by TEXT,
    driven_until TIMESTAMP WITH TIME ZONE,
    health TEXT DEFAULT 'unknown' NOT NULL,
    health_detail TEXT,
    checked_at TIMESTAMP WITH TIME ZONE,
    boot_id TEXT,
    boot_seen_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (user_id, name),
    CONSTRAINT http_agents_health_known CHECK (health IN ('unknown', 'idle', 'busy', 'unreachable', 'unauthorized')),
    CONSTRAINT http_agents_driven_by_somebody CHECK ((driven_by IS NULL) = (driven_until IS NULL)),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 50);
CREATE INDEX http_agents_driven ON http_agents (driven_until) WHERE removed_at IS NULL;

-- The address of an HTTP agent; NULL for every other agent and worker, and for agents that the caller does not see.
CREATE FUNCTION address_of_agent(agent_id text) RETURNS text
LANGUAGE sql STABLE
RETURN (SELECT h.url
          FROM agents g
          JOIN http_agents h ON h.user_id = g.owner_id AND h.name = g.name AND h.removed_at IS NULL
         WHERE g.id = agent_id);

-- Whether the key or token with which an agent was registered is still valid.
CREATE FUNCTION is_authorized(authorized_by text, authorized_until timestamptz) RETURNS boolean
LANGUAGE sql STABLE
RETURN (authorized_until IS NULL OR authorized_until > clock())
       AND (authorized_by IS NULL OR NOT starts_with(authorized_by, 'key:')
            OR EXISTS (SELECT 1 FROM api_keys k
                        WHERE k.id = substr(authorized_by, 5)
                          AND k.revoked_at IS NULL
                          AND (k.expires_at IS NULL OR k.expires_at > clock())));

-- When a worker or pull agent accepted tasks, and which: from its registration to its drain or its last heartbeat. The
-- fairness report leaves out the time in which no worker could run a task. `serves` as in pools.
CREATE TABLE worker_sessions (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    agent_id TEXT NOT NULL,
    pool TEXT NOT NULL,
    serves UUID,
    capabilities TEXT[] NOT NULL,
    types TEXT[],
    slots INTEGER NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX worker_sessions_open ON worker_sessions (agent_id) WHERE ended_at IS NULL;
CREATE INDEX worker_sessions_ended ON worker_sessions (ended_at);

-- A heartbeat does not fire this trigger.
CREATE FUNCTION record_worker_session() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    last_seen timestamptz := clock();
BEGIN
    IF TG_RELID <> 'public.agents'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF (NEW.status, NEW.pool, NEW.capabilities, NEW.types, NEW.slots, NEW.joined_at)
           IS NOT DISTINCT FROM (OLD.status, OLD.pool, OLD.capabilities, OLD.types, OLD.slots, OLD.joined_at) THEN
            RETURN NULL;
        END IF;
        -- A drain and a change of slots end the session now; anything else ended it when the worker was last seen.
        IF NEW.status <> 'draining' AND (NEW.status, NEW.joined_at) IS DISTINCT FROM (OLD.status, OLD.joined_at) THEN
            last_seen := OLD.last_heartbeat_at;
        END IF;
    END IF;
    UPDATE worker_sessions SET ended_at = last_seen WHERE agent_id = NEW.id AND ended_at IS NULL;
    IF NEW.status = 'active' THEN
        INSERT INTO worker_sessions (agent_id, pool, serves, capabilities, types, slots)
        SELECT NEW.id, NEW.pool, p.serves, NEW.capabilities, NEW.types, NEW.slots FROM pools p WHERE p.name = NEW.pool;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER agents_record_session AFTER INSERT OR UPDATE OF status, pool, capabilities, types, slots, joined_at ON agents
    FOR EACH ROW EXECUTE FUNCTION record_worker_session();

-- Delete workers and pull agents that have been offline for long; return their number. Those with a
-- budget or a requested drain are kept, because both apply again when they return; so are HTTP agents, which return
-- when their address answers again.
CREATE FUNCTION delete_offline_agents(worker_seconds float8, pull_agent_seconds float8, max_agents int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH gone AS (
        DELETE FROM agents
         WHERE id IN (SELECT id
                        FROM agents
                       WHERE status = 'offline'
                         AND last_heartbeat_at < clock() - make_interval(secs => least(worker_seconds, pull_agent_seconds))
                         AND (kind = 'celery' OR last_heartbeat_at < clock() - make_interval(secs => pull_agent_seconds))
                         AND budget_remaining_usd IS NULL
                         AND drain_requested_at IS NULL
                         AND NOT EXISTS (SELECT 1 FROM http_agents h
                                          WHERE h.user_id = agents.owner_id AND h.name = agents.name AND h.removed_at IS NULL)
                       ORDER BY last_heartbeat_at
                       LIMIT max_agents
                         FOR UPDATE SKIP LOCKED)
        RETURNING id
    )
    SELECT count(*) FROM gone
$$;

-- Who paused a user, a pool or everything; rows stay after the resume. `target` is a user's id or a pool's
-- name, NULL for everything.
CREATE TABLE pauses (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    scope TEXT NOT NULL,
    target TEXT,
    note TEXT,
    paused_by TEXT NOT NULL,
    paused_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    resumed_by TEXT,
    resumed_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT pauses_scope_known CHECK (scope IN ('all', 'pool', 'user')),
    CONSTRAINT pauses_target_fits_scope CHECK ((target IS NULL) = (scope = 'all')),
    CONSTRAINT pauses_resumed_by_somebody CHECK ((resumed_at IS NULL) = (resumed_by IS NULL))
);
CREATE INDEX pauses_resumed ON pauses (resumed_at) WHERE resumed_at IS NOT NULL;
CREATE UNIQUE INDEX pauses_in_force ON pauses (scope, coalesce(target, '')) WHERE resumed_at IS NULL;

-- How long recent runs of a task type took, as workers report it. `seconds` decides the size of bundles;
-- forecasts draw from `recent`.
CREATE TABLE type_durations (
    type TEXT NOT NULL,
    seconds FLOAT NOT NULL,
    recent FLOAT[] DEFAULT '{}' NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (type)
)
 WITH (fillfactor = 50);

-- When each maintenance sweep last ran. Several beat processes update this row to run a sweep only once.
-- `position` is where the next pass of a sweep continues that does a part of its work in each pass.
-- `resumed_at` is when the reaper made its first pass after a gap in which nobody may have reached Postgres.
CREATE TABLE sweeps (
    name TEXT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    touched INTEGER,
    position TEXT,
    resumed_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (name)
);

-- When a sweep last saw a live worker that handles a type; `*` stands for every type.
CREATE TABLE handled_types (
    type TEXT NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (type)
);

-- Whether an outage ended less than one lease ago. Nobody could renew a lease while Postgres was unreachable, so
-- every lease is valid once more from the reaper's first pass after the outage, but not longer than five minutes.
CREATE FUNCTION is_in_grace(lease interval) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT 1 FROM sweeps
                WHERE name = 'reap' AND resumed_at + least(lease, interval '5 minutes') > clock());
