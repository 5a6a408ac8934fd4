-- The audit log: who changed what may be done, to whom, and from where. Written by the statement that
-- changes it, so that no code can forget it; nobody may write it otherwise, or change it. What people
-- do with tasks stands in the events, with the same names; audit_trail shows both.

CREATE FUNCTION record_act() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    -- Neither a hash nor what changes by itself belongs into it.
    untold constant text[] := ARRAY['hash', 'last4', 'last_used_at', 'failure_history', 'last_heartbeat_at'];
    before constant jsonb := CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(OLD) - untold ELSE '{}' END;
    after constant jsonb := to_jsonb(NEW) - untold;
    changed jsonb;
BEGIN
    SELECT jsonb_object_agg(key, CASE WHEN TG_OP = 'UPDATE' THEN jsonb_build_array(before -> key, value) ELSE value END)
      INTO changed
      FROM jsonb_each(after)
     WHERE value IS DISTINCT FROM before -> key AND (TG_OP = 'UPDATE' OR value <> 'null');
    IF changed IS NOT NULL THEN
        INSERT INTO audit_log (actor, key_id, act, user_id, target, detail)
        VALUES (acting(), nullif(current_setting('overnight.key_id', true), ''), TG_ARGV[0],
                CASE TG_TABLE_NAME
                    WHEN 'users' THEN (after ->> 'id')::uuid
                    WHEN 'pauses' THEN CASE WHEN after ->> 'scope' = 'user' THEN (after ->> 'target')::uuid END
                    ELSE (after ->> 'user_id')::uuid END,
                coalesce(after ->> TG_ARGV[1], 'everything'), changed);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER users_audit_new AFTER INSERT ON users
    FOR EACH ROW EXECUTE FUNCTION record_act('user.created', 'id');
CREATE TRIGGER users_audit AFTER UPDATE ON users
    FOR EACH ROW EXECUTE FUNCTION record_act('user.changed', 'id');
CREATE TRIGGER api_keys_audit_new AFTER INSERT ON api_keys
    FOR EACH ROW EXECUTE FUNCTION record_act('key.issued', 'id');
CREATE TRIGGER api_keys_audit_revoked AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at) EXECUTE FUNCTION record_act('key.revoked', 'id');
CREATE TRIGGER api_keys_audit_rotated AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.replaced_by IS DISTINCT FROM NEW.replaced_by) EXECUTE FUNCTION record_act('key.rotated', 'id');
CREATE TRIGGER pauses_audit_new AFTER INSERT ON pauses
    FOR EACH ROW EXECUTE FUNCTION record_act('paused', 'target');
CREATE TRIGGER pauses_audit AFTER UPDATE ON pauses
    FOR EACH ROW WHEN (NEW.resumed_at IS NOT NULL) EXECUTE FUNCTION record_act('resumed', 'target');
CREATE TRIGGER pauses_audit_changed AFTER UPDATE ON pauses
    FOR EACH ROW WHEN (NEW.resumed_at IS NULL) EXECUTE FUNCTION record_act('paused', 'target');
CREATE TRIGGER dead_letters_audit AFTER UPDATE ON dead_letters
    FOR EACH ROW WHEN (OLD.resolution IS DISTINCT FROM NEW.resolution)
    EXECUTE FUNCTION record_act('dead_letter.resolved', 'task_id');
CREATE TRIGGER dags_audit_budget AFTER UPDATE OF budget_ceiling_usd ON dags
    FOR EACH ROW WHEN (OLD.budget_ceiling_usd IS DISTINCT FROM NEW.budget_ceiling_usd)
    EXECUTE FUNCTION record_act('budget.set', 'id');
CREATE TRIGGER agents_audit_drain AFTER UPDATE OF drain_requested_at ON agents
    FOR EACH ROW WHEN (OLD.drain_requested_at IS DISTINCT FROM NEW.drain_requested_at)
    EXECUTE FUNCTION record_act('worker.drained', 'id');
CREATE TRIGGER ledger_audit_adjustment AFTER INSERT ON usage_ledger
    FOR EACH ROW WHEN (NEW.kind = 'adjustment') EXECUTE FUNCTION record_act('usage.adjusted', 'id');
CREATE TRIGGER bulk_operations_audit_new AFTER INSERT ON bulk_operations
    FOR EACH ROW EXECUTE FUNCTION record_act('bulk.started', 'id');
CREATE TRIGGER bulk_operations_audit_cancelled AFTER UPDATE OF state ON bulk_operations
    FOR EACH ROW WHEN (NEW.state = 'cancelled') EXECUTE FUNCTION record_act('bulk.cancelled', 'id');
