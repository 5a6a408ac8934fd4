-- Lock keys of active tasks.

-- One key that an active task holds. The primary key and the exclusion constraint refuse a second
-- holder. Only database triggers write here, in the statement that changes the task, so a lock cannot outlive its
-- claim; since when and until when it is held is on the task.
CREATE TABLE held_locks (
    user_id UUID NOT NULL,
    key TEXT NOT NULL,
    task_id UUID NOT NULL,
    path_range textrange GENERATED ALWAYS AS (lock_path_range(user_id, key)) STORED,
    PRIMARY KEY (user_id, key),
    CONSTRAINT held_locks_paths_apart EXCLUDE USING gist (path_range WITH &&) WHERE (path_range IS NOT NULL)
);

-- How long the first waiting task waited for a lock that was released, and for which holder.
CREATE TABLE lock_waits (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    key TEXT NOT NULL,
    holder_id UUID NOT NULL,
    waiter_id UUID NOT NULL,
    waiting INTEGER NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX lock_waits_user ON lock_waits (user_id, id);

-- Insert the locks of a task that became active. The WHEN conditions of the triggers leave out tasks
-- without locks.
CREATE FUNCTION hold_locks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    INSERT INTO held_locks (user_id, key, task_id)
    SELECT NEW.user_id, key, NEW.id FROM unnest(NEW.locks) key;
    RETURN NULL;
END
$$;

-- Delete the locks of a task that is no longer active, and record how long the next task in order waited:
-- since it was ready or since the lock was taken. Only the first tasks of the queue are read, and only
-- the last waits of each user are kept, so that a long queue costs no more.
CREATE FUNCTION release_locks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    max_waiters constant int := 50;
    max_records constant int := 200;
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    DELETE FROM held_locks WHERE user_id = OLD.user_id AND task_id = OLD.id;
    WITH waiter AS MATERIALIZED (
        SELECT t.id, t.updated_at,
               (SELECT key FROM unnest(OLD.locks) key
                 WHERE key = ANY (t.locks) OR lock_path_range(OLD.user_id, key) && t.lock_paths
                 LIMIT 1) AS key
          FROM (SELECT id, locks, lock_paths, updated_at, sort_key
                  FROM tasks
                 WHERE user_id = OLD.user_id AND state = 'ready' AND id <> OLD.id
                 ORDER BY sort_key, id
                 LIMIT max_waiters) t
         WHERE t.locks && OLD.locks OR t.lock_paths && OLD.lock_paths
         ORDER BY t.sort_key, t.id
    )
    INSERT INTO lock_waits (user_id, key, holder_id, waiter_id, waiting, since)
    SELECT OLD.user_id, key, OLD.id, id, (SELECT count(*) FROM waiter), greatest(updated_at, OLD.claimed_at)
      FROM waiter
     LIMIT 1;
    IF FOUND THEN
        DELETE FROM lock_waits
         WHERE user_id = OLD.user_id
           AND id <= (SELECT id FROM lock_waits WHERE user_id = OLD.user_id ORDER BY id DESC OFFSET max_records LIMIT 1);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER tasks_hold_locks AFTER UPDATE OF state ON tasks
    FOR EACH ROW WHEN (NEW.locks IS NOT NULL AND NEW.token IS NOT NULL AND OLD.token IS NULL)
    EXECUTE FUNCTION hold_locks();
CREATE TRIGGER tasks_hold_locks_on_insert AFTER INSERT ON tasks
    FOR EACH ROW WHEN (NEW.locks IS NOT NULL AND NEW.token IS NOT NULL)
    EXECUTE FUNCTION hold_locks();
CREATE TRIGGER tasks_release_locks AFTER UPDATE OF state ON tasks
    FOR EACH ROW WHEN (OLD.locks IS NOT NULL AND OLD.token IS NOT NULL AND NEW.token IS NULL)
    EXECUTE FUNCTION release_locks();
