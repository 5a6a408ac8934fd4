-- The tables of the spine; app/overnight_server/store/models.py tells their story.

CREATE TABLE attempts (
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    user_id UUID NOT NULL,
    token UUID NOT NULL,
    pool TEXT NOT NULL,
    agent TEXT NOT NULL,
    bundle UUID,
    granted_seconds INTEGER NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    outcome TEXT,
    spent BOOLEAN DEFAULT false NOT NULL,
    error_class TEXT,
    error TEXT,
    detail TEXT,
    cost_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    tokens_used JSONB DEFAULT '{}' NOT NULL,
    PRIMARY KEY (task_id, epoch),
    CONSTRAINT attempts_outcome_exactly_when_ended CHECK ((ended_at IS NULL) = (outcome IS NULL))
)
 WITH (fillfactor = 80);
CREATE INDEX attempts_claimed ON attempts USING brin (claimed_at);

CREATE TABLE audit_log (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    actor TEXT NOT NULL,
    via TEXT DEFAULT current_setting('application_name') NOT NULL,
    key_id TEXT,
    act TEXT NOT NULL,
    user_id UUID,
    target TEXT NOT NULL,
    detail JSONB DEFAULT '{}' NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX audit_log_at ON audit_log (at);
CREATE INDEX audit_log_user ON audit_log (user_id, at);

CREATE TABLE events (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    task_id UUID NOT NULL,
    seq INTEGER NOT NULL,
    user_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    kind TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    reason TEXT,
    actor TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (task_id, seq)
);
CREATE INDEX events_by_people ON events (at) WHERE starts_with(actor, 'user:') OR starts_with(actor, 'human:');
CREATE INDEX events_user ON events (user_id, id);

CREATE TABLE held_locks (
    user_id UUID NOT NULL,
    key TEXT NOT NULL,
    task_id UUID NOT NULL,
    path_range textrange GENERATED ALWAYS AS (lock_path_range(user_id, key)) STORED,
    PRIMARY KEY (user_id, key),
    CONSTRAINT held_locks_paths_apart EXCLUDE USING gist (path_range WITH &&) WHERE (path_range IS NOT NULL)
);

CREATE TABLE lanes (
    user_id UUID NOT NULL,
    active INTEGER DEFAULT 0 NOT NULL,
    ready INTEGER DEFAULT 0 NOT NULL,
    waiting INTEGER DEFAULT 0 NOT NULL,
    reserved_seconds BIGINT DEFAULT 0 NOT NULL,
    used_seconds NUMERIC(14, 3) DEFAULT 0 NOT NULL,
    max_active INTEGER NOT NULL,
    max_task_seconds INTEGER NOT NULL,
    limit_seconds BIGINT,
    plan_weight SMALLINT DEFAULT 1 NOT NULL,
    paused BOOLEAN DEFAULT false NOT NULL,
    window_closed BOOLEAN DEFAULT false NOT NULL,
    window_changes_at TIMESTAMP WITH TIME ZONE,
    carry_over_until TIMESTAMP WITH TIME ZONE,
    stops_runs_at TIMESTAMP WITH TIME ZONE,
    skipped_by_pools TEXT[] DEFAULT '{}' NOT NULL,
    last_served_at TIMESTAMP WITH TIME ZONE DEFAULT 'epoch' NOT NULL,
    cycle INTEGER NOT NULL,
    cycle_started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    resets_at TIMESTAMP WITH TIME ZONE NOT NULL,
    night_started_at TIMESTAMP WITH TIME ZONE,
    night_ends_at TIMESTAMP WITH TIME ZONE,
    night_spent_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    night_reserved_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    night_limit_usd NUMERIC(18, 6),
    due_at TIMESTAMP WITH TIME ZONE NOT NULL,
    eligible BOOLEAN NOT NULL,
    PRIMARY KEY (user_id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX lanes_due ON lanes (due_at);
CREATE INDEX lanes_pick ON lanes (active, last_served_at, plan_weight DESC) WHERE eligible;

CREATE TABLE legal_moves (
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    PRIMARY KEY (from_state, to_state)
);

CREATE TABLE lock_waits (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    key TEXT NOT NULL,
    holder_id UUID NOT NULL,
    waiter_id UUID NOT NULL,
    waiting INTEGER NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX lock_waits_user ON lock_waits (user_id, id);

CREATE TABLE notices (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    task_id UUID,
    detail JSONB DEFAULT '{}' NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT notices_once UNIQUE (user_id, kind, subject)
);
CREATE INDEX notices_user ON notices (user_id, id);

CREATE TABLE type_durations (
    type TEXT NOT NULL,
    seconds FLOAT NOT NULL,
    recent FLOAT[] DEFAULT '{}' NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (type)
)
 WITH (fillfactor = 50);

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
CREATE UNIQUE INDEX pauses_in_force ON pauses (scope, coalesce(target, '')) WHERE resumed_at IS NULL;

CREATE TABLE spending (
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    night_started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    user_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    usd NUMERIC(18, 6) NOT NULL,
    PRIMARY KEY (task_id, epoch, night_started_at),
    CONSTRAINT spending_not_negative CHECK (usd >= 0)
);
CREATE INDEX spending_night ON spending (user_id, night_started_at);

CREATE TABLE stale_results (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    agent TEXT NOT NULL,
    outcome TEXT NOT NULL,
    result JSONB NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX stale_results_claim ON stale_results (task_id, epoch);

CREATE TABLE sweeps (
    name TEXT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    touched INTEGER,
    PRIMARY KEY (name)
);

CREATE TABLE tasks (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    parent_id UUID,
    spawn_key TEXT,
    has_dag_row BOOLEAN DEFAULT false NOT NULL,
    role TEXT,
    context_refs JSONB,
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
    required_capabilities TEXT[] DEFAULT '{}' NOT NULL,
    locks TEXT[],
    lock_paths textmultirange,
    timeout_seconds INTEGER,
    estimated_cost_usd NUMERIC(18, 6),
    max_cost_usd NUMERIC(18, 6),
    awaits_budget TEXT,
    epoch INTEGER DEFAULT 0 NOT NULL,
    token UUID,
    claimed_by TEXT,
    pool TEXT,
    claimed_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE,
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
    PRIMARY KEY (id),
    FOREIGN KEY(parent_id) REFERENCES tasks (id)
)
 WITH (fillfactor = 75);
CREATE INDEX tasks_active ON tasks (pool) WHERE state IN ('claimed', 'running', 'validating');
CREATE INDEX tasks_awaiting_budget ON tasks (user_id) WHERE awaits_budget IS NOT NULL;
-- Included and no key: Postgres would skip from graph to graph in search of a state, which in a deployment
-- with few graphs seems cheap, and read every task of theirs.
CREATE INDEX tasks_dag ON tasks (dag_id) INCLUDE (state);
CREATE INDEX tasks_deadline ON tasks (deadline_at, id) WHERE deadline_at IS NOT NULL AND state IN ('created', 'pending', 'ready', 'retrying');
CREATE UNIQUE INDEX tasks_idempotency ON tasks (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_ready ON tasks (user_id, sort_key, id) WHERE state = 'ready';
CREATE INDEX tasks_retry ON tasks (retry_at) WHERE state = 'retrying';
CREATE UNIQUE INDEX tasks_spawned ON tasks (parent_id, spawn_key) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_urgent ON tasks (user_id) WHERE state IN ('created', 'pending', 'ready', 'retrying') AND priority < 30;
CREATE INDEX tasks_user_recent ON tasks (user_id, id DESC);

CREATE TABLE usage_ledger (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    task_id UUID,
    epoch INTEGER,
    period_started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    kind TEXT NOT NULL,
    seconds NUMERIC(14, 3) NOT NULL,
    note TEXT,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT usage_ledger_once UNIQUE (task_id, epoch, period_started_at, kind),
    CONSTRAINT usage_ledger_kind_known CHECK (kind IN ('adjustment', 'refund', 'usage')),
    CONSTRAINT usage_ledger_sign_fits_kind CHECK ((kind = 'usage' AND seconds >= 0) OR (kind = 'refund' AND seconds <= 0) OR kind = 'adjustment')
);
CREATE INDEX usage_ledger_user_period ON usage_ledger (user_id, period_started_at);

CREATE TABLE users (
    id UUID DEFAULT gen_random_uuid() NOT NULL,
    name TEXT NOT NULL,
    is_admin BOOLEAN DEFAULT false NOT NULL,
    plan_tier TEXT DEFAULT 'free' NOT NULL,
    max_concurrent_agents INTEGER DEFAULT 1 NOT NULL,
    max_task_duration_minutes INTEGER DEFAULT 30 NOT NULL,
    monthly_agent_hours_limit INTEGER DEFAULT 10,
    on_exhausted TEXT DEFAULT 'reject' NOT NULL,
    max_pending INTEGER,
    max_tasks_per_dag INTEGER,
    window_zone TEXT,
    window_from TIME WITHOUT TIME ZONE,
    window_to TIME WITHOUT TIME ZONE,
    window_at_closing TEXT DEFAULT 'finish' NOT NULL,
    night_budget_usd NUMERIC(18, 6),
    billing_anchor_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    disabled_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT users_plan_tier_known CHECK (plan_tier IN ('enterprise', 'free', 'pro', 'team')),
    CONSTRAINT users_on_exhausted_known CHECK (on_exhausted IN ('hold', 'reject')),
    CONSTRAINT users_concurrency_not_negative CHECK (max_concurrent_agents >= 0),
    CONSTRAINT users_duration_positive CHECK (max_task_duration_minutes > 0),
    CONSTRAINT users_hours_not_negative CHECK (monthly_agent_hours_limit >= 0),
    CONSTRAINT users_window_whole_or_none CHECK (num_nonnulls(window_zone, window_from, window_to) IN (0, 3)),
    CONSTRAINT users_window_has_length CHECK (window_from <> window_to),
    CONSTRAINT users_window_at_closing_known CHECK (window_at_closing IN ('continue', 'finish', 'stop')),
    CONSTRAINT users_night_budget_not_negative CHECK (night_budget_usd >= 0),
    UNIQUE (name)
);
CREATE INDEX idx_users_plan ON users (plan_tier);

CREATE TABLE api_keys (
    id TEXT NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    last4 TEXT NOT NULL,
    scopes TEXT[] DEFAULT '{*}' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    last_used_at TIMESTAMP WITH TIME ZONE,
    lifetime INTERVAL,
    replaced_by TEXT,
    PRIMARY KEY (id),
    FOREIGN KEY(user_id) REFERENCES users (id),
    UNIQUE (hash)
);
CREATE INDEX api_keys_user ON api_keys (user_id);

CREATE TABLE artifacts (
    id UUID NOT NULL,
    task_id UUID NOT NULL,
    user_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    size INTEGER NOT NULL,
    content BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT artifacts_once UNIQUE (task_id, name),
    CONSTRAINT artifacts_kind_known CHECK (kind IN ('bytes', 'json', 'text')),
    FOREIGN KEY(task_id) REFERENCES tasks (id),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX artifacts_user ON artifacts (user_id, id);

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
CREATE INDEX bulk_operations_user ON bulk_operations (user_id, id DESC);

CREATE TABLE dag_triggers (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    is_lone BOOLEAN NOT NULL,
    condition TEXT NOT NULL,
    graph JSONB NOT NULL,
    created_by TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE,
    refusal TEXT,
    refused_at TIMESTAMP WITH TIME ZONE,
    fired_at TIMESTAMP WITH TIME ZONE,
    fired_dag_id UUID,
    dropped_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT dag_triggers_condition_known CHECK (condition IN ('completed', 'failed', 'finished')),
    CONSTRAINT dag_triggers_fired_with_graph CHECK ((fired_at IS NULL) = (fired_dag_id IS NULL)),
    CONSTRAINT dag_triggers_fired_if_due CHECK (fired_at IS NULL OR due_at IS NOT NULL),
    CONSTRAINT dag_triggers_fired_or_dropped CHECK (fired_at IS NULL OR dropped_at IS NULL),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX dag_triggers_dag ON dag_triggers (dag_id);
CREATE INDEX dag_triggers_due ON dag_triggers (due_at) WHERE due_at IS NOT NULL AND fired_at IS NULL AND dropped_at IS NULL;
CREATE INDEX dag_triggers_lone ON dag_triggers (dag_id) WHERE is_lone AND due_at IS NULL AND dropped_at IS NULL;

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

CREATE TABLE dead_letters (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    task_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    user_id UUID NOT NULL,
    failure_history JSONB NOT NULL,
    total_cost_usd NUMERIC(18, 6) NOT NULL,
    poison_pill BOOLEAN DEFAULT false NOT NULL,
    dead_lettered_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    reviewed BOOLEAN DEFAULT false NOT NULL,
    resolution TEXT,
    resolved_at TIMESTAMP WITH TIME ZONE,
    resolved_by TEXT,
    note TEXT,
    PRIMARY KEY (id),
    CONSTRAINT dead_letters_resolution_known CHECK (resolution IN ('cancel', 'modify_and_retry', 'retry')),
    CONSTRAINT dead_letters_resolved_exactly_with_resolution CHECK ((resolution IS NULL) = (resolved_at IS NULL)),
    FOREIGN KEY(task_id) REFERENCES tasks (id),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE UNIQUE INDEX dead_letters_open ON dead_letters (task_id) WHERE resolution IS NULL;
CREATE INDEX dead_letters_user ON dead_letters (user_id, id);

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
CREATE INDEX inbox_waiting ON inbox (user_id, id) WHERE outcome IS NULL;

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

CREATE TABLE agents (
    id TEXT NOT NULL,
    kind TEXT DEFAULT 'celery' NOT NULL,
    pool TEXT NOT NULL,
    capabilities TEXT[] DEFAULT '{}' NOT NULL,
    types TEXT[] DEFAULT '{}' NOT NULL,
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
    PRIMARY KEY (id),
    CONSTRAINT agents_status_known CHECK (status IN ('active', 'draining', 'offline')),
    CONSTRAINT agents_slots_not_negative CHECK (slots >= 0),
    CONSTRAINT agents_outside_have_owners CHECK (num_nonnulls(owner_id, name, claim_ttl_seconds, stale_after_seconds) = CASE kind WHEN 'pull' THEN 4 ELSE 0 END),
    FOREIGN KEY(pool) REFERENCES pools (name),
    FOREIGN KEY(owner_id) REFERENCES users (id)
)
 WITH (fillfactor = 50);
CREATE INDEX agents_draining ON agents (pool) WHERE status = 'draining';
CREATE UNIQUE INDEX agents_of_owner ON agents (owner_id, name);
CREATE INDEX agents_pool ON agents (pool) WHERE status = 'active';

CREATE TABLE task_edges (
    parent_id UUID NOT NULL,
    child_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    user_id UUID NOT NULL,
    condition TEXT DEFAULT 'success' NOT NULL,
    on_unmet TEXT DEFAULT 'cancel' NOT NULL,
    since_epoch INTEGER DEFAULT 0 NOT NULL,
    satisfied_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (parent_id, child_id),
    CONSTRAINT task_edges_not_to_itself CHECK (parent_id <> child_id),
    CONSTRAINT task_edges_condition_known CHECK (condition IN ('failure', 'finished', 'success')),
    CONSTRAINT task_edges_on_unmet_known CHECK (on_unmet IN ('cancel', 'continue')),
    FOREIGN KEY(parent_id) REFERENCES tasks (id),
    FOREIGN KEY(child_id) REFERENCES tasks (id),
    FOREIGN KEY(dag_id) REFERENCES dags (id),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 60);
CREATE INDEX task_edges_child ON task_edges (child_id);
