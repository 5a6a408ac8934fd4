-- Other ways in: the inbox for producers with their own transactions, jobs of schedulers, and bulk
-- operations on many tasks.

-- A task that a program inserted in its own transaction, and what became of it. Only the oldest waiting
-- row of a user is considered, so that the order is kept. `held_by` is the limit that delays it, or the
-- last one that did.
CREATE TABLE inbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    key_id TEXT NOT NULL,
    task JSONB NOT NULL,
    arrived_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    held_by TEXT,
    outcome TEXT,
    settled_at TIMESTAMP WITH TIME ZONE,
    task_id UUID,
    error TEXT,
    settled_by TEXT,
    PRIMARY KEY (id),
    CONSTRAINT inbox_outcome_known CHECK (outcome IN ('accepted', 'dropped', 'refused')),
    CONSTRAINT inbox_settled_exactly_with_outcome CHECK ((outcome IS NULL) = (settled_at IS NULL)),
    CONSTRAINT inbox_task_exactly_when_accepted CHECK ((task_id IS NOT NULL) = (outcome IS NOT DISTINCT FROM 'accepted')),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX inbox_refused ON inbox (id) WHERE outcome = 'refused';
CREATE INDEX inbox_settled ON inbox (settled_at) WHERE settled_at IS NOT NULL;
CREATE INDEX inbox_waiting ON inbox (user_id, id) WHERE outcome IS NULL;

-- Insert a row into the inbox. Producers have no rights on any table; this function runs with its
-- owner's rights and checks only that the caller holds a valid key. The caller sends the SHA-256 of
-- 'overnight inbox ' and the key's stored hash, so that neither the key nor its hash appears in a log.
CREATE FUNCTION overnight_inbox_submit(sender_key_id text, proof text, task jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    sender uuid;
    inbox_id bigint;
BEGIN
    SELECT k.user_id INTO sender
      FROM api_keys k
      JOIN users u ON u.id = k.user_id AND u.disabled_at IS NULL
     WHERE k.id = sender_key_id
       AND encode(sha256(convert_to('overnight inbox ' || k.hash, 'UTF8')), 'hex') = proof
       AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock())
       AND k.scopes && ARRAY['*', 'tasks:write'];
    IF sender IS NULL THEN
        RAISE EXCEPTION 'no valid API key with the scope tasks:write'
            USING ERRCODE = 'invalid_authorization_specification';
    END IF;
    IF jsonb_typeof(task) IS DISTINCT FROM 'object' OR octet_length(task::text) > 1048576 THEN
        RAISE EXCEPTION 'a task is a JSON object of at most 1048576 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO inbox (user_id, key_id, task) VALUES (sender, sender_key_id, task)
    RETURNING id INTO inbox_id;
    RETURN inbox_id;
END
$$;

-- What became of the latest submit of a scheduler's job, under the name that the scheduler gives.
CREATE TABLE source_jobs (
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    last_status TEXT NOT NULL,
    last_run_at TIMESTAMP WITH TIME ZONE NOT NULL,
    task_id UUID,
    PRIMARY KEY (user_id, name),
    CONSTRAINT source_jobs_task_when_queued CHECK ((task_id IS NOT NULL) = (last_status = 'queued')),
    FOREIGN KEY(user_id) REFERENCES users (id)
);

-- One action on all tasks of a user that a filter selects, done in chunks. A chunk changes its tasks, the
-- cursor and the counters in one transaction, so that after a crash the next process continues at the
-- cursor. `total` is how many tasks matched at the start; `refused` counts refusals by reason; `cursor` is
-- the last task considered. Only tasks up to `ceiling` whose first event is not after `last_event` are
-- changed: an id alone does not tell which tasks existed, because a submit may have waited for a lock.
CREATE TABLE bulk_operations (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    action TEXT NOT NULL,
    filter JSONB NOT NULL,
    priority SMALLINT,
    created_by TEXT NOT NULL,
    key_id TEXT NOT NULL,
    idempotency_key TEXT,
    state TEXT DEFAULT 'running' NOT NULL,
    total INTEGER NOT NULL,
    done INTEGER DEFAULT 0 NOT NULL,
    changed INTEGER DEFAULT 0 NOT NULL,
    skipped INTEGER DEFAULT 0 NOT NULL,
    refused JSONB DEFAULT '{}' NOT NULL,
    cursor UUID,
    ceiling UUID,
    last_event BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    worked_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    cancelled_by TEXT,
    PRIMARY KEY (id),
    CONSTRAINT bulk_operations_action_known CHECK (action IN ('cancel', 'reprioritise', 'retry')),
    CONSTRAINT bulk_operations_state_known CHECK (state IN ('cancelled', 'completed', 'running')),
    CONSTRAINT bulk_operations_finished_exactly_when_not_running CHECK ((finished_at IS NULL) = (state = 'running')),
    CONSTRAINT bulk_operations_priority_exactly_where_it_is_set CHECK ((priority IS NOT NULL) = (action = 'reprioritise')),
    CONSTRAINT bulk_operations_counts_not_negative CHECK (least(total, done, changed, skipped) >= 0),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE UNIQUE INDEX bulk_operations_idempotency ON bulk_operations (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX bulk_operations_running ON bulk_operations (user_id, id) WHERE state = 'running';
CREATE INDEX bulk_operations_finished ON bulk_operations (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX bulk_operations_user ON bulk_operations (user_id, id DESC);

-- Equal for failures of the same kind: numbers, ids and quoted text are replaced before hashing.
CREATE FUNCTION error_fingerprint(type text, reason text, error text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN left(md5(concat_ws('|', type, reason,
       regexp_replace(regexp_replace(left(error, 500), '''[^'']*''|"[^"]*"', '?', 'g'),
                      '[0-9a-fA-F-]*[0-9][0-9a-zA-Z-]*', '#', 'g'))), 12);

-- The tasks of a user that a filter selects; a NULL argument does not restrict. Inlined by the planner:
-- lists and bulk operations must select the same tasks, each with a plan of its own.
CREATE FUNCTION selected_tasks(of_user uuid, states text[], of_type text, of_tag text, of_project text, of_source text,
                               made_from timestamptz, made_until timestamptz, titled text, of_dag uuid,
                               ended_from timestamptz, ended_until timestamptz, of_creator text, of_error text, of_lock text,
                               cost_from numeric, cost_until numeric, attempts_from int, of_wait text,
                               of_fingerprint text) RETURNS SETOF tasks
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT t.*
      FROM tasks t
     WHERE t.user_id = of_user
       AND (states IS NULL OR t.state = ANY (states))
       AND (of_type IS NULL OR t.type = of_type)
       AND (of_tag IS NULL OR of_tag = ANY (t.tags))
       AND (of_project IS NULL OR t.project_id = of_project)
       AND (of_source IS NULL OR t.source = of_source)
       AND (made_from IS NULL OR t.created_at >= made_from)
       AND (made_until IS NULL OR t.created_at < made_until)
       AND (titled IS NULL OR strpos(lower(t.title), lower(titled)) > 0)
       AND (of_dag IS NULL OR t.dag_id = of_dag)
       AND (ended_from IS NULL OR t.finished_at >= ended_from)
       AND (ended_until IS NULL OR t.finished_at < ended_until)
       AND (of_creator IS NULL OR t.created_by = of_creator OR split_part(t.created_by, ':', 2) = of_creator)
       AND (of_error IS NULL OR t.failure_reason = of_error OR strpos(lower(t.error), lower(of_error)) > 0)
       AND (of_lock IS NULL OR of_lock = ANY (t.locks))
       AND (cost_from IS NULL OR t.cost_usd >= cost_from)
       AND (cost_until IS NULL OR t.cost_usd < cost_until)
       AND (attempts_from IS NULL OR t.attempts >= attempts_from)
       -- What it waits for, as far as the task itself tells; anything else concerns all tasks that are ready.
       AND (of_wait IS NULL
            OR CASE of_wait
                    WHEN 'approval' THEN t.awaits_budget IS NOT NULL
                    WHEN 'start_at' THEN t.awaits_start
                    WHEN 'dependency' THEN t.state = 'pending' AND t.unmet > 0
                    WHEN 'retry_at' THEN t.state = 'retrying'
                    WHEN 'lock' THEN t.state = 'ready' AND EXISTS (
                         SELECT 1 FROM held_locks h
                          WHERE h.user_id = of_user
                            AND (h.key = ANY (t.locks) OR coalesce(t.lock_paths && h.path_range, false)))
                    ELSE t.state = 'ready' END)
       -- Only dead tasks are hashed, which an index finds.
       AND (of_fingerprint IS NULL
            OR t.state = 'dead_lettered' AND error_fingerprint(t.type, t.failure_reason, t.error) = of_fingerprint)
$$;

-- How an agent is run, by name: its command, environment, network, limits and models. A task copies what it
-- needs when it is created, so a change here concerns later tasks only. Rows are never deleted: a removed profile
-- keeps its name, which may be added again.
CREATE TABLE agent_profiles (
    name TEXT NOT NULL,
    profile JSONB NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    removed_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (name)
);
