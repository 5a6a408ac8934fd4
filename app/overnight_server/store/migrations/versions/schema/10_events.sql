-- The event log: one row for each change of a task's state, written by the statement that changes it. An
-- illegal change raises an error.

-- `seq` numbers the events of a task without gaps, and `priority` is the task's when the event was written. The partial
-- index holds only what people did. Rows are stored in the order of their ids, so a BRIN index is enough for the sweep
-- that counts new events. Partitioned by the task's id, which begins with the time when the task was created:
-- 13_partitions.sql.
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
    priority SMALLINT DEFAULT 50 NOT NULL,
    PRIMARY KEY (task_id, seq)
)
 PARTITION BY RANGE (task_id);
CREATE TABLE events_default PARTITION OF events DEFAULT;
CREATE INDEX events_by_people ON events (at) WHERE starts_with(actor, 'user:') OR starts_with(actor, 'human:');
CREATE INDEX events_user ON events (user_id, id);
CREATE INDEX events_id ON events USING brin (id) WITH (pages_per_range = 32, autosummarize = on);

-- Who acts: the actor that the transaction set, or else the process.
CREATE FUNCTION current_actor() RETURNS text
LANGUAGE sql STABLE
RETURN coalesce(nullif(current_setting('overnight.actor', true), ''), current_setting('application_name'));

CREATE FUNCTION log_new_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, actor, priority)
    SELECT id, revision, user_id, dag_id, 'task.' || state, NULL, state, epoch, current_actor(), priority FROM new_rows;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_log_new AFTER INSERT ON tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION log_new_tasks();

CREATE FUNCTION raise_illegal_move(task_id uuid, source text, target text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'task % may not move from % to %', task_id, source, target USING ERRCODE = 'check_violation';
END
$$;

CREATE FUNCTION log_moves() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, reason, actor, at, priority)
    SELECT n.id, n.revision, n.user_id, n.dag_id,
           CASE WHEN m.to_state IS NULL THEN raise_illegal_move(n.id, n.moved_from, n.state) ELSE 'task.' || n.state END,
           n.moved_from, n.state, n.epoch, n.failure_reason, current_actor(), n.updated_at,
           n.priority
      FROM new_rows n
      LEFT JOIN legal_moves m ON m.from_state = n.moved_from AND m.to_state = n.state
     WHERE n.moved_from IS NOT NULL
     ORDER BY n.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_log_moves AFTER UPDATE ON tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION log_moves();

-- The ends of graphs, and later changes of their status, numbered together with the events of tasks, so that one stream has both in order. A
-- lone task has none: its own end is the end of its graph.
CREATE TABLE dag_events (
    id BIGINT NOT NULL,
    dag_id UUID NOT NULL,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (dag_id, id)
);
CREATE INDEX dag_events_user ON dag_events (user_id, id);

CREATE FUNCTION log_dag_end() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.dags'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    INSERT INTO dag_events (id, dag_id, user_id, kind, status, at)
    VALUES (nextval('events_id_seq'), NEW.id, NEW.user_id, 'dag.' || NEW.status, NEW.status, clock());
    RETURN NULL;
END
$$;
-- Deferred to the commit, so that the event follows those of the graph's last tasks.
CREATE CONSTRAINT TRIGGER dags_log_end AFTER UPDATE ON dags DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL AND (OLD.finished_at IS NULL OR OLD.status <> NEW.status))
    EXECUTE FUNCTION log_dag_end();

-- The tasks of these users that have events in this part of the log. The event stream of a process calls
-- it once for all its listeners, and each listener then reads its own events under row-level security.
CREATE FUNCTION tasks_with_events(listeners uuid[], after bigint, until bigint)
RETURNS TABLE (user_id uuid, task_id uuid, dag_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT DISTINCT e.user_id, e.task_id, e.dag_id
      FROM events e
     WHERE e.user_id = ANY (listeners) AND e.id > after AND e.id <= until
$$;
