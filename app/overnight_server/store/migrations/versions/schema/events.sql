-- The log of moves, written by the statement that moves: no code can forget it, and a move that
-- is not in the table of moves is refused whoever tries it.

-- Who is acting: set for one transaction by whoever acts for a person, else the process itself.
CREATE FUNCTION current_actor() RETURNS text
LANGUAGE sql STABLE
RETURN coalesce(nullif(current_setting('overnight.actor', true), ''), current_setting('application_name'));

CREATE FUNCTION log_new_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, actor)
    SELECT id, revision, user_id, dag_id, 'task.' || state, NULL, state, epoch, current_actor() FROM new_rows;
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
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, reason, actor, at)
    SELECT n.id, n.revision, n.user_id, n.dag_id,
           CASE WHEN m.to_state IS NULL THEN raise_illegal_move(n.id, n.moved_from, n.state) ELSE 'task.' || n.state END,
           n.moved_from, n.state, n.epoch, n.failure_reason, current_actor(), n.updated_at
      FROM new_rows n
      LEFT JOIN legal_moves m ON m.from_state = n.moved_from AND m.to_state = n.state
     WHERE n.moved_from IS NOT NULL
     ORDER BY n.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_log_moves AFTER UPDATE ON tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION log_moves();

-- Which tasks of these users something happened to, in this part of the log: for one who looks on
-- behalf of many, and tells each only to go and read for himself.
CREATE FUNCTION tasks_with_events(listeners uuid[], after bigint, until bigint)
RETURNS TABLE (user_id uuid, task_id uuid, dag_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT DISTINCT e.user_id, e.task_id, e.dag_id
      FROM events e
     WHERE e.user_id = ANY (listeners) AND e.id > after AND e.id <= until
$$;
