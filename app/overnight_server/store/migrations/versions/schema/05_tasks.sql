-- Graphs and tasks.

CREATE FUNCTION is_active(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state IN ('claimed', 'running', 'validating');

CREATE FUNCTION is_waiting(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state IN ('created', 'pending', 'ready', 'retrying');

CREATE FUNCTION is_final(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state IN ('cancelled', 'completed', 'dead_lettered');

-- Whether somebody cancelled the task itself, and not because another task ended; equal to
-- app/overnight_server/domain/graphs.py.
CREATE FUNCTION was_stopped(state text, reason text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state = 'cancelled'
       AND coalesce(reason NOT IN ('not_needed', 'upstream_cancelled', 'upstream_failed'), true);

-- A graph of tasks. Its status follows from the counters, which database triggers on tasks keep. A task that was
-- submitted alone is a graph by itself: its dag_id is its own id, and it gets a row here only when a
-- second task joins it. The view `graphs` shows both kinds. `stopped` counts those of the cancelled that
-- somebody cancelled on purpose. `budget_by_operator`: an operator set the budget, so its owner cannot raise it.
CREATE TABLE dags (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    title TEXT NOT NULL,
    created_by TEXT NOT NULL,
    idempotency_key TEXT,
    total INTEGER DEFAULT 0 NOT NULL,
    open INTEGER DEFAULT 0 NOT NULL,
    completed INTEGER DEFAULT 0 NOT NULL,
    dead INTEGER DEFAULT 0 NOT NULL,
    cancelled INTEGER DEFAULT 0 NOT NULL,
    stopped INTEGER DEFAULT 0 NOT NULL,
    status TEXT GENERATED ALWAYS AS (CASE WHEN total = 0 THEN 'pending' WHEN open > 0 THEN 'running' WHEN dead > 0 THEN 'failed' WHEN stopped > 0 THEN 'cancelled' ELSE 'completed' END) STORED NOT NULL,
    budget_ceiling_usd NUMERIC(18, 6),
    budget_by_operator BOOLEAN DEFAULT false NOT NULL,
    spent_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    reserved_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    forked_from UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT dags_counts_not_negative CHECK (least(total, open, completed, dead, cancelled, stopped) >= 0),
    CONSTRAINT dags_stopped_are_cancelled CHECK (stopped <= cancelled),
    CONSTRAINT dags_counts_add_up CHECK (total = open + completed + dead + cancelled),
    CONSTRAINT dags_budget_not_negative CHECK (budget_ceiling_usd >= 0),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 75);
CREATE UNIQUE INDEX dags_idempotency ON dags (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX dags_user ON dags (user_id, id DESC);
CREATE INDEX dags_with_budget ON dags (user_id) WHERE budget_ceiling_usd IS NOT NULL AND finished_at IS NULL;

-- Lock keys that are paths, as ranges of text. The range of a path contains every name below it: from
-- `src/` up to, but not including, `src0`, because `0` follows `/` in byte order. Two ranges overlap
-- exactly if one path lies within the other, so an exclusion constraint can refuse the second holder.
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C");

-- The range of a path key, unique per user; NULL for other keys, for which equality is enough.
CREATE FUNCTION lock_path_range(user_id uuid, key text) RETURNS textrange
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN key = 'path:.' THEN textrange(user_id::text || '|path:', user_id::text || '|path;')
            WHEN starts_with(key, 'path:') THEN textrange(user_id::text || '|' || key || '/', user_id::text || '|' || key || '0')
       END;

-- The ranges of all path keys; NULL without any. STRICT, so that it is not called for a task without locks.
CREATE FUNCTION lock_path_ranges(user_id uuid, keys text[]) RETURNS textmultirange
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT CASE WHEN count(lock_path_range(user_id, key)) > 0 THEN range_agg(lock_path_range(user_id, key)) END
          FROM unnest(keys) key);

-- A number for a set of lock keys, 0 without keys: tasks with the same number wait for the same locks.
CREATE FUNCTION lock_group(keys text[]) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(hash_array_extended(keys, 0), 0);

-- The task: this row is the work; Celery messages only point to it.
--   dag_id            its graph; equal to id for a lone task
--   parent_id, spawn_key  the task that spawned it, and the key that makes a repeated spawn the same task
--   has_dag_row       a lone task that others have joined: its graph has a row in dags now
--   role              `orchestrator` may spawn tasks for other agents
--   context_refs      whose outputs it gets: each reference as written, and the id that it names
--   execution         how its command runs, decided when it was created; NULL for other runners
--   copied_from       the completed task whose result a fork copied; this task never ran
--   name              its name within the graph; NULL if nothing refers to it
--   moved_from        the state before the last statement if that changed it, else NULL
--   revision          how often the state changed; the seq of the latest event
--   unmet             edges that are not satisfied yet
--   dependency_boost  points for the work that waits behind it in the graph
--   locks, lock_paths keys it must hold while it is active, never an empty array; the ranges of those that are paths
--   start_at          it may not start before; NULL: at any time
--   awaits_start      it waits for nothing but start_at
--   requeued_at       when a busy agent put it at the back of the queue; its age counts from then on
--   awaits_budget     which budget is used up and must be raised before it continues
--   epoch             the number of its claims; with token the fence: a holder that lost the claim matches no row
--   skipped_epochs    how many of these numbers were skipped, because claims may have had them before a restore
--   heartbeat_at      the latest heartbeat of any run; earlier than started_at if the current run has sent none
--   bundle            the message it shares with other short tasks; NULL for a message of its own
--   runs_alone        never in a bundle again, because a bundle with it crashed
--   failures_reset_epoch  attempts up to this epoch no longer count, because an operator revived the task
--   original_max_attempts max_attempts as submitted, once a retry by hand has raised it
--   reserved_seconds, reserved_usd  reserved by the claim until the run is settled
--   traceparent       the W3C trace context of the request that submitted it
--   run_cost_usd      the part of cost_usd that the current run has reported
CREATE TABLE tasks (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    parent_id UUID,
    spawn_key TEXT,
    has_dag_row BOOLEAN DEFAULT false NOT NULL,
    role TEXT,
    context_refs JSONB,
    execution JSONB,
    copied_from UUID,
    type TEXT NOT NULL,
    name TEXT,
    title TEXT NOT NULL,
    description TEXT DEFAULT '' NOT NULL,
    project_id TEXT,
    payload JSONB DEFAULT '{}' NOT NULL,
    spec JSONB DEFAULT '{}' NOT NULL,
    tags TEXT[] DEFAULT '{}' NOT NULL,
    source TEXT DEFAULT 'api' NOT NULL,
    created_by TEXT NOT NULL,
    idempotency_key TEXT,
    state TEXT NOT NULL,
    moved_from TEXT,
    revision INTEGER DEFAULT 1 NOT NULL,
    unmet INTEGER DEFAULT 0 NOT NULL,
    priority SMALLINT DEFAULT 50 NOT NULL,
    priority_boost_per_minute FLOAT DEFAULT 0.1 NOT NULL,
    dependency_boost FLOAT DEFAULT 0 NOT NULL,
    sort_key FLOAT NOT NULL,
    deadline_at TIMESTAMP WITH TIME ZONE,
    start_at TIMESTAMP WITH TIME ZONE,
    awaits_start BOOLEAN DEFAULT false NOT NULL,
    requeued_at TIMESTAMP WITH TIME ZONE,
    required_capabilities TEXT[] DEFAULT '{}' NOT NULL,
    locks TEXT[],
    lock_paths textmultirange,
    timeout_seconds INTEGER,
    estimated_cost_usd NUMERIC(18, 6),
    max_cost_usd NUMERIC(18, 6),
    awaits_budget TEXT,
    epoch INTEGER DEFAULT 0 NOT NULL,
    skipped_epochs INTEGER DEFAULT 0 NOT NULL,
    token UUID,
    claimed_by TEXT,
    pool TEXT,
    claimed_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE,
    heartbeat_at TIMESTAMP WITH TIME ZONE,
    reserved_seconds INTEGER,
    reserved_usd NUMERIC(18, 6),
    run_cost_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    bundle UUID,
    runs_alone BOOLEAN DEFAULT false NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    cancel_requested_at TIMESTAMP WITH TIME ZONE,
    progress JSONB,
    failures_reset_epoch INTEGER DEFAULT 0 NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    max_attempts INTEGER DEFAULT 3 NOT NULL,
    original_max_attempts INTEGER,
    retry JSONB DEFAULT '{}' NOT NULL,
    retry_at TIMESTAMP WITH TIME ZONE,
    output JSONB,
    result_summary TEXT,
    files_changed JSONB,
    failure_reason TEXT,
    error TEXT,
    cost_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    tokens_used JSONB DEFAULT '{}' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    traceparent TEXT DEFAULT nullif(current_setting('overnight.traceparent', true), ''),
    PRIMARY KEY (id),
    FOREIGN KEY(parent_id) REFERENCES tasks (id)
)
 WITH (fillfactor = 75);
CREATE INDEX tasks_active ON tasks (pool) WHERE state IN ('claimed', 'running', 'validating');
CREATE INDEX tasks_awaiting_budget ON tasks (user_id) WHERE awaits_budget IS NOT NULL;
-- `state` is included but no key: with few graphs the planner would expect a skip scan over a key
-- (dag_id, state) to be cheap, and read all tasks of every graph.
CREATE INDEX tasks_dag ON tasks (dag_id) INCLUDE (state);
CREATE INDEX tasks_deadline ON tasks (deadline_at, id) WHERE deadline_at IS NOT NULL AND state IN ('created', 'pending', 'ready', 'retrying');
-- For lists of what ended in a period.
CREATE INDEX tasks_ended ON tasks (user_id, finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX tasks_idempotency ON tasks (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- For the audit and for lists of what waits. Without naming states, so that no other statement uses it instead of a
-- better index.
CREATE INDEX tasks_open ON tasks (user_id, id) WHERE finished_at IS NULL;
CREATE INDEX tasks_ready ON tasks (user_id, sort_key, id) WHERE state = 'ready';
-- Tasks with equal locks are next to each other, so that a claim passes over all that wait for a held lock.
CREATE INDEX tasks_ready_by_locks ON tasks (user_id, lock_group(locks), sort_key, id) WHERE state = 'ready';
CREATE INDEX tasks_retry ON tasks (retry_at) WHERE state = 'retrying';
CREATE INDEX tasks_start ON tasks (start_at) WHERE awaits_start;
CREATE UNIQUE INDEX tasks_spawned ON tasks (parent_id, spawn_key) WHERE parent_id IS NOT NULL;
-- Retention looks for forks, and for tasks that may still run and read the result of a task that is to be deleted.
CREATE INDEX tasks_copied_from ON tasks (copied_from) WHERE copied_from IS NOT NULL;
CREATE INDEX tasks_context ON tasks USING gin (jsonb_path_query_array(context_refs, '$.*')) WHERE context_refs IS NOT NULL;
CREATE INDEX tasks_urgent ON tasks (user_id) WHERE state IN ('created', 'pending', 'ready', 'retrying') AND priority < 30;
CREATE INDEX tasks_user_recent ON tasks (user_id, id DESC);

-- The order of tasks within a user; the lowest goes first. All tasks age at the same rate, so instead of
-- updating ages, a later creation adds to the number, and the order never changes. Only a deadline
-- changes it: the priority sweep rewrites those tasks. app/overnight_server/domain/priority.py has the
-- same formula, and a test compares the two.
CREATE FUNCTION sort_key(priority int, boost_per_minute float8, made_at timestamptz, dependency_boost float8,
                         deadline_at timestamptz, at timestamptz) RETURNS float8
LANGUAGE sql STABLE PARALLEL SAFE
RETURN priority
       + 0.1 * extract(epoch FROM made_at)::float8 / 60
       -- a task that ages faster than the others gets in advance what it would gain in a night of 480 minutes
       - (boost_per_minute - 0.1) * 480
       - dependency_boost
       -- 40 points at the deadline, half as many for each hour before it
       - CASE WHEN deadline_at IS NULL THEN 0
              ELSE 40 * power(2, - least(1000, greatest(0, extract(epoch FROM deadline_at - at)::float8 / 3600))) END
       -- critical tasks are a band of their own, which ageing cannot reach
       - CASE WHEN priority < 10 THEN 1e9 ELSE 0 END;

-- Keep derived columns and check every row; CHECK constraints would be slower (see lanes).
CREATE FUNCTION enforce_task_invariants() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    violated text;
BEGIN
    IF TG_OP = 'INSERT' OR NEW.locks IS DISTINCT FROM OLD.locks THEN
        NEW.lock_paths := lock_path_ranges(NEW.user_id, NEW.locks);
    END IF;
    -- Whoever makes a task ready before its start, it stays pending; the promoter makes it ready in time.
    NEW.awaits_start := NEW.start_at IS NOT NULL AND NEW.unmet = 0
                        AND (NEW.awaits_start AND NEW.state = 'pending'
                             OR NEW.state = 'ready' AND NEW.start_at > clock());
    IF NEW.awaits_start THEN
        NEW.state := 'pending';
    END IF;
    NEW.moved_from := NULL;
    IF TG_OP = 'UPDATE' THEN
        IF NEW.state <> OLD.state THEN
            NEW.moved_from := OLD.state;
            NEW.revision := OLD.revision + 1;
            -- Never earlier than the previous change or than the claim.
            NEW.updated_at := greatest(clock(), OLD.updated_at, NEW.claimed_at);
            -- Columns that must be cleared when the task no longer waits for a budget, or its claim ends.
            IF NEW.state <> 'pending' THEN
                NEW.awaits_budget := NULL;
            END IF;
            IF OLD.token IS NOT NULL AND NEW.token IS NULL THEN
                NEW.reserved_usd := NULL;
                NEW.run_cost_usd := 0;
            END IF;
        END IF;
    END IF;
    violated := CASE
        WHEN NOT (is_waiting(NEW.state) OR is_active(NEW.state) OR is_final(NEW.state))
            THEN 'tasks_state_known'
        WHEN num_nonnulls(NEW.token, NEW.claimed_by, NEW.pool, NEW.claimed_at, NEW.expires_at, NEW.reserved_seconds)
             <> CASE WHEN is_active(NEW.state) THEN 6 ELSE 0 END
            THEN 'tasks_claim_exactly_while_active'
        WHEN NEW.token IS NULL AND num_nonnulls(NEW.bundle, NEW.reserved_usd) > 0
            THEN 'tasks_bundle_and_money_only_while_active'
        WHEN (NEW.finished_at IS NOT NULL) <> is_final(NEW.state)
            THEN 'tasks_finished_exactly_when_final'
        WHEN (NEW.retry_at IS NOT NULL) <> (NEW.state = 'retrying')
            THEN 'tasks_retry_at_while_retrying'
        WHEN NEW.unmet < 0
            THEN 'tasks_unmet_not_negative'
        WHEN NEW.unmet > 0 AND (NEW.token IS NOT NULL OR NEW.state IN ('ready', 'retrying', 'completed'))
            THEN 'tasks_blocked_until_met'
        WHEN NEW.awaits_budget NOT IN ('agent', 'dag', 'night', 'task')
             OR (NEW.awaits_budget IS NOT NULL AND (NEW.state <> 'pending' OR NEW.unmet > 0))
            THEN 'tasks_awaits_budget_while_pending'
        WHEN NEW.attempts NOT BETWEEN 0 AND NEW.max_attempts
            THEN 'tasks_attempts_in_budget'
        WHEN NEW.priority NOT BETWEEN 0 AND 100
            THEN 'tasks_priority_in_range'
        WHEN NEW.timeout_seconds <= 0
            THEN 'tasks_timeout_positive'
        WHEN cardinality(NEW.locks) = 0
            THEN 'tasks_locks_or_null'
        WHEN NEW.copied_from IS NOT NULL AND (NEW.state <> 'completed' OR NEW.epoch > 0)
            THEN 'tasks_taken_over_completed'
        WHEN NEW.role <> 'orchestrator'
            THEN 'tasks_role_known'
        WHEN (NEW.parent_id IS NULL) <> (NEW.spawn_key IS NULL)
            THEN 'tasks_spawned_under_a_key'
        END;
    IF violated IS NOT NULL THEN
        PERFORM raise_check_violation('tasks', violated, NEW.id);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER tasks_enforce_invariants BEFORE INSERT OR UPDATE ON tasks
    FOR EACH ROW EXECUTE FUNCTION enforce_task_invariants();

-- The legal changes of state, equal to MOVES in app/overnight_server/domain/lifecycle.py. A trigger on
-- tasks refuses every other change.
CREATE TABLE legal_moves (
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    PRIMARY KEY (from_state, to_state)
);
INSERT INTO legal_moves (from_state, to_state) VALUES
    ('cancelled', 'pending'),
    ('claimed', 'cancelled'),
    ('claimed', 'ready'),
    ('claimed', 'running'),
    ('created', 'cancelled'),
    ('created', 'pending'),
    ('dead_lettered', 'cancelled'),
    ('dead_lettered', 'completed'),
    ('dead_lettered', 'pending'),
    ('pending', 'cancelled'),
    ('pending', 'dead_lettered'),
    ('pending', 'ready'),
    ('ready', 'cancelled'),
    ('ready', 'claimed'),
    ('ready', 'dead_lettered'),
    ('ready', 'pending'),
    ('ready', 'running'),
    ('retrying', 'cancelled'),
    ('retrying', 'completed'),
    ('retrying', 'dead_lettered'),
    ('retrying', 'ready'),
    ('running', 'cancelled'),
    ('running', 'completed'),
    ('running', 'dead_lettered'),
    ('running', 'pending'),
    ('running', 'ready'),
    ('running', 'retrying'),
    ('running', 'validating'),
    ('validating', 'cancelled'),
    ('validating', 'completed'),
    ('validating', 'dead_lettered'),
    ('validating', 'pending'),
    ('validating', 'ready'),
    ('validating', 'retrying');

-- Keep the counters of lanes and dags. Lanes are updated in user order. A change may make a task of the
-- lane startable for a pool that skipped the lane, so no pool skips it afterwards. Connections of
-- Overnight allow only nested-loop joins (app/overnight_server/store/db.py): other plans would scan all
-- lanes. Setting the same options per function would cost as much as the function.
CREATE FUNCTION count_new_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    unknown_users int;
    depth_change bigint;
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    WITH delta AS MATERIALIZED (
        SELECT user_id,
               sum(is_active(state)::int)::int AS active,
               sum((state = 'ready')::int)::int AS ready,
               sum(is_waiting(state)::int)::int AS waiting,
               sum(coalesce(reserved_seconds, 0)) AS reserved
          FROM new_rows
         GROUP BY user_id
         ORDER BY user_id
    ), counted AS (
        UPDATE lanes l
           SET active = l.active + d.active,
               ready = l.ready + d.ready,
               waiting = l.waiting + d.waiting,
               reserved_seconds = l.reserved_seconds + d.reserved,
               skipped_by_pools = '{}'
          FROM delta d
         WHERE l.user_id = d.user_id
        RETURNING l.user_id
    )
    SELECT count(*) - (SELECT count(*) FROM counted), sum(waiting) FROM delta INTO unknown_users, depth_change;
    IF unknown_users > 0 THEN
        RAISE EXCEPTION 'there is no such user' USING ERRCODE = 'foreign_key_violation', TABLE = 'tasks';
    END IF;
    IF depth_change <> 0 THEN
        PERFORM count_depth(depth_change);
    END IF;

    -- Most tasks are lone tasks without a row in dags.
    IF NOT EXISTS (SELECT FROM new_rows WHERE dag_id <> id) THEN
        RETURN NULL;
    END IF;
    UPDATE dags g
       SET total = g.total + d.total,
           open = g.open + d.open,
           completed = g.completed + d.completed,
           dead = g.dead + d.dead,
           cancelled = g.cancelled + d.cancelled,
           stopped = g.stopped + d.stopped,
           finished_at = CASE WHEN g.open + d.open = 0 THEN coalesce(g.finished_at, clock()) END
      FROM (SELECT dag_id,
                   count(*) AS total,
                   sum((is_active(state) OR is_waiting(state))::int) AS open,
                   sum((state = 'completed')::int) AS completed,
                   sum((state = 'dead_lettered')::int) AS dead,
                   sum((state = 'cancelled')::int) AS cancelled,
                   sum(was_stopped(state, failure_reason)::int) AS stopped
              FROM new_rows
             WHERE dag_id <> id
             GROUP BY dag_id) d
     WHERE g.id = d.dag_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_count_new AFTER INSERT ON tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_new_tasks();

-- Old rows count -1 and new rows +1; the sum is what the statement changed.
CREATE FUNCTION count_moved_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    depth_change bigint;
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    WITH delta AS MATERIALIZED (
        SELECT user_id,
               sum(sign * is_active(state)::int)::int AS active,
               sum(sign * (state = 'ready')::int)::int AS ready,
               sum(sign * is_waiting(state)::int)::int AS waiting,
               sum(sign * coalesce(reserved_seconds, 0)) AS reserved
          FROM (SELECT 1 AS sign, user_id, state, reserved_seconds FROM new_rows
                UNION ALL
                SELECT -1, user_id, state, reserved_seconds FROM old_rows) change
         GROUP BY user_id
        HAVING sum(sign * is_active(state)::int) <> 0
            OR sum(sign * (state = 'ready')::int) <> 0
            OR sum(sign * is_waiting(state)::int) <> 0
            OR sum(sign * coalesce(reserved_seconds, 0)) <> 0
         ORDER BY user_id
    ), counted AS (
        UPDATE lanes l
           SET active = l.active + d.active,
               ready = l.ready + d.ready,
               waiting = l.waiting + d.waiting,
               reserved_seconds = l.reserved_seconds + d.reserved,
               last_served_at = CASE WHEN d.active > 0 THEN clock() ELSE l.last_served_at END,
               skipped_by_pools = '{}'
          FROM delta d
         WHERE l.user_id = d.user_id
    )
    SELECT sum(waiting) FROM delta INTO depth_change;
    IF depth_change <> 0 THEN
        PERFORM count_depth(depth_change);
    END IF;

    -- Most tasks are lone tasks without a row in dags.
    IF NOT EXISTS (SELECT FROM new_rows WHERE dag_id <> id OR has_dag_row) THEN
        RETURN NULL;
    END IF;
    UPDATE dags g
       SET open = g.open + d.open,
           completed = g.completed + d.completed,
           dead = g.dead + d.dead,
           cancelled = g.cancelled + d.cancelled,
           stopped = g.stopped + d.stopped,
           finished_at = CASE WHEN g.open + d.open = 0 THEN coalesce(g.finished_at, clock()) END
      FROM (SELECT dag_id,
                   sum(sign * (is_active(state) OR is_waiting(state))::int) AS open,
                   sum(sign * (state = 'completed')::int) AS completed,
                   sum(sign * (state = 'dead_lettered')::int) AS dead,
                   sum(sign * (state = 'cancelled')::int) AS cancelled,
                   sum(sign * was_stopped(state, failure_reason)::int) AS stopped
              FROM (SELECT 1 AS sign, dag_id, state, failure_reason FROM new_rows WHERE dag_id <> id OR has_dag_row
                    UNION ALL
                    SELECT -1, dag_id, state, failure_reason FROM old_rows WHERE dag_id <> id OR has_dag_row) change
             GROUP BY dag_id
            HAVING sum(sign * (state = 'completed')::int) <> 0
                OR sum(sign * (state = 'dead_lettered')::int) <> 0
                OR sum(sign * (state = 'cancelled')::int) <> 0) d
     WHERE g.id = d.dag_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_count_moved AFTER UPDATE ON tasks
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_moved_tasks();
