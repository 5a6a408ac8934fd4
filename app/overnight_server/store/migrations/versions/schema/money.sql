-- Money: what runs may cost, what they have cost, and when a user's night begins. Tasks without
-- an estimate and runs without a cost never get past the triggers' conditions.

-- What a task's next run is thought to cost: its estimate, within what its ceiling leaves.
CREATE FUNCTION next_cost(estimated numeric, ceiling numeric, spent numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN greatest(least(estimated, ceiling - spent), 0);

-- When a user's nights begin, around an instant: as the window opens, else as the day begins in
-- UTC. A night lasts from one beginning to the next, so that no money falls between two.
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
    -- A zone that Postgres does not know must not keep a run from being settled.
    RETURN QUERY
    SELECT ((around AT TIME ZONE 'UTC')::date + days + time '00:00') AT TIME ZONE 'UTC' FROM generate_series(-2, 2) days;
END
$$;

-- The night that money spent now belongs to. One that has begun keeps its bounds, and lasts until
-- somebody who holds the lane ends it, as whoever brings money does first.
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

-- The first budget that is used up: by what is recorded, and by news of so much more. Agents are
-- not asked: one that has used up its budget is given no more, but ends what it began.
CREATE FUNCTION exhausted_budget(of_user uuid, of_dag uuid, ceiling numeric, cost numeric, news numeric) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
    WHEN cost + news >= ceiling THEN 'task'
    WHEN EXISTS (SELECT 1 FROM dags g WHERE g.id = of_dag AND g.spent_usd + news >= g.budget_ceiling_usd) THEN 'dag'
    WHEN EXISTS (SELECT 1 FROM lanes l
                  WHERE l.user_id = of_user
                    AND CASE WHEN l.night_ends_at > clock() THEN l.night_spent_usd ELSE 0 END + news >= l.night_limit_usd)
    THEN 'night' END;

-- Money promised to a run is counted with its user and its graph.
CREATE FUNCTION count_reserved_usd() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    more constant numeric := coalesce(NEW.reserved_usd, 0) - coalesce(OLD.reserved_usd, 0);
BEGIN
    UPDATE lanes SET night_reserved_usd = night_reserved_usd + more, skipped_by_pools = '{}' WHERE user_id = NEW.user_id;
    IF NEW.dag_id <> NEW.id OR NEW.has_dag_row THEN
        UPDATE dags SET reserved_usd = reserved_usd + more WHERE id = NEW.dag_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_count_reserved_usd AFTER UPDATE OF reserved_usd, state ON tasks
    FOR EACH ROW WHEN (OLD.reserved_usd IS DISTINCT FROM NEW.reserved_usd) EXECUTE FUNCTION count_reserved_usd();

-- Money spent is counted with the graph, the agent and the user's night; the first of a night
-- begins it.
CREATE FUNCTION count_spending() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    more numeric := NEW.usd;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        more := NEW.usd - OLD.usd;
    END IF;
    UPDATE lanes
       SET night_started_at = NEW.night_started_at,
           night_ends_at = coalesce(night_ends_at, (SELECT ends_at FROM current_night(NEW.user_id))),
           night_spent_usd = night_spent_usd + more,
           skipped_by_pools = '{}'
     WHERE user_id = NEW.user_id;
    UPDATE dags SET spent_usd = spent_usd + more WHERE id = NEW.dag_id;
    UPDATE agents g
       SET budget_remaining_usd = g.budget_remaining_usd - more
      FROM attempts a
     WHERE a.task_id = NEW.task_id AND a.epoch = NEW.epoch
       AND g.id = a.agent AND g.budget_remaining_usd IS NOT NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER spending_count AFTER INSERT OR UPDATE ON spending
    FOR EACH ROW EXECUTE FUNCTION count_spending();

-- Tonight's limit is the user's from the moment it is changed; what was allowed on top is gone.
CREATE FUNCTION update_night_limit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    UPDATE lanes SET night_limit_usd = NEW.night_budget_usd, skipped_by_pools = '{}' WHERE user_id = NEW.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER users_update_night_limit AFTER INSERT OR UPDATE OF night_budget_usd ON users
    FOR EACH ROW EXECUTE FUNCTION update_night_limit();
