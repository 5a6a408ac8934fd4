-- Figures for machines: what /metrics serves and what an hour looked like.
--
-- The sweep `metrics` counts each event once: it keeps the id up to which it has counted, and adds what follows. So a
-- settle writes nothing for them, and to read them costs the same however many tasks there are.

-- Sums since the deployment began, and the number of open tasks by state and tier (`depth`, which also decreases).
-- `labels` are the values of the labels that the name has; the sweep limits how many there are.
CREATE TABLE metric_totals (
    name TEXT NOT NULL,
    labels TEXT[] NOT NULL,
    value NUMERIC(24, 6) NOT NULL,
    PRIMARY KEY (name, labels)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- What happened in each hour.
--   tasks_failed            runs that failed, and tasks that were dead-lettered without a run
--   average_latency         seconds from the submit to the end, over the tasks that completed
--   worker_heartbeat_delay  the longest time in seconds since the last heartbeat of a worker that was not offline
--   error_rates_per_agent   the share of each agent's ended runs that failed
--   waits                   how many claims waited how long: the number of each bucket of the logarithm of seconds
--   agents                  claims, starts, ended and failed runs of each agent
-- There are 8,760 rows in a year.
CREATE TABLE task_queue_metrics (
    hour TIMESTAMP WITH TIME ZONE NOT NULL,
    tasks_created BIGINT DEFAULT 0 NOT NULL,
    tasks_completed BIGINT DEFAULT 0 NOT NULL,
    tasks_failed BIGINT DEFAULT 0 NOT NULL,
    tasks_dead_lettered BIGINT DEFAULT 0 NOT NULL,
    tasks_cancelled BIGINT DEFAULT 0 NOT NULL,
    average_latency DOUBLE PRECISION,
    worker_heartbeat_delay DOUBLE PRECISION,
    error_rates_per_agent JSONB DEFAULT '{}' NOT NULL,
    latency_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    cost_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    waits JSONB DEFAULT '{}' NOT NULL,
    agents JSONB DEFAULT '{}' NOT NULL,
    PRIMARY KEY (hour),
    CONSTRAINT task_queue_metrics_whole_hours CHECK (hour = date_trunc('hour', hour, 'UTC')),
    CONSTRAINT task_queue_metrics_not_negative
        CHECK (least(tasks_created, tasks_completed, tasks_failed, tasks_dead_lettered, tasks_cancelled) >= 0)
)
 WITH (fillfactor = 50);

-- Changes of the priority of open tasks that the sweep has not counted yet. Events carry the priority too, but a person
-- may change it between two events.
CREATE TABLE priority_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    state TEXT NOT NULL,
    from_priority SMALLINT NOT NULL,
    to_priority SMALLINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE FUNCTION note_priority_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    INSERT INTO priority_changes (state, from_priority, to_priority) VALUES (OLD.state, OLD.priority, NEW.priority);
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_note_priority AFTER UPDATE OF priority ON tasks
    FOR EACH ROW WHEN (OLD.priority <> NEW.priority) EXECUTE FUNCTION note_priority_change();

-- Remove the changes of priorities and return their sums. Processes may not delete rows themselves.
CREATE FUNCTION take_priority_changes()
RETURNS TABLE (state text, from_priority smallint, to_priority smallint, number bigint)
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH taken AS (
        DELETE FROM priority_changes RETURNING *
    )
    SELECT t.state, t.from_priority, t.to_priority, count(*) FROM taken t GROUP BY t.state, t.from_priority, t.to_priority
$$;

-- For the number of messages that were given up within the last hour.
CREATE INDEX notification_deliveries_dead ON notification_deliveries (ended_at) WHERE state = 'dead';
