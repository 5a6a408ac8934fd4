-- The audit log: who changed users, keys, pauses, budgets, agents and triggers of graphs. Database triggers
-- write it in the statement that makes the change; nobody else may write it, and nobody may change it. What
-- people do with tasks is in the event log under the same actor names; the view audit_trail shows both.
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

-- Whether a person acts, and not a process or a run.
CREATE FUNCTION is_person_acting() RETURNS boolean
LANGUAGE sql STABLE
RETURN starts_with(current_actor(), 'user:') OR starts_with(current_actor(), 'human:');

-- Record the columns that changed. The first argument of the trigger is the action, the second the column
-- that names the target.
CREATE FUNCTION audit_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    -- Left out: secrets, columns that change without a person, and the content of tasks.
    left_out constant text[] := ARRAY['hash', 'last4', 'last_used_at', 'failure_history', 'last_heartbeat_at', 'graph',
                                    'task', 'secret', 'driven_by', 'driven_until', 'health', 'health_detail',
                                    'checked_at', 'boot_id', 'boot_seen_at', 'full_address', 'old_secret', 'failures',
                                    'blocked_until', 'template', 'last_refused_at', 'last_refusal'];
    before constant jsonb := CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(OLD) - left_out ELSE '{}' END;
    after constant jsonb := to_jsonb(NEW) - left_out;
    changed jsonb;
BEGIN
    IF TG_RELID <> ALL ('{public.agent_profiles, public.agents, public.api_keys, public.audit_findings,
                          public.bulk_operations, public.dag_triggers, public.dags, public.dead_letters,
                          public.http_agents, public.improvement_rules, public.inbox, public.notification_channels,
                          public.pauses, public.schedules, public.usage_ledger, public.webhook_sources,
                          public.users}'::regclass[]) THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    SELECT jsonb_object_agg(key, CASE WHEN TG_OP = 'UPDATE' THEN jsonb_build_array(before -> key, value) ELSE value END)
      INTO changed
      FROM jsonb_each(after)
     WHERE value IS DISTINCT FROM before -> key AND (TG_OP = 'UPDATE' OR value <> 'null');
    IF TG_ARGV[0] = 'agent.registered' THEN
        -- Whose tasks an agent may get is a column of its pool.
        changed := changed || (SELECT jsonb_build_object('serves', coalesce(serves::text, 'everyone'))
                                 FROM pools WHERE name = after ->> 'pool');
    END IF;
    IF changed IS NOT NULL THEN
        INSERT INTO audit_log (actor, key_id, act, user_id, target, detail)
        VALUES (current_actor(), nullif(current_setting('overnight.key_id', true), ''), TG_ARGV[0],
                CASE TG_TABLE_NAME
                    WHEN 'users' THEN (after ->> 'id')::uuid
                    WHEN 'agents' THEN (after ->> 'owner_id')::uuid
                    WHEN 'pauses' THEN CASE WHEN after ->> 'scope' = 'user' THEN (after ->> 'target')::uuid END
                    ELSE (after ->> 'user_id')::uuid END,
                coalesce(after ->> TG_ARGV[1], 'everything'), changed);
    END IF;
    RETURN NULL;
END
$$;

-- Record what a person changes on a task without changing its state, which no event shows: an edit, or
-- the request to stop a run.
CREATE FUNCTION audit_task_edit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    recorded constant text[] := ARRAY['title', 'description', 'priority', 'tags', 'timeout_seconds', 'deadline_at',
                                  'start_at', 'cancel_requested_at', 'payload', 'spec', 'execution'];
    before constant jsonb := to_jsonb(OLD);
    changed jsonb;
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    -- For the content of the task only the fact that it changed is recorded.
    SELECT jsonb_object_agg(key, CASE WHEN key IN ('payload', 'spec', 'execution') THEN '"changed"'
                                      ELSE jsonb_build_array(before -> key, value) END)
      INTO changed
      FROM jsonb_each(to_jsonb(NEW))
     WHERE key = ANY (recorded) AND value IS DISTINCT FROM before -> key;
    IF changed IS NOT NULL THEN
        INSERT INTO audit_log (actor, key_id, act, user_id, target, detail)
        VALUES (current_actor(), nullif(current_setting('overnight.key_id', true), ''), TG_ARGV[0], NEW.user_id, NEW.id, changed);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER users_audit_new AFTER INSERT ON users
    FOR EACH ROW EXECUTE FUNCTION audit_change('user.created', 'id');
CREATE TRIGGER users_audit AFTER UPDATE ON users
    FOR EACH ROW EXECUTE FUNCTION audit_change('user.changed', 'id');
CREATE TRIGGER api_keys_audit_new AFTER INSERT ON api_keys
    FOR EACH ROW EXECUTE FUNCTION audit_change('key.issued', 'id');
CREATE TRIGGER api_keys_audit_revoked AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at) EXECUTE FUNCTION audit_change('key.revoked', 'id');
CREATE TRIGGER api_keys_audit_rotated AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.replaced_by IS DISTINCT FROM NEW.replaced_by) EXECUTE FUNCTION audit_change('key.rotated', 'id');
CREATE TRIGGER pauses_audit_new AFTER INSERT ON pauses
    FOR EACH ROW EXECUTE FUNCTION audit_change('paused', 'target');
CREATE TRIGGER pauses_audit AFTER UPDATE ON pauses
    FOR EACH ROW WHEN (NEW.resumed_at IS NOT NULL) EXECUTE FUNCTION audit_change('resumed', 'target');
CREATE TRIGGER pauses_audit_changed AFTER UPDATE ON pauses
    FOR EACH ROW WHEN (NEW.resumed_at IS NULL) EXECUTE FUNCTION audit_change('paused', 'target');
CREATE TRIGGER dead_letters_audit AFTER UPDATE ON dead_letters
    FOR EACH ROW WHEN (OLD.resolution IS DISTINCT FROM NEW.resolution)
    EXECUTE FUNCTION audit_change('dead_letter.resolved', 'task_id');
CREATE TRIGGER dags_audit_budget AFTER UPDATE OF budget_ceiling_usd ON dags
    FOR EACH ROW WHEN (OLD.budget_ceiling_usd IS DISTINCT FROM NEW.budget_ceiling_usd)
    EXECUTE FUNCTION audit_change('budget.set', 'id');
-- A worker that registers again is a new process; the drain applied to the previous one.
CREATE TRIGGER agents_audit_drain AFTER UPDATE OF drain_requested_at ON agents
    FOR EACH ROW WHEN (OLD.drain_requested_at IS DISTINCT FROM NEW.drain_requested_at AND OLD.joined_at = NEW.joined_at)
    EXECUTE FUNCTION audit_change('worker.drained', 'id');
CREATE TRIGGER agent_profiles_audit_new AFTER INSERT ON agent_profiles
    FOR EACH ROW EXECUTE FUNCTION audit_change('agent_profile.set', 'name');
CREATE TRIGGER agent_profiles_audit AFTER UPDATE ON agent_profiles
    FOR EACH ROW WHEN (NEW.removed_at IS NULL) EXECUTE FUNCTION audit_change('agent_profile.set', 'name');
CREATE TRIGGER agent_profiles_audit_removed AFTER UPDATE ON agent_profiles
    FOR EACH ROW WHEN (NEW.removed_at IS NOT NULL) EXECUTE FUNCTION audit_change('agent_profile.removed', 'name');
CREATE TRIGGER agents_audit_new AFTER INSERT ON agents
    FOR EACH ROW WHEN (NEW.kind = 'pull') EXECUTE FUNCTION audit_change('agent.registered', 'id');
CREATE TRIGGER http_agents_audit_new AFTER INSERT ON http_agents
    FOR EACH ROW EXECUTE FUNCTION audit_change('http_agent.added', 'name');
CREATE TRIGGER http_agents_audit AFTER UPDATE OF url, secret, private_allowed, removed_at ON http_agents
    FOR EACH ROW EXECUTE FUNCTION audit_change('http_agent.changed', 'name');
CREATE TRIGGER agents_audit_again AFTER UPDATE OF joined_at ON agents
    FOR EACH ROW WHEN (NEW.kind = 'pull') EXECUTE FUNCTION audit_change('agent.registered', 'id');
-- Not when a sweep marks a silent agent as offline.
CREATE TRIGGER agents_audit_removed AFTER UPDATE OF status ON agents
    FOR EACH ROW WHEN (NEW.kind = 'pull' AND NEW.status = 'offline' AND OLD.status <> 'offline' AND is_person_acting())
    EXECUTE FUNCTION audit_change('agent.removed', 'id');
-- Not when a trigger subtracts the cost of a run.
CREATE TRIGGER agents_audit_budget AFTER UPDATE OF budget_remaining_usd ON agents
    FOR EACH ROW WHEN (OLD.budget_remaining_usd IS DISTINCT FROM NEW.budget_remaining_usd AND pg_trigger_depth() = 0)
    EXECUTE FUNCTION audit_change('budget.set', 'id');
CREATE TRIGGER dag_triggers_audit_new AFTER INSERT ON dag_triggers
    FOR EACH ROW EXECUTE FUNCTION audit_change('trigger.added', 'id');
CREATE TRIGGER dag_triggers_audit_dropped AFTER UPDATE OF dropped_at ON dag_triggers
    FOR EACH ROW WHEN (OLD.dropped_at IS NULL AND NEW.dropped_at IS NOT NULL)
    EXECUTE FUNCTION audit_change('trigger.dropped', 'id');
CREATE TRIGGER inbox_audit_retried AFTER UPDATE OF outcome ON inbox
    FOR EACH ROW WHEN (OLD.outcome = 'refused' AND NEW.outcome IS NULL) EXECUTE FUNCTION audit_change('inbox.retried', 'id');
CREATE TRIGGER inbox_audit_dropped AFTER UPDATE OF outcome ON inbox
    FOR EACH ROW WHEN (NEW.outcome = 'dropped') EXECUTE FUNCTION audit_change('inbox.dropped', 'id');
-- Only an edit sets the title; only a stop request sets cancel_requested_at without changing the state.
CREATE TRIGGER tasks_audit_edit AFTER UPDATE OF title ON tasks
    FOR EACH ROW WHEN (is_person_acting()) EXECUTE FUNCTION audit_task_edit('task.edited');
CREATE TRIGGER tasks_audit_stop_request AFTER UPDATE OF cancel_requested_at ON tasks
    FOR EACH ROW WHEN (OLD.cancel_requested_at IS NULL AND NEW.cancel_requested_at IS NOT NULL AND OLD.state = NEW.state
                       AND is_person_acting())
    EXECUTE FUNCTION audit_task_edit('task.asked_to_stop');
CREATE TRIGGER ledger_audit_adjustment AFTER INSERT ON usage_ledger
    FOR EACH ROW WHEN (NEW.kind = 'adjustment') EXECUTE FUNCTION audit_change('usage.adjusted', 'id');
CREATE TRIGGER bulk_operations_audit_new AFTER INSERT ON bulk_operations
    FOR EACH ROW EXECUTE FUNCTION audit_change('bulk.started', 'id');
CREATE TRIGGER bulk_operations_audit_cancelled AFTER UPDATE OF state ON bulk_operations
    FOR EACH ROW WHEN (NEW.state = 'cancelled') EXECUTE FUNCTION audit_change('bulk.cancelled', 'id');

-- Everything people did, oldest first. Actors that are people are named `user:…` or `human:…`.
CREATE VIEW audit_trail WITH (security_invoker = true) AS
SELECT at, actor, via, key_id, act, user_id, target, detail
  FROM audit_log
UNION ALL
SELECT at, actor, CASE WHEN starts_with(actor, 'user:') THEN 'overnight-api' ELSE 'overnight-cli' END, NULL, kind, user_id,
       task_id::text,
       jsonb_strip_nulls(jsonb_build_object('from', from_state, 'to', to_state, 'reason', reason))
  FROM events
 WHERE starts_with(actor, 'user:') OR starts_with(actor, 'human:');
