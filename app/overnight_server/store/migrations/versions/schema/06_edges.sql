-- Dependencies between tasks, and graphs that are submitted when another graph has ended.

-- Whether an edge is met by the state of its parent; equal to app/overnight_server/domain/graphs.py.
CREATE FUNCTION is_met(condition text, on_unmet text, parent_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE parent_state
           WHEN 'completed' THEN condition <> 'failure' OR on_unmet = 'continue'
           WHEN 'dead_lettered' THEN condition <> 'success' OR on_unmet = 'continue'
           WHEN 'cancelled' THEN condition = 'finished' OR on_unmet = 'continue'
           ELSE false END;

-- One dependency. `condition` is how the parent must end; `on_unmet` is what happens to the child if it
-- ends otherwise. `satisfied_at` is set once, and the child's `unmet` is reduced by the edges set in that
-- statement. `since_epoch` is the child's epoch when the edge was added. Edges are
-- deleted with their graph, which they find through its tasks, so there is no index by graph and no foreign key to it.
CREATE TABLE task_edges (
    parent_id UUID NOT NULL,
    child_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    user_id UUID NOT NULL,
    condition TEXT DEFAULT 'success' NOT NULL,
    on_unmet TEXT DEFAULT 'cancel' NOT NULL,
    since_epoch INTEGER DEFAULT 0 NOT NULL,
    satisfied_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (parent_id, child_id),
    CONSTRAINT task_edges_not_to_itself CHECK (parent_id <> child_id),
    CONSTRAINT task_edges_condition_known CHECK (condition IN ('failure', 'finished', 'success')),
    CONSTRAINT task_edges_on_unmet_known CHECK (on_unmet IN ('cancel', 'continue')),
    FOREIGN KEY(parent_id) REFERENCES tasks (id),
    FOREIGN KEY(child_id) REFERENCES tasks (id),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 60);
CREATE INDEX task_edges_child ON task_edges (child_id);

-- A graph that is submitted when another one has ended as `condition` requires. The statement that ends
-- the other graph sets `due_at`; a sweep submits `graph` and sets `fired_at` in one transaction. `is_lone`:
-- the other graph is a lone task without a row in dags, so the sweep reads its events instead. `refusal`
-- is why the last attempt to submit failed; it is repeated.
CREATE TABLE dag_triggers (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    is_lone BOOLEAN NOT NULL,
    condition TEXT NOT NULL,
    graph JSONB NOT NULL,
    created_by TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE,
    refusal TEXT,
    refused_at TIMESTAMP WITH TIME ZONE,
    fired_at TIMESTAMP WITH TIME ZONE,
    fired_dag_id UUID,
    dropped_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT dag_triggers_condition_known CHECK (condition IN ('completed', 'failed', 'finished')),
    CONSTRAINT dag_triggers_fired_with_graph CHECK ((fired_at IS NULL) = (fired_dag_id IS NULL)),
    CONSTRAINT dag_triggers_fired_if_due CHECK (fired_at IS NULL OR due_at IS NOT NULL),
    CONSTRAINT dag_triggers_fired_or_dropped CHECK (fired_at IS NULL OR dropped_at IS NULL),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX dag_triggers_dag ON dag_triggers (dag_id);
CREATE INDEX dag_triggers_due ON dag_triggers (due_at) WHERE due_at IS NOT NULL AND fired_at IS NULL AND dropped_at IS NULL;
CREATE INDEX dag_triggers_lone ON dag_triggers (dag_id) WHERE is_lone AND due_at IS NULL AND dropped_at IS NULL;

-- Make triggers due when their graph has ended. They stay due if a retry makes the graph run again.
CREATE FUNCTION make_dag_triggers_due() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.dags'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    UPDATE dag_triggers
       SET due_at = clock()
     WHERE dag_id = NEW.id
       AND due_at IS NULL
       AND dropped_at IS NULL
       AND condition IN ('finished', NEW.status);
    -- store/after_commit.py logs this notice after the commit. A notice comes with the response to
    -- the statement that ended the graph, so that it costs no round trip.
    RAISE NOTICE 'DAG_FINISHED % % %', NEW.id, NEW.status, NEW.total;
    RETURN NULL;
END
$$;
CREATE TRIGGER dags_make_triggers_due AFTER UPDATE ON dags
    FOR EACH ROW WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL) EXECUTE FUNCTION make_dag_triggers_due();
