-- Users and their API keys.

-- The columns, not the plan, are the limits that apply: a plan is only the template that was copied. A user without
-- `artifact_storage_mb` has that of the plan. The
-- night window is given as wall-clock times of a time zone; without a window tasks may start at any
-- time. A disabled user's keys are refused and none of the user's tasks starts. Rows are never deleted.
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
    artifact_storage_mb INTEGER,
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
    CONSTRAINT users_artifact_storage_not_negative CHECK (artifact_storage_mb >= 0),
    CONSTRAINT users_window_whole_or_none CHECK (num_nonnulls(window_zone, window_from, window_to) IN (0, 3)),
    CONSTRAINT users_window_has_length CHECK (window_from <> window_to),
    CONSTRAINT users_window_at_closing_known CHECK (window_at_closing IN ('continue', 'finish', 'stop')),
    CONSTRAINT users_night_budget_not_negative CHECK (night_budget_usd >= 0),
    UNIQUE (name)
);
CREATE INDEX idx_users_plan ON users (plan_tier);

-- Only the hash of a key is stored. `lifetime` is how long the key was issued for; the key that replaces
-- it lives as long. After a rotation (`replaced_by`) both keys are valid until the old one expires. `made_by`
-- names the credential with which the key was made, `key:…`, `token:…` or `no-auth`; it is NULL if an operator
-- made it in the database. A key ends no later than the one it was made with.
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
    made_by TEXT,
    PRIMARY KEY (id),
    FOREIGN KEY(user_id) REFERENCES users (id),
    UNIQUE (hash)
);
CREATE INDEX api_keys_user ON api_keys (user_id);
CREATE INDEX api_keys_made_by ON api_keys (made_by) WHERE made_by IS NOT NULL;

-- Revoke the keys that were made with a revoked key, also those of other users. The update fires this trigger
-- again, so that keys made with those keys follow.
CREATE FUNCTION revoke_made_keys() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.api_keys'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    UPDATE api_keys SET revoked_at = NEW.revoked_at WHERE made_by = 'key:' || NEW.id AND revoked_at IS NULL;
    RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION revoke_made_keys FROM PUBLIC;
CREATE TRIGGER api_keys_revoke_made AFTER UPDATE OF revoked_at ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL) EXECUTE FUNCTION revoke_made_keys();

-- Give the keys that were made with a key to the key that has replaced it; they end no later than that one.
CREATE FUNCTION hand_over_made_keys(old_key text, new_key text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH RECURSIVE made AS (
        SELECT k.id, successor.expires_at AS no_later_than
          FROM api_keys old
          JOIN api_keys successor ON successor.id = old.replaced_by
          JOIN api_keys k ON k.made_by = 'key:' || old.id
         WHERE old.id = old_key AND old.replaced_by = new_key AND k.id <> new_key
        UNION
        SELECT k.id, made.no_later_than
          FROM made
          JOIN api_keys k ON k.made_by = 'key:' || made.id
    )
    UPDATE api_keys k
       SET made_by = CASE WHEN k.made_by = 'key:' || old_key THEN 'key:' || new_key ELSE k.made_by END,
           expires_at = least(k.expires_at, made.no_later_than)
      FROM made
     WHERE k.id = made.id
$$;

-- Breaks ties between users in the fair order; equal to app/overnight_server/domain/plans.py.
CREATE FUNCTION plan_weight(tier text) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN array_position(ARRAY['free', 'pro', 'team', 'enterprise'], tier);
