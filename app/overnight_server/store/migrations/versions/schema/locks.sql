-- Locks are held exactly while their task is claimed, running or validating, which is while it has
-- a token: the statement that moves the state writes and removes them, and the table itself refuses
-- a second holder. Tasks without locks never get past the triggers' conditions.

CREATE FUNCTION hold_locks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO held_locks (user_id, key, task_id)
    SELECT NEW.user_id, key, NEW.id FROM unnest(NEW.locks) key;
    RETURN NULL;
END
$$;

-- Whoever was next in line has waited for this lock since it was ready, or since it was taken.
-- Only the front of the line is looked at, so that a long one costs no more; a line is kept of
-- each wait, the last few of each user's.
CREATE FUNCTION release_locks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    look constant int := 50;
    keep constant int := 200;
BEGIN
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
                 LIMIT look) t
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
           AND id <= (SELECT id FROM lock_waits WHERE user_id = OLD.user_id ORDER BY id DESC OFFSET keep LIMIT 1);
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
