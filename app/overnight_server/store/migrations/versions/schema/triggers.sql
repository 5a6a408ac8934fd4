-- Whoever ends a graph makes due what was to be set off by it, in the same statement. Once due, a
-- trigger stays due: a retry that makes the graph run again takes nothing back.
CREATE FUNCTION make_dag_triggers_due() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    UPDATE dag_triggers
       SET due_at = clock()
     WHERE dag_id = NEW.id
       AND due_at IS NULL
       AND dropped_at IS NULL
       AND condition IN ('finished', NEW.status);
    RETURN NULL;
END
$$;
CREATE TRIGGER dags_make_triggers_due AFTER UPDATE ON dags
    FOR EACH ROW WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL) EXECUTE FUNCTION make_dag_triggers_due();
