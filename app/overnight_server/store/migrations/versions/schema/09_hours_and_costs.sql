-- Hours and money: the ledger, spending, and notices about both.

-- A message for a user, inserted once per kind and subject even if several transactions decide to at the
-- same time: hours at 50, 80 and 100 %, a task that keeps failing.
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
CREATE INDEX notices_at ON notices (at);

-- Seconds charged or refunded, per attempt and billing month. Rows are only added. The unique constraint
-- makes it impossible to bill one attempt twice.
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

-- Add new entries to lanes whose current month they belong to, and insert a notice when 50, 80 or 100 % of
-- the limit is reached.
CREATE FUNCTION charge_lanes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.usage_ledger'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
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
    SELECT user_id, 'usage.' || percent, to_char(cycle_started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           jsonb_build_object('percent', percent, 'used_seconds', used_seconds, 'limit_seconds', limit_seconds,
                              'resets_at', resets_at)
      FROM charged
     CROSS JOIN unnest(ARRAY[50, 80, 100]) percent
     WHERE limit_seconds IS NOT NULL
       AND used_seconds > 0
       AND used_seconds * 100 >= limit_seconds * percent
        ON CONFLICT ON CONSTRAINT notices_once DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER ledger_charge_lanes AFTER INSERT ON usage_ledger
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION charge_lanes();

-- What one run cost in one night, as reported; it only grows. Database triggers count all other sums (graph, agent,
-- the user's night) from these rows.
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

-- The expected cost of a task's next run: its estimate, but not more than its ceiling leaves.
CREATE FUNCTION next_cost(estimated numeric, ceiling numeric, spent numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN greatest(least(estimated, ceiling - spent), 0);

-- The first budget that is used up, including costs that are not recorded yet. An agent's budget is
-- not checked: an agent without budget gets no new task but finishes those it has.
CREATE FUNCTION exhausted_budget(of_user uuid, of_dag uuid, ceiling numeric, cost numeric, unrecorded_usd numeric) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
    WHEN cost + unrecorded_usd >= ceiling THEN 'task'
    WHEN EXISTS (SELECT 1 FROM dags g WHERE g.id = of_dag AND g.spent_usd + unrecorded_usd >= g.budget_ceiling_usd) THEN 'dag'
    WHEN EXISTS (SELECT 1 FROM lanes l
                  WHERE l.user_id = of_user
                    AND CASE WHEN l.night_ends_at > clock() THEN l.night_spent_usd ELSE 0 END + unrecorded_usd >= l.night_limit_usd)
    THEN 'night' END;

-- The budget for which a task asks a person: the one that stopped its run, or, for a ready task, the graph's or
-- the night's if it cannot pay the next run even when all running tasks give back what they have reserved.
CREATE FUNCTION requested_budget(t tasks, l lanes, g dags) RETURNS text
LANGUAGE sql STABLE
RETURN CASE
    WHEN t.state <> 'ready' THEN t.awaits_budget
    WHEN g.spent_usd >= g.budget_ceiling_usd
         OR next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) > g.budget_ceiling_usd - g.spent_usd THEN 'dag'
    -- A night that is used up is followed by another, so only tasks that cost something ask.
    WHEN next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd) > 0
         AND next_cost(t.estimated_cost_usd, t.max_cost_usd, t.cost_usd)
             > l.night_limit_usd - CASE WHEN l.night_ends_at > clock() THEN l.night_spent_usd ELSE 0 END THEN 'night'
    END;

-- Keep the money reserved for active runs in the counters of the lane and the graph.
CREATE FUNCTION count_reserved_usd() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    difference constant numeric := coalesce(NEW.reserved_usd, 0) - coalesce(OLD.reserved_usd, 0);
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    UPDATE lanes SET night_reserved_usd = night_reserved_usd + difference, skipped_by_pools = '{}' WHERE user_id = NEW.user_id;
    IF NEW.dag_id <> NEW.id OR NEW.has_dag_row THEN
        UPDATE dags SET reserved_usd = reserved_usd + difference WHERE id = NEW.dag_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_count_reserved_usd AFTER UPDATE OF reserved_usd, state ON tasks
    FOR EACH ROW WHEN (OLD.reserved_usd IS DISTINCT FROM NEW.reserved_usd) EXECUTE FUNCTION count_reserved_usd();

-- Add money spent to the graph, the agent and the user's night; the first money of a night starts it.
CREATE FUNCTION count_spending() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    difference numeric := NEW.usd;
BEGIN
    IF TG_RELID <> 'public.spending'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    IF TG_OP = 'UPDATE' THEN
        difference := NEW.usd - OLD.usd;
    END IF;
    UPDATE lanes
       SET night_started_at = NEW.night_started_at,
           night_ends_at = coalesce(night_ends_at, (SELECT ends_at FROM current_night(NEW.user_id))),
           night_spent_usd = night_spent_usd + difference,
           skipped_by_pools = '{}'
     WHERE user_id = NEW.user_id;
    UPDATE dags SET spent_usd = spent_usd + difference WHERE id = NEW.dag_id;
    UPDATE agents g
       SET budget_remaining_usd = g.budget_remaining_usd - difference
      FROM attempts a
     WHERE a.task_id = NEW.task_id AND a.epoch = NEW.epoch
       AND g.id = a.agent AND g.budget_remaining_usd IS NOT NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER spending_count AFTER INSERT OR UPDATE ON spending
    FOR EACH ROW EXECUTE FUNCTION count_spending();

-- Record when the budget of a graph is used up or reserved, and when it is not any more.
CREATE FUNCTION record_graph_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    was_held constant boolean := coalesce(OLD.spent_usd + OLD.reserved_usd >= OLD.budget_ceiling_usd, false);
    is_held constant boolean := coalesce(NEW.spent_usd + NEW.reserved_usd >= NEW.budget_ceiling_usd, false);
BEGIN
    IF TG_RELID <> 'public.dags'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    IF was_held <> is_held THEN
        PERFORM record_hold(NEW.id, NEW.user_id, CASE WHEN is_held THEN 'graph' END, NULL);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER dags_record_hold AFTER UPDATE OF budget_ceiling_usd, spent_usd, reserved_usd ON dags
    FOR EACH ROW EXECUTE FUNCTION record_graph_hold();
