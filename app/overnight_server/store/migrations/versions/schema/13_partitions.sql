-- Partitions of the tables that grow with every run: events and log_chunks.
--
-- A row lies in the partition of its task: an id begins with the time in milliseconds when the task was created, so
-- that the tasks of some days are one range of ids. The rows of one task are in one partition, keys stay unique, and
-- what belongs to a task is found in one partition. A partition whose tasks are gone is dropped as a whole. Rows whose
-- range has no partition go into the DEFAULT partition, so a missing partition never fails an insert; there rows are
-- deleted one by one. docs/decisions/0022-partitions.md says why other tables are not partitioned.
--
-- The functions here change tables, which takes locks that other sessions would wait for. Each gives up after 200 ms and
-- returns 'busy'; a later pass tries again.

-- The smallest id that a task created at this instant can have.
CREATE FUNCTION first_id_at(instant timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (lpad(to_hex(floor(extract(epoch FROM instant) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- When the tasks with this id, or a larger one, were created.
CREATE FUNCTION time_of_id(id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0);

-- The partitions of a table, without the DEFAULT partition: ids from `first_id` up to, but not including, `end_id`.
CREATE FUNCTION partitions_of(of_table text)
RETURNS TABLE (name text, first_id uuid, end_id uuid, first_at timestamptz, end_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT part.relname, bound[1]::uuid, bound[2]::uuid, time_of_id(bound[1]::uuid), time_of_id(bound[2]::uuid)
      FROM pg_inherits i
      JOIN pg_class part ON part.oid = i.inhrelid
     CROSS JOIN LATERAL regexp_match(pg_get_expr(part.relpartbound, part.oid), $re$FROM \('(.+)'\) TO \('(.+)'\)$re$) bound
     WHERE i.inhparent = to_regclass('public.' || quote_ident(of_table)) AND bound IS NOT NULL
     ORDER BY 2
$$;

-- Add a partition for tasks that are created in a period. Returns 'added', 'busy', or 'occupied' if rows of the period
-- are in the DEFAULT partition already or another partition has a part of it.
CREATE FUNCTION add_partition(of_table text, first_at timestamptz, end_at timestamptz) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '200ms'
AS $$
DECLARE
    part constant text := of_table || to_char(first_at AT TIME ZONE 'UTC', '"_"YYYYMMDDHH24');
    is_occupied boolean;
BEGIN
    IF of_table NOT IN ('events', 'log_chunks') THEN
        RAISE EXCEPTION 'table % has no partitions', of_table USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE task_id >= $1 AND task_id < $2)', of_table || '_default')
       INTO is_occupied USING first_id_at(first_at), first_id_at(end_at);
    IF is_occupied THEN
        RETURN 'occupied';
    END IF;
    -- CREATE TABLE … PARTITION OF would lock the whole table; to attach a table locks its DEFAULT partition only.
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)', part, of_table);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                   of_table, part, first_id_at(first_at), first_id_at(end_at));
    RETURN 'added';
EXCEPTION
    WHEN lock_not_available THEN
        RETURN 'busy';
    WHEN duplicate_table OR unique_violation OR invalid_object_definition OR check_violation THEN
        RETURN 'occupied';
END
$$;

-- Drop a partition of events whose tasks are gone. Events of up to `max_kept` tasks that are left move into the DEFAULT
-- partition. Returns 'dropped', 'busy', 'in use' if more tasks are left, or 'gone' if there is no such partition.
CREATE FUNCTION drop_events_partition(of_partition text, max_kept int) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '200ms'
AS $$
DECLARE
    ids record;
BEGIN
    SELECT p.first_id, p.end_id INTO ids FROM partitions_of('events') p WHERE p.name = of_partition;
    IF NOT FOUND THEN
        RETURN 'gone';
    ELSIF (SELECT count(*) > max_kept
             FROM (SELECT FROM tasks WHERE id >= ids.first_id AND id < ids.end_id LIMIT max_kept + 1) t) THEN
        RETURN 'in use';
    END IF;
    LOCK TABLE events IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('ALTER TABLE events DETACH PARTITION %I', of_partition);
    EXECUTE format('INSERT INTO events OVERRIDING SYSTEM VALUE'
                   ' SELECT e.* FROM tasks t JOIN %I e ON e.task_id = t.id WHERE t.id >= $1 AND t.id < $2', of_partition)
      USING ids.first_id, ids.end_id;
    EXECUTE format('DROP TABLE %I', of_partition);
    RETURN 'dropped';
EXCEPTION
    WHEN lock_not_available OR undefined_table THEN
        RETURN 'busy';
END
$$;

-- Delete events of tasks that are gone from a partition that cannot be dropped yet: of `max_tasks` tasks after
-- `after_id`. Returns the last of these tasks, NULL after the last one, and the number of events.
CREATE FUNCTION delete_events_of_gone_tasks(of_partition text, after_id uuid, max_tasks int, OUT last_id uuid, OUT deleted bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM partitions_of('events') p WHERE p.name = of_partition) THEN
        RETURN;
    END IF;
    EXECUTE format('WITH task AS MATERIALIZED ('
                   '    SELECT DISTINCT task_id FROM %1$I WHERE task_id > $1 ORDER BY task_id LIMIT $2'
                   '), gone AS ('
                   '    DELETE FROM %1$I e USING task'
                   '     WHERE e.task_id = task.task_id AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = task.task_id)'
                   '    RETURNING e.seq'
                   ') SELECT (SELECT task_id FROM task ORDER BY task_id DESC LIMIT 1), (SELECT count(*) FROM gone)', of_partition)
       INTO last_id, deleted USING after_id, max_tasks;
END
$$;

-- The runs of a range of tasks whose log's end is kept longer: those that failed lately.
CREATE FUNCTION failed_runs(first_id uuid, end_id uuid, ended_after timestamptz, max_runs int)
RETURNS TABLE (task_id uuid, epoch int)
LANGUAGE sql STABLE
AS $$
    SELECT a.task_id, a.epoch
      FROM attempts a
     WHERE a.task_id >= first_id AND a.task_id < end_id
       AND a.spent AND a.outcome <> 'completed' AND a.ended_at >= ended_after
     LIMIT max_runs
$$;

-- Where the end of a run's log begins: its last `tail_bytes`, but at most 1,000 chunks, so that the statement does not
-- grow with the log of a run that prints a line every second. NULL if there is no end.
CREATE FUNCTION first_seq_of_tail(of_task uuid, of_epoch int, tail_bytes bigint) RETURNS int
LANGUAGE sql STABLE
AS $$
    SELECT min(seq)
      FROM (SELECT seq, sum(bytes) OVER (ORDER BY seq DESC) AS size
              FROM (SELECT c.seq, c.bytes
                      FROM log_chunks c
                     WHERE c.task_id = of_task AND c.epoch = of_epoch AND c.stream <> 'cut'
                     ORDER BY c.seq DESC
                     LIMIT 1000) last) summed
     WHERE size <= tail_bytes
$$;

-- Drop a partition of log_chunks whose logs are older than their retention. What is younger, and the ends of logs of
-- failed runs, move into the DEFAULT partition. Returns 'in use' if that is more than `max_kept_bytes`, else the same as
-- drop_events_partition.
CREATE FUNCTION drop_logs_partition(of_partition text, older_than interval, failures_older_than interval, tail_bytes bigint,
                                    max_kept_bytes bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '200ms'
AS $$
DECLARE
    max_runs constant int := 10000;
    -- The rows to keep: $1 is the retention, $2 to $4 are the failed runs with the beginnings of their tails.
    kept constant text := format('SELECT c.task_id, c.epoch, c.seq, c.user_id, c.at, c.stream, c.lines, c.bytes, c.text, false AS is_tail'
                                 '  FROM %1$I c WHERE c.at >= clock() - $1 AND NOT c.is_tail'
                                 ' UNION ALL '
                                 'SELECT c.task_id, c.epoch, c.seq, c.user_id, c.at, c.stream, c.lines, c.bytes, c.text, true'
                                 '  FROM unnest($2, $3, $4) r (task_id, epoch, first_seq)'
                                 '  JOIN %1$I c ON c.task_id = r.task_id AND c.epoch = r.epoch AND c.seq >= r.first_seq'
                                 ' WHERE c.is_tail OR c.at < clock() - $1', of_partition);
    ids record;
    tails record;
    kept_bytes bigint;
BEGIN
    SELECT p.first_id, p.end_id INTO ids FROM partitions_of('log_chunks') p WHERE p.name = of_partition;
    IF NOT FOUND THEN
        RETURN 'gone';
    END IF;
    SELECT array_agg(r.task_id) AS tasks, array_agg(r.epoch) AS epochs,
           array_agg(first_seq_of_tail(r.task_id, r.epoch, tail_bytes)) AS seqs INTO tails
      FROM failed_runs(ids.first_id, ids.end_id, clock() - failures_older_than, max_runs + 1) r;
    IF cardinality(tails.tasks) > max_runs THEN
        RETURN 'in use';
    END IF;
    EXECUTE format('SELECT coalesce(sum(k.bytes), 0) FROM (%s) k', kept)
       INTO kept_bytes USING older_than, tails.tasks, tails.epochs, tails.seqs;
    IF kept_bytes > max_kept_bytes THEN
        RETURN 'in use';
    END IF;
    LOCK TABLE log_chunks IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('ALTER TABLE log_chunks DETACH PARTITION %I', of_partition);
    EXECUTE format('INSERT INTO log_chunks (task_id, epoch, seq, user_id, at, stream, lines, bytes, text, is_tail) %s', kept)
      USING older_than, tails.tasks, tails.epochs, tails.seqs;
    EXECUTE format('DROP TABLE %I', of_partition);
    RETURN 'dropped';
EXCEPTION
    WHEN lock_not_available OR undefined_table THEN
        RETURN 'busy';
END
$$;

-- Delete the oldest chunks of a partition that are older than their retention; of a run that failed the last
-- `tail_bytes` are kept longer, and marked. Returns how many chunks were deleted or marked.
CREATE FUNCTION delete_old_logs(of_partition text, older_than interval, failures_older_than interval, tail_bytes bigint,
                                max_rows int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    changed bigint;
BEGIN
    IF of_partition <> 'log_chunks_default'
       AND NOT EXISTS (SELECT FROM partitions_of('log_chunks') p WHERE p.name = of_partition) THEN
        RETURN 0;
    END IF;
    EXECUTE format($sql$
        WITH old AS MATERIALIZED (
            SELECT task_id, epoch, seq
              FROM %1$I
             WHERE NOT is_tail AND at < clock() - $1
             ORDER BY at
             LIMIT $4
               FOR UPDATE SKIP LOCKED
        ), old_tail AS MATERIALIZED (
            SELECT task_id, epoch, seq
              FROM %1$I
             WHERE is_tail AND at < clock() - $2
             ORDER BY at
             LIMIT $4
               FOR UPDATE SKIP LOCKED
        ), tails AS MATERIALIZED (
            SELECT a.task_id, a.epoch, first_seq_of_tail(a.task_id, a.epoch, $3) AS first_seq
              FROM (SELECT DISTINCT task_id, epoch FROM old) run
              JOIN attempts a ON a.task_id = run.task_id AND a.epoch = run.epoch
             WHERE a.spent AND a.outcome <> 'completed' AND a.ended_at >= clock() - $2
        ), kept AS (
            UPDATE %1$I c
               SET is_tail = true
              FROM old o
              JOIN tails t ON t.task_id = o.task_id AND t.epoch = o.epoch AND o.seq >= t.first_seq
             WHERE c.task_id = o.task_id AND c.epoch = o.epoch AND c.seq = o.seq
            RETURNING c.seq
        ), gone AS (
            DELETE FROM %1$I c
             USING (SELECT * FROM old_tail
                    UNION ALL
                    SELECT o.* FROM old o
                     WHERE NOT EXISTS (SELECT 1 FROM tails t
                                        WHERE t.task_id = o.task_id AND t.epoch = o.epoch AND o.seq >= t.first_seq)) o
             WHERE c.task_id = o.task_id AND c.epoch = o.epoch AND c.seq = o.seq
            RETURNING c.seq
        )
        SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM gone)$sql$, of_partition)
       INTO changed USING older_than, failures_older_than, tail_bytes, max_rows;
    RETURN changed;
END
$$;
