-- The log of moves, written by the statement that moves: no code can forget it, and a move that
-- is not in the table of moves is refused whoever tries it.

CREATE FUNCTION number_move() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.revision := OLD.revision + 1;
    NEW.updated_at := clock();
    -- Whoever moves a task on from asking for money, or ends its claim, cannot forget these.
    IF NEW.state <> 'pending' THEN
        NEW.awaits_budget := NULL;
    END IF;
    IF OLD.token IS NOT NULL AND NEW.token IS NULL THEN
        NEW.reserved_usd := NULL;
        NEW.run_cost_usd := 0;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER tasks_number_move BEFORE UPDATE ON tasks
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION number_move();

-- Who is acting: set for one transaction by whoever acts for a person, else the process itself.
CREATE FUNCTION acting() RETURNS text
LANGUAGE sql STABLE
RETURN coalesce(nullif(current_setting('overnight.actor', true), ''), current_setting('application_name'));

CREATE FUNCTION log_new_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, actor)
    SELECT id, revision, user_id, dag_id, 'task.' || state, NULL, state, epoch, acting() FROM new_rows;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_log_new AFTER INSERT ON tasks
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION log_new_tasks();

CREATE FUNCTION refuse_move(task_id uuid, source text, target text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'task % may not move from % to %', task_id, source, target USING ERRCODE = 'check_violation';
END
$$;

-- Old and new rows meet by sorting: to join them by hashing, as many would have to be, a switch
-- of the planner would have to be set and reset each time (app/store/db.py), which costs half as much
-- again.
CREATE FUNCTION log_moves() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO events (task_id, seq, user_id, dag_id, kind, from_state, to_state, epoch, reason, actor)
    SELECT n.id, n.revision, n.user_id, n.dag_id,
           CASE WHEN m.to_state IS NULL THEN refuse_move(n.id, n.from_state, n.state) ELSE 'task.' || n.state END,
           n.from_state, n.state, n.epoch, n.failure_reason, acting()
      FROM (SELECT *, lag(state) OVER (PARTITION BY id ORDER BY is_new) AS from_state
              FROM (SELECT true AS is_new, id, revision, user_id, dag_id, state, epoch, failure_reason FROM new_rows
                    UNION ALL
                    SELECT false, id, NULL, NULL, NULL, state, NULL, NULL FROM old_rows) change) n
      LEFT JOIN legal_moves m ON m.from_state = n.from_state AND m.to_state = n.state
     WHERE n.is_new AND n.state <> n.from_state
     ORDER BY n.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_log_moves AFTER UPDATE ON tasks
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION log_moves();

-- Which tasks of these users something happened to, in this part of the log: for one who looks on
-- behalf of many, and tells each only to go and read for himself.
CREATE FUNCTION touched_tasks(listeners uuid[], after bigint, until bigint)
RETURNS TABLE (user_id uuid, task_id uuid, dag_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT DISTINCT e.user_id, e.task_id, e.dag_id
      FROM events e
     WHERE e.user_id = ANY (listeners) AND e.id > after AND e.id <= until
$$;
