-- Retention: the rows of each table that are older than they are kept, and the deletion of ended tasks.
--
-- Processes may not delete rows themselves. The functions here run with the owner's rights, check again what they delete,
-- and skip rows that another transaction has locked. They lock neither lanes nor anything else that a claim needs.

-- Whose rows go by age, besides those of tasks. `old_rows` selects and locks the ctid of at most $2 rows that are older than
-- $1, oldest first; it must use an index. Names and periods are in app/overnight_server/domain/retention.py, and a test
-- compares the two.
CREATE TABLE retention_rules (
    name TEXT NOT NULL,
    table_name TEXT NOT NULL,
    old_rows TEXT NOT NULL,
    PRIMARY KEY (name)
);
INSERT INTO retention_rules (name, table_name, old_rows) VALUES
('inbox', 'inbox', $$
    SELECT ctid FROM inbox WHERE settled_at < clock() - $1 AND outcome <> 'refused'
     ORDER BY settled_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('refused_inbox', 'inbox', $$
    SELECT ctid FROM inbox WHERE settled_at < clock() - $1 AND outcome = 'refused'
     ORDER BY settled_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('stale_results', 'stale_results', $$
    SELECT ctid FROM stale_results WHERE recorded_at < clock() - $1 ORDER BY recorded_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('bulk_operations', 'bulk_operations', $$
    SELECT ctid FROM bulk_operations WHERE finished_at < clock() - $1 ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
-- A notice is inserted once per billing month, so those of the current month say what was reported already.
('notices', 'notices', $$
    SELECT ctid FROM notices n
     WHERE at < clock() - $1
       AND NOT EXISTS (SELECT FROM lanes l WHERE l.user_id = n.user_id AND l.cycle_started_at <= n.at)
     ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('deliveries', 'notification_deliveries', $$
    SELECT ctid FROM notification_deliveries WHERE ended_at < clock() - $1 AND state = 'delivered'
     ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('dead_deliveries', 'notification_deliveries', $$
    SELECT ctid FROM notification_deliveries WHERE ended_at < clock() - $1 AND state = 'dead'
     ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('notifications', 'notifications', $$
    SELECT ctid FROM notifications n
     WHERE at < clock() - $1 AND NOT EXISTS (SELECT FROM notification_deliveries d WHERE d.notification_id = n.id)
     ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('sessions', 'sessions', $$
    SELECT ctid FROM sessions WHERE expires_at < clock() - $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('holds', 'holds', $$
    SELECT ctid FROM holds WHERE ended_at < clock() - $1 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('lane_history', 'lane_history', $$
    SELECT ctid FROM lane_history WHERE until < clock() - $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('received_hooks', 'received_hooks', $$
    SELECT ctid FROM received_hooks WHERE received_at < clock() - $1 ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
-- What a rule has filed stays while its task is open.
('improvement_tasks', 'improvement_tasks', $$
    SELECT ctid FROM improvement_tasks i
     WHERE filed_at < clock() - $1
       AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = i.task_id AND t.state NOT IN ('completed', 'cancelled'))
     ORDER BY filed_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('worker_sessions', 'worker_sessions', $$
    SELECT ctid FROM worker_sessions WHERE ended_at < clock() - $1 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('pauses', 'pauses', $$
    SELECT ctid FROM pauses WHERE resumed_at < clock() - $1 ORDER BY resumed_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
-- The last outcome of a schedule stays.
('schedule_fires', 'schedule_fires', $$
    SELECT ctid FROM schedule_fires f
     WHERE decided_at < clock() - $1 AND status <> 'waiting' AND NOT is_open
       AND EXISTS (SELECT FROM schedule_fires later WHERE later.schedule_id = f.schedule_id AND later.fire_at > f.fire_at)
     ORDER BY decided_at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('hourly_figures', 'task_queue_metrics', $$
    SELECT ctid FROM task_queue_metrics WHERE hour < clock() - $1 ORDER BY hour LIMIT $2 FOR UPDATE SKIP LOCKED$$),
('audit_log', 'audit_log', $$
    SELECT ctid FROM audit_log WHERE at < clock() - $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED$$),
-- Months that are over, of tasks that are gone: the current month is what the lane's hours are counted from.
('ledger', 'usage_ledger', $$
    SELECT e.ctid
      FROM lanes l
     CROSS JOIN LATERAL (
        SELECT ctid FROM usage_ledger u
         WHERE u.user_id = l.user_id
           AND u.period_started_at < least(l.cycle_started_at, clock() - $1)
           AND u.recorded_at < clock() - $1
           AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = u.task_id)
         LIMIT $2
           FOR UPDATE SKIP LOCKED) e
     LIMIT $2$$);

-- Delete at most `max_rows` rows that a rule no longer keeps; return their number.
CREATE FUNCTION delete_old_rows(of_rule text, older_than interval, max_rows int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    rule retention_rules;
    deleted bigint;
BEGIN
    SELECT * INTO STRICT rule FROM retention_rules r WHERE r.name = of_rule;
    EXECUTE format('WITH old AS MATERIALIZED (%s) DELETE FROM %I WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))',
                   rule.old_rows, rule.table_name)
      USING older_than, max_rows;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;

-- Count the rows that a rule no longer keeps, up to `max_rows`. Nothing is locked.
CREATE FUNCTION count_old_rows(of_rule text, older_than interval, max_rows int) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    number bigint;
BEGIN
    EXECUTE (SELECT 'SELECT count(*) FROM (' || replace(r.old_rows, 'FOR UPDATE SKIP LOCKED', '') || ') old'
               FROM retention_rules r WHERE r.name = of_rule)
       INTO number USING older_than, max_rows;
    RETURN number;
END
$$;

-- Skip numbers that rows may have had before the database was restored to an earlier instant: of events, so that a listener
-- which has read on from a later one misses nothing; of what receivers and senders of webhooks know by its number, so that
-- no number stands for two things.
CREATE FUNCTION skip_event_ids(number bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT setval(name, nextval(name) + number)
      FROM unnest(ARRAY['events_id_seq', 'notifications_id_seq', 'notification_deliveries_id_seq', 'received_hooks_id_seq']::regclass[]) name
$$;

-- How long an ended task is kept: by its state, else by the plan of its user, else as all tasks. `days` is
-- {"tasks": 90, "tasks.free": 30, "tasks.cancelled": 14}.
CREATE FUNCTION task_retention(days jsonb, plan text, state text) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN make_interval(days => coalesce(days ->> ('tasks.' || state), days ->> ('tasks.' || plan), days ->> 'tasks')::int);

-- Delete ended tasks with everything that is about them alone; return their number. The caller has locked them, and has
-- found that nothing else needs them. Their events and logs are deleted here only from the default partitions: other
-- partitions are dropped as a whole. The ledger and the notices stay. Artifacts come last, because the usage of their user
-- is locked until the transaction ends.
CREATE FUNCTION delete_tasks(of_tasks uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    deleted bigint;
BEGIN
    IF EXISTS (SELECT FROM tasks WHERE id = ANY (of_tasks) AND NOT is_final(state)) THEN
        RAISE EXCEPTION 'only ended tasks can be deleted' USING ERRCODE = 'check_violation';
    END IF;
    DELETE FROM task_edges WHERE child_id = ANY (of_tasks);
    DELETE FROM dead_letters WHERE task_id = ANY (of_tasks);
    DELETE FROM attempts WHERE task_id = ANY (of_tasks);
    DELETE FROM spending WHERE task_id = ANY (of_tasks);
    DELETE FROM stale_results WHERE task_id = ANY (of_tasks);
    DELETE FROM dag_triggers WHERE dag_id = ANY (of_tasks);
    DELETE FROM events_default WHERE task_id = ANY (of_tasks);
    DELETE FROM log_chunks_default WHERE task_id = ANY (of_tasks);
    DELETE FROM staged_artifacts WHERE task_id = ANY (of_tasks);
    DELETE FROM artifacts WHERE task_id = ANY (of_tasks);
    DELETE FROM tasks WHERE id = ANY (of_tasks);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;

-- Delete graphs with their ended tasks; return the number of tasks. The same holds as for delete_tasks.
CREATE FUNCTION delete_graphs(of_dags uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    deleted constant bigint := delete_tasks(ARRAY(SELECT id FROM tasks WHERE dag_id = ANY (of_dags)));
BEGIN
    DELETE FROM dag_events WHERE dag_id = ANY (of_dags);
    DELETE FROM dag_triggers WHERE dag_id = ANY (of_dags);
    DELETE FROM dags WHERE id = ANY (of_dags);
    RETURN deleted;
END
$$;
