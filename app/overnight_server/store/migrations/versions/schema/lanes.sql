-- What keeps lanes and dags true: every statement that changes tasks, users or the ledger also
-- moves the counters, in the same transaction, whoever wrote the statement.

CREATE FUNCTION is_active(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state IN ('claimed', 'running', 'validating');

CREATE FUNCTION is_waiting(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state IN ('created', 'pending', 'ready', 'retrying');

-- Cancelled by somebody, not in consequence of how another task ended; as app/overnight_server/domain/graphs.py has it.
CREATE FUNCTION was_stopped(state text, reason text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN state = 'cancelled'
       AND coalesce(reason NOT IN ('not_needed', 'upstream_cancelled', 'upstream_failed'), true);

-- Whether an edge counts as met, now that its parent stands there; as app/overnight_server/domain/graphs.py has it.
CREATE FUNCTION is_met(condition text, on_unmet text, parent_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE parent_state
           WHEN 'completed' THEN condition <> 'failure' OR on_unmet = 'continue'
           WHEN 'dead_lettered' THEN condition <> 'success' OR on_unmet = 'continue'
           WHEN 'cancelled' THEN condition = 'finished' OR on_unmet = 'continue'
           ELSE false END;

-- Lanes are changed in user order. Whatever changed may have opened the gate for a lane that pools
-- had given up on, so it is parked for nobody afterwards. Our connections join by nested loops only
-- (app/overnight_server/store/db.py): the default plan would scan every lane for a handful of users. To say so again
-- in each function would cost as much as the function.
CREATE FUNCTION count_new_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    strangers int;
BEGIN
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
    SELECT (SELECT count(*) FROM delta) - (SELECT count(*) FROM counted) INTO strangers;
    -- Every user has a lane.
    IF strangers > 0 THEN
        RAISE EXCEPTION 'there is no such user' USING ERRCODE = 'foreign_key_violation', TABLE = 'tasks';
    END IF;

    -- Most tasks are graphs by themselves.
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
           finished_at = CASE WHEN g.open + d.open = 0 THEN clock() END
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

-- Old rows weigh minus one, new rows plus one; what is left is what the statement changed.
CREATE FUNCTION count_moved_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
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
    )
    UPDATE lanes l
       SET active = l.active + d.active,
           ready = l.ready + d.ready,
           waiting = l.waiting + d.waiting,
           reserved_seconds = l.reserved_seconds + d.reserved,
           last_served_at = CASE WHEN d.active > 0 THEN clock() ELSE l.last_served_at END,
           skipped_by_pools = '{}'
      FROM delta d
     WHERE l.user_id = d.user_id;

    -- Most tasks are graphs by themselves.
    IF NOT EXISTS (SELECT FROM new_rows WHERE dag_id <> id OR has_dag_row) THEN
        RETURN NULL;
    END IF;
    UPDATE dags g
       SET open = g.open + d.open,
           completed = g.completed + d.completed,
           dead = g.dead + d.dead,
           cancelled = g.cancelled + d.cancelled,
           stopped = g.stopped + d.stopped,
           finished_at = CASE WHEN g.open + d.open = 0 THEN clock() END
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

CREATE TRIGGER tasks_count_new AFTER INSERT ON tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_new_tasks();
CREATE TRIGGER tasks_count_moved AFTER UPDATE ON tasks
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_moved_tasks();

-- Who goes first when nothing else tells two users apart; as app/overnight_server/domain/plans.py has it.
CREATE FUNCTION plan_weight(tier text) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN array_position(ARRAY['free', 'pro', 'team', 'enterprise'], tier);

-- Every user has a lane, and its limits are the user's columns.
CREATE FUNCTION create_lane() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    this_cycle int := cycle_at(NEW.billing_anchor_at, clock());
BEGIN
    INSERT INTO lanes (user_id, plan_weight, window_changes_at,
                       max_active, max_task_seconds, limit_seconds, cycle, cycle_started_at, resets_at)
    VALUES (NEW.id, plan_weight(NEW.plan_tier), CASE WHEN NEW.window_zone IS NOT NULL THEN to_timestamp(0) END,
            NEW.max_concurrent_agents, NEW.max_task_duration_minutes * 60,
            NEW.monthly_agent_hours_limit * 3600::bigint, this_cycle,
            cycle_boundary(NEW.billing_anchor_at, this_cycle),
            cycle_boundary(NEW.billing_anchor_at, this_cycle + 1));
    RETURN NULL;
END
$$;
CREATE TRIGGER users_create_lane AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION create_lane();

CREATE FUNCTION update_lane_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    UPDATE lanes
       SET plan_weight = plan_weight(NEW.plan_tier),
           -- Nothing of a user who is shut out starts; what runs may end.
           max_active = CASE WHEN NEW.disabled_at IS NULL THEN NEW.max_concurrent_agents ELSE 0 END,
           max_task_seconds = NEW.max_task_duration_minutes * 60,
           limit_seconds = NEW.monthly_agent_hours_limit * 3600::bigint,
           skipped_by_pools = '{}'
     WHERE user_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER users_update_lane_limits
    AFTER UPDATE OF plan_tier, max_concurrent_agents, max_task_duration_minutes, monthly_agent_hours_limit, disabled_at
    ON users
    FOR EACH ROW EXECUTE FUNCTION update_lane_limits();

-- Only Python knows when a window opens; a lane whose window was changed is due at once, and the
-- gate passes over lanes that are due.
CREATE FUNCTION make_lane_window_due() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    UPDATE lanes SET window_changes_at = to_timestamp(0) WHERE user_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER users_make_lane_window_due
    AFTER UPDATE OF window_zone, window_from, window_to, window_at_closing ON users
    FOR EACH ROW EXECUTE FUNCTION make_lane_window_due();

-- A lane's used seconds are the ledger's sum for the lane's current month. Hours that are half, four
-- fifths and wholly used up are told once each.
CREATE FUNCTION charge_lanes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    WITH charged AS (
        UPDATE lanes l
           SET used_seconds = l.used_seconds + entry.seconds,
               skipped_by_pools = '{}'
          FROM (SELECT user_id, period_started_at, sum(seconds) AS seconds
                  FROM new_rows
                 GROUP BY user_id, period_started_at
                 ORDER BY user_id) entry
         WHERE l.user_id = entry.user_id AND l.cycle_started_at = entry.period_started_at
        RETURNING l.user_id, l.used_seconds, l.limit_seconds, l.cycle_started_at, l.resets_at
    )
    INSERT INTO notices (user_id, kind, subject, detail)
    SELECT user_id, 'usage.' || mark, to_char(cycle_started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           jsonb_build_object('percent', mark, 'used_seconds', used_seconds, 'limit_seconds', limit_seconds,
                              'resets_at', resets_at)
      FROM charged
     CROSS JOIN unnest(ARRAY[50, 80, 100]) mark
     WHERE limit_seconds IS NOT NULL
       AND used_seconds > 0
       AND used_seconds * 100 >= limit_seconds * mark
        ON CONFLICT ON CONSTRAINT notices_once DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER ledger_charge_lanes AFTER INSERT ON usage_ledger
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION charge_lanes();
