-- Lanes: one row per user with the counters and limits that the gate reads.

-- Billing months are counted from the anchor and not from the last reset, so they do not drift.
CREATE FUNCTION cycle_boundary(anchor timestamptz, cycle int) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((anchor AT TIME ZONE 'UTC') + make_interval(months => cycle)) AT TIME ZONE 'UTC';

CREATE FUNCTION cycle_at(anchor timestamptz, instant timestamptz) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT months - (cycle_boundary(anchor, months) > instant)::int
      FROM (SELECT ((extract(year FROM instant AT TIME ZONE 'UTC')
                     - extract(year FROM anchor AT TIME ZONE 'UTC')) * 12
                    + extract(month FROM instant AT TIME ZONE 'UTC')
                    - extract(month FROM anchor AT TIME ZONE 'UTC'))::int AS months) guess
$$;

-- The billing months that an interval touches, and its seconds in each.
CREATE FUNCTION billing_slices(anchor timestamptz, since timestamptz, until timestamptz)
RETURNS TABLE (period_started_at timestamptz, seconds numeric)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT cycle_boundary(anchor, cycle),
           round(extract(epoch FROM least(until, cycle_boundary(anchor, cycle + 1))
                                    - greatest(since, cycle_boundary(anchor, cycle))), 3)
      FROM generate_series(cycle_at(anchor, since), cycle_at(anchor, until)) cycle
$$;

-- The row lock of a lane is the user's mutex: whoever changes tasks of a user locks it first.
--   active, ready, waiting, reserved_seconds  counted from tasks by database triggers
--   used_seconds                              the sum of usage_ledger for the current month
--   window_closed, window_changes_at          the night window, and when it next opens or closes (NULL: no window)
--   carry_over_until                          after closing under `continue`: only tasks created before it may start
--   stops_runs_at                             under `stop`: from then on runs are stopped
--   skipped_by_pools                          pools that found no suitable task here; any change of the lane clears it
--   skipped_by_hash                           a hash of these pools, for the index that the fair order is read from
--   night_*                                   the night in which money was last spent; night_limit_usd includes raises
--   night_used_up                             whether the night's budget is spent or reserved
--   due_at                                    the next instant at which the lane must be refreshed
--   eligible                                  whether the gate may consider this lane at all
--   held_by                                   why none of its ready tasks may start, whoever is served: a pause, a
--                                             disabled user, the window, hours, the night's budget; `carry_over`: only
--                                             tasks created since carry_over_until are held
-- The primary key is no foreign key: it would be checked each time a transaction updates a lane twice,
-- which every settle does. A trigger creates the lane, and users are never deleted.
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
    skipped_by_hash BIGINT NOT NULL,
    last_served_at TIMESTAMP WITH TIME ZONE DEFAULT 'epoch' NOT NULL,
    cycle INTEGER NOT NULL,
    cycle_started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    resets_at TIMESTAMP WITH TIME ZONE NOT NULL,
    night_started_at TIMESTAMP WITH TIME ZONE,
    night_ends_at TIMESTAMP WITH TIME ZONE,
    night_spent_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    night_reserved_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    night_limit_usd NUMERIC(18, 6),
    night_used_up BOOLEAN DEFAULT false NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE NOT NULL,
    eligible BOOLEAN NOT NULL,
    held_by TEXT,
    PRIMARY KEY (user_id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX lanes_due ON lanes (due_at);
-- Lanes that the same pools skip are next to each other, so that a pool passes over all of them at once. The hash is a
-- column: under row-level security the planner does not use the order of an index whose first key is a call of a
-- function that is not leakproof, and would sort all lanes for each claim.
CREATE INDEX lanes_pick ON lanes (skipped_by_hash, active, last_served_at, plan_weight DESC)
    WHERE eligible;

-- When ready tasks of a user (`subject` is the user) or of a graph (`subject` is the graph) could not start for a
-- reason that is not the order among users; `created_from` limits it to tasks created since then. The fairness
-- report leaves these times out. A user without ready tasks has no row.
CREATE TABLE holds (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    subject UUID NOT NULL,
    user_id UUID NOT NULL,
    reason TEXT NOT NULL,
    created_from TIMESTAMP WITH TIME ZONE,
    began_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX holds_open ON holds (subject) WHERE ended_at IS NULL;
CREATE INDEX holds_ended ON holds (ended_at);
CREATE INDEX holds_subject ON holds (subject, began_at);

-- What the gate saw of a lane, apart from its counters: one row for each time in which these columns did not change. A
-- night makes a few rows per user. The history of tasks and nights is derived from it (docs/guides/night-report.md).
CREATE TABLE lane_history (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    since TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    until TIMESTAMP WITH TIME ZONE,
    max_active INTEGER NOT NULL,
    limit_seconds BIGINT,
    window_closed BOOLEAN NOT NULL,
    carry_over_until TIMESTAMP WITH TIME ZONE,
    night_used_up BOOLEAN NOT NULL,
    cycle_started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    resets_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX lane_history_current ON lane_history (user_id) WHERE until IS NULL;
CREATE INDEX lane_history_user ON lane_history (user_id, since);
CREATE INDEX lane_history_ended ON lane_history (until);

-- End the hold of a subject that is in force, if any, and begin another one if there is a reason. Triggers that hold
-- the row of the lane or of the graph call it with the owner's rights; nobody else may write the table.
CREATE FUNCTION record_hold(of_subject uuid, of_user uuid, why text, only_created_from timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE holds SET ended_at = clock() WHERE subject = of_subject AND ended_at IS NULL;
    IF why IS NOT NULL THEN
        INSERT INTO holds (subject, user_id, reason, created_from) VALUES (of_subject, of_user, why, only_created_from);
    END IF;
END
$$;

-- The number of waiting tasks of all users is the sum of these rows. Each connection has a row of its own,
-- named by its process id (0: connections that are closed), so no transaction waits for another one's row,
-- and a submit reads one row per connection instead of one per user.
CREATE TABLE depth_counters (
    backend INTEGER NOT NULL,
    waiting BIGINT NOT NULL,
    PRIMARY KEY (backend)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Add to the row of this connection what a statement changed. Called by triggers.
CREATE FUNCTION count_depth(change bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE depth_counters SET waiting = waiting + change WHERE backend = pg_backend_pid();
    IF NOT FOUND THEN
        INSERT INTO depth_counters AS c (backend, waiting) VALUES (pg_backend_pid(), change)
            ON CONFLICT (backend) DO UPDATE SET waiting = c.waiting + change;
    END IF;
END
$$;

-- Move the rows of closed connections to row 0, and correct the sum if it differs from that of the lanes,
-- which the audit has just checked. Returns the correction. DELETE returns the value that it deleted, so a
-- change that a new connection with the same process id makes meanwhile is kept.
CREATE FUNCTION repair_depth() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    correction bigint;
BEGIN
    WITH closed AS (
        DELETE FROM depth_counters c
         WHERE c.backend <> 0
           AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = c.backend)
        RETURNING c.waiting
    )
    INSERT INTO depth_counters AS c (backend, waiting)
    SELECT 0, sum(waiting) FROM closed HAVING count(*) > 0
        ON CONFLICT (backend) DO UPDATE SET waiting = c.waiting + excluded.waiting;
    SELECT (SELECT coalesce(sum(waiting), 0) FROM lanes) - (SELECT coalesce(sum(waiting), 0) FROM depth_counters)
      INTO correction;
    IF correction <> 0 THEN
        PERFORM count_depth(correction);
    END IF;
    RETURN correction;
END
$$;

-- Raise the error of a CHECK constraint. Used by the two triggers that check rows of `tasks` and `lanes`:
-- Postgres parses CHECK constraints and generated columns anew for every statement, which takes longer
-- than the update of one row. A PL/pgSQL function is parsed once per connection.
CREATE FUNCTION raise_check_violation(at_table text, rule text, id uuid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'row % of "%" violates check constraint "%"', id, at_table, rule
        USING ERRCODE = 'check_violation', TABLE = at_table, CONSTRAINT = rule;
END
$$;

CREATE FUNCTION enforce_lane_invariants() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    violated text;
BEGIN
    IF TG_OP = 'INSERT' OR NEW.skipped_by_pools <> OLD.skipped_by_pools THEN
        NEW.skipped_by_hash := hash_array_extended(NEW.skipped_by_pools, 0);
    END IF;
    NEW.due_at := least(NEW.resets_at, NEW.window_changes_at, NEW.night_ends_at);
    NEW.night_used_up := coalesce(NEW.night_spent_usd + NEW.night_reserved_usd >= NEW.night_limit_usd, false);
    NEW.held_by := CASE
        WHEN NEW.ready = 0 THEN NULL
        WHEN NEW.paused THEN 'pause'
        WHEN NEW.max_active = 0 THEN 'disabled'
        WHEN NEW.window_closed THEN 'window'
        WHEN NEW.used_seconds + NEW.reserved_seconds >= NEW.limit_seconds THEN 'hours'
        WHEN NEW.night_used_up THEN 'night'
        WHEN NEW.carry_over_until IS NOT NULL THEN 'carry_over'
        END;
    NEW.eligible := NEW.ready > 0 AND NEW.active < NEW.max_active AND coalesce(NEW.held_by = 'carry_over', true);
    violated := CASE
        WHEN NEW.active < 0 THEN 'lanes_active_not_negative'
        WHEN NEW.ready < 0 THEN 'lanes_ready_not_negative'
        WHEN NEW.waiting < NEW.ready THEN 'lanes_waiting_covers_ready'
        WHEN NEW.reserved_seconds < 0 THEN 'lanes_reserved_not_negative'
        END;
    IF violated IS NOT NULL THEN
        PERFORM raise_check_violation('lanes', violated, NEW.user_id);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER lanes_enforce_invariants BEFORE INSERT OR UPDATE ON lanes
    FOR EACH ROW EXECUTE FUNCTION enforce_lane_invariants();

-- Begin a new row of a lane's history. Triggers that hold the lane call it with the owner's rights.
CREATE FUNCTION record_lane_history(lane lanes) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE lane_history SET until = greatest(since, clock()) WHERE user_id = lane.user_id AND until IS NULL;
    INSERT INTO lane_history (user_id, max_active, limit_seconds, window_closed, carry_over_until, night_used_up,
                              cycle_started_at, resets_at)
    VALUES (lane.user_id, lane.max_active, lane.limit_seconds, lane.window_closed, lane.carry_over_until,
            lane.night_used_up, lane.cycle_started_at, lane.resets_at);
END
$$;

-- Record when the ready tasks of a user are held, and when they are not any more; and what else the gate sees of the lane.
CREATE FUNCTION record_lane_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.lanes'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    IF NEW.held_by IS DISTINCT FROM OLD.held_by THEN
        PERFORM record_hold(NEW.user_id, NEW.user_id, NEW.held_by,
                            CASE WHEN NEW.held_by = 'carry_over' THEN NEW.carry_over_until END);
    END IF;
    IF (NEW.max_active, NEW.limit_seconds, NEW.window_closed, NEW.carry_over_until, NEW.night_used_up, NEW.resets_at)
       IS DISTINCT FROM
       (OLD.max_active, OLD.limit_seconds, OLD.window_closed, OLD.carry_over_until, OLD.night_used_up, OLD.resets_at) THEN
        PERFORM record_lane_history(NEW);
    END IF;
    RETURN NULL;
END
$$;
-- One trigger for both: each condition is evaluated with every update of a lane.
CREATE TRIGGER lanes_record_hold AFTER UPDATE ON lanes
    FOR EACH ROW WHEN (NEW.held_by IS DISTINCT FROM OLD.held_by
                       OR NEW.window_closed <> OLD.window_closed
                       OR NEW.night_used_up <> OLD.night_used_up
                       OR NEW.max_active <> OLD.max_active
                       OR NEW.resets_at <> OLD.resets_at
                       OR NEW.limit_seconds IS DISTINCT FROM OLD.limit_seconds
                       OR NEW.carry_over_until IS DISTINCT FROM OLD.carry_over_until)
    EXECUTE FUNCTION record_lane_hold();

-- Insert the lane of a new user.
CREATE FUNCTION create_lane() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    this_cycle int := cycle_at(NEW.billing_anchor_at, clock());
BEGIN
    IF TG_RELID <> 'public.users'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    INSERT INTO lanes (user_id, plan_weight, window_changes_at,
                       max_active, max_task_seconds, limit_seconds, cycle, cycle_started_at, resets_at)
    VALUES (NEW.id, plan_weight(NEW.plan_tier), CASE WHEN NEW.window_zone IS NOT NULL THEN to_timestamp(0) END,
            NEW.max_concurrent_agents, NEW.max_task_duration_minutes * 60,
            NEW.monthly_agent_hours_limit * 3600::bigint, this_cycle,
            cycle_boundary(NEW.billing_anchor_at, this_cycle),
            cycle_boundary(NEW.billing_anchor_at, this_cycle + 1));
    PERFORM record_lane_history(l) FROM lanes l WHERE l.user_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER users_create_lane AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION create_lane();

-- Copy changed limits to the lane.
CREATE FUNCTION update_lane_limits() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.users'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    UPDATE lanes
       SET plan_weight = plan_weight(NEW.plan_tier),
           -- No task of a disabled user starts; running tasks may finish.
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

-- Only Python computes when a window opens. A changed window makes the lane due, and the gate ignores
-- due lanes until they are refreshed.
CREATE FUNCTION make_lane_window_due() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.users'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    UPDATE lanes SET window_changes_at = to_timestamp(0) WHERE user_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER users_make_lane_window_due
    AFTER UPDATE OF window_zone, window_from, window_to, window_at_closing ON users
    FOR EACH ROW EXECUTE FUNCTION make_lane_window_due();

-- Copy a changed night budget to the lane. A raise for this night only is lost with it.
CREATE FUNCTION update_night_limit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.users'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    UPDATE lanes SET night_limit_usd = NEW.night_budget_usd, skipped_by_pools = '{}' WHERE user_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER users_update_night_limit AFTER INSERT OR UPDATE OF night_budget_usd ON users
    FOR EACH ROW EXECUTE FUNCTION update_night_limit();

-- The starts of a user's nights around an instant: when the window opens, or at midnight UTC without a
-- window. A night lasts until the next one starts, so every instant belongs to one.
CREATE FUNCTION night_starts(of_user uuid, around timestamptz) RETURNS SETOF timestamptz
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY
    SELECT ((around AT TIME ZONE coalesce(u.window_zone, 'UTC'))::date + days + coalesce(u.window_from, time '00:00'))
               AT TIME ZONE coalesce(u.window_zone, 'UTC')
      FROM users u
     CROSS JOIN generate_series(-2, 2) days
     WHERE u.id = of_user;
EXCEPTION WHEN invalid_parameter_value THEN
    -- A time zone that Postgres does not know must not prevent a settle.
    RETURN QUERY
    SELECT ((around AT TIME ZONE 'UTC')::date + days + time '00:00') AT TIME ZONE 'UTC' FROM generate_series(-2, 2) days;
END
$$;

-- The night to which money spent now belongs. A night that has started keeps its bounds until a
-- transaction that holds the lane ends it; whoever records money does that first.
CREATE FUNCTION current_night(of_user uuid, OUT started_at timestamptz, OUT ends_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(l.night_started_at,
                    (SELECT max(b) FROM night_starts(of_user, clock()) b WHERE b <= clock())),
           coalesce(l.night_ends_at,
                    (SELECT min(b) FROM night_starts(of_user, clock()) b WHERE b > clock()))
      FROM lanes l
     WHERE l.user_id = of_user
$$;
