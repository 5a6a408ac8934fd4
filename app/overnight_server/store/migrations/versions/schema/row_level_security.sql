-- The second wall between users. The first is a condition in every statement; this one holds where
-- such a condition was forgotten: behind it a user's session finds nothing of anybody else, and a
-- session that serves nobody finds nothing at all.

-- Whom this transaction serves; NULL for nobody. Set by Db.acting_for, gone with the transaction.
CREATE FUNCTION current_user_id() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
RETURN nullif(current_setting('overnight.user_id', true), '')::uuid;

-- A table with a user_id is walled by that alone, so that a new one cannot be forgotten. Forced, for
-- the owner too goes by policies; those who work for the whole deployment have one that lets all pass. It
-- is a constant, which the planner takes away: their plans are what they were without walls.
-- BYPASSRLS would do the same, but only a superuser may grant it, and it reaches every database.
DO $walls$
DECLARE
    walled record;
    own text;
BEGIN
    FOR walled IN
        SELECT c.relname AS name, a.attname AS owner_column
          FROM pg_class c
          LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'user_id' AND NOT a.attisdropped
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
           AND (a.attname IS NOT NULL OR c.relname IN ('users', 'pauses', 'stale_results'))
    LOOP
        own := CASE walled.name
            WHEN 'users' THEN 'id = (SELECT current_user_id())'
            -- What stops everybody, or a pool, concerns every user.
            WHEN 'pauses' THEN 'scope <> ''user'' OR target = (SELECT current_user_id())::text'
            -- Read behind the wall of tasks, since policies look with the eyes of whoever asks.
            WHEN 'stale_results' THEN 'EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_id)'
            ELSE 'user_id = (SELECT current_user_id())' END;
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', walled.name);
        EXECUTE format('CREATE POLICY own_rows ON %I TO overnight_app USING (%s) WITH CHECK (%s)', walled.name, own,
                       -- Nobody but an operator stops more than himself.
                       CASE walled.name WHEN 'pauses' THEN 'scope = ''user'' AND target = (SELECT current_user_id())::text'
                                        ELSE own END);
        EXECUTE format('CREATE POLICY all_rows ON %I TO overnight_owner, overnight_admin, overnight_dispatcher, overnight_gate'
                       ' USING (true) WITH CHECK (true)', walled.name);
        EXECUTE format('CREATE POLICY looks_only ON %I FOR SELECT TO overnight_reader USING (true)', walled.name);
    END LOOP;
END
$walls$;

-- What must be known before it is known who asks, or of all users at once, each as narrow as it can
-- be. They look with their owner's eyes.

-- Who holds this key, if it is good: the hash is compared here and never leaves.
CREATE FUNCTION holder_of_key(key_id text, key_hash text)
RETURNS TABLE (user_id uuid, scopes text[], is_admin boolean, use_is_old boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT k.user_id, k.scopes, u.is_admin,
           k.last_used_at IS NULL OR k.last_used_at < clock() - interval '1 minute'
      FROM api_keys k
      JOIN users u ON u.id = k.user_id
     WHERE k.id = key_id
       AND k.hash = key_hash
       AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock())
       AND u.disabled_at IS NULL
$$;

-- Asked again in the update: of many requests at once, one writes.
CREATE FUNCTION record_key_use(key_id text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    UPDATE api_keys
       SET last_used_at = clock()
     WHERE id = key_id
       AND (last_used_at IS NULL OR last_used_at < clock() - interval '1 minute')
$$;

-- Whom a token's subject names: a user's id, or else a name.
CREATE FUNCTION user_by_id_or_name(subject text) RETURNS TABLE (user_id uuid, is_admin boolean, is_disabled boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT u.id, u.is_admin, u.disabled_at IS NOT NULL
      FROM users u
     WHERE u.id = (SELECT subject::uuid WHERE subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
        OR u.name = subject
     ORDER BY u.id::text = subject DESC
     LIMIT 1
$$;

-- How much work waits in the whole deployment: a number, and nobody's rows.
CREATE FUNCTION total_depth() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
RETURN (SELECT coalesce(sum(waiting), 0) FROM lanes);

REVOKE EXECUTE ON FUNCTION holder_of_key, record_key_use, user_by_id_or_name, total_depth FROM PUBLIC;
GRANT EXECUTE ON FUNCTION holder_of_key, record_key_use, user_by_id_or_name TO overnight_app, overnight_admin;
GRANT EXECUTE ON FUNCTION total_depth TO overnight_app, overnight_reader, overnight_admin, overnight_gate, overnight_dispatcher;

-- Whether a claim's token is good, by its digest: whose run it is and the token of the claim itself
-- while it is held, 'superseded' if a later claim holds the task, 'over' if nobody does. Whoever
-- knows no digest learns nothing, not even that there is such a task.
CREATE FUNCTION holder_of_claim(of_task uuid, of_epoch int, digest text)
RETURNS TABLE (standing text, user_id uuid, token uuid)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT CASE WHEN t.token = a.token AND t.expires_at > clock() THEN 'held'
                WHEN t.epoch > a.epoch AND t.token IS NOT NULL THEN 'superseded'
                ELSE 'over' END,
           a.user_id,
           CASE WHEN t.token = a.token AND t.expires_at > clock() THEN a.token END
      FROM attempts a
      JOIN tasks t ON t.id = a.task_id
     WHERE a.task_id = of_task
       AND a.epoch = of_epoch
       AND encode(sha256(convert_to(concat_ws('|', 'overnight-claim', a.task_id, a.epoch, a.token), 'UTF8')), 'hex') = digest
$$;
REVOKE EXECUTE ON FUNCTION holder_of_claim FROM PUBLIC;
GRANT EXECUTE ON FUNCTION holder_of_claim TO overnight_app, overnight_admin, overnight_dispatcher;
