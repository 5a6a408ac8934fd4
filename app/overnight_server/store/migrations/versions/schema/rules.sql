-- What a row of the two busiest tables must be, whoever writes it. CHECK constraints and generated
-- columns would say the same, but Postgres reads their words anew for every statement, which for one
-- task takes longer than to write it; a function is read once in a connection's life. What a
-- rule is called stands in the error, as it would for a constraint.

CREATE FUNCTION is_final(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state IN ('cancelled', 'completed', 'dead_lettered');

CREATE FUNCTION raise_check_violation(at_table text, rule text, id uuid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'row % of "%" violates check constraint "%"', id, at_table, rule
        USING ERRCODE = 'check_violation', TABLE = at_table, CONSTRAINT = rule;
END
$$;

CREATE FUNCTION enforce_task_invariants() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    broken text;
BEGIN
    IF TG_OP = 'INSERT' OR NEW.locks IS DISTINCT FROM OLD.locks THEN
        NEW.lock_paths := lock_path_ranges(NEW.user_id, NEW.locks);
    END IF;
    NEW.moved_from := NULL;
    IF TG_OP = 'UPDATE' THEN
        IF NEW.state <> OLD.state THEN
            NEW.moved_from := OLD.state;
            NEW.revision := OLD.revision + 1;
            -- No move is earlier than the one before it, nor than the claim it makes.
            NEW.updated_at := greatest(clock(), OLD.updated_at, NEW.claimed_at);
            -- Whoever moves a task on from asking for money, or ends its claim, cannot forget these.
            IF NEW.state <> 'pending' THEN
                NEW.awaits_budget := NULL;
            END IF;
            IF OLD.token IS NOT NULL AND NEW.token IS NULL THEN
                NEW.reserved_usd := NULL;
                NEW.run_cost_usd := 0;
            END IF;
        END IF;
    END IF;
    broken := CASE
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
    IF broken IS NOT NULL THEN
        PERFORM raise_check_violation('tasks', broken, NEW.id);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER tasks_enforce_invariants BEFORE INSERT OR UPDATE ON tasks
    FOR EACH ROW EXECUTE FUNCTION enforce_task_invariants();

CREATE FUNCTION enforce_lane_invariants() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    broken text;
BEGIN
    NEW.due_at := least(NEW.resets_at, NEW.window_changes_at, NEW.night_ends_at);
    NEW.eligible := NEW.ready > 0 AND NEW.active < NEW.max_active AND NOT NEW.paused AND NOT NEW.window_closed
        AND (NEW.limit_seconds IS NULL OR NEW.used_seconds + NEW.reserved_seconds < NEW.limit_seconds)
        AND (NEW.night_limit_usd IS NULL OR NEW.night_spent_usd + NEW.night_reserved_usd < NEW.night_limit_usd);
    broken := CASE
        WHEN NEW.active < 0 THEN 'lanes_active_not_negative'
        WHEN NEW.ready < 0 THEN 'lanes_ready_not_negative'
        WHEN NEW.waiting < NEW.ready THEN 'lanes_waiting_covers_ready'
        WHEN NEW.reserved_seconds < 0 THEN 'lanes_reserved_not_negative'
        END;
    IF broken IS NOT NULL THEN
        PERFORM raise_check_violation('lanes', broken, NEW.user_id);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER lanes_enforce_invariants BEFORE INSERT OR UPDATE ON lanes
    FOR EACH ROW EXECUTE FUNCTION enforce_lane_invariants();
