-- Row-level security: the second protection of users from each other. The first is a condition on
-- user_id in every statement. Where such a condition was forgotten, a session of overnight_app still
-- sees only rows of the user it acts for, and no rows at all without one.

-- The user for whom this transaction runs, or NULL. Set by Db.acting_for until the transaction ends.
CREATE FUNCTION current_user_id() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
RETURN nullif(current_setting('overnight.user_id', true), '')::uuid;

-- Every table with a user_id gets the policies here, so that a new table cannot be forgotten. FORCE,
-- because the owner is subject to policies only then. Roles that work for all users have a policy with
-- the constant true, which the planner removes, so their plans do not change. BYPASSRLS would do the
-- same, but only a superuser can grant it, and it applies to all databases of the cluster. Partitions have no policies:
-- no role but the owner has a right on them, and whoever uses their table meets its policies.
DO $row_level_security$
DECLARE
    protected record;
    visible text;
BEGIN
    FOR protected IN
        SELECT c.relname AS name
          FROM pg_class c
          LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'user_id' AND NOT a.attisdropped
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
           AND (a.attname IS NOT NULL OR c.relname IN ('agents', 'pauses', 'pools', 'stale_results', 'users'))
    LOOP
        visible := CASE protected.name
            WHEN 'users' THEN 'id = (SELECT current_user_id())'
            -- A user sees neither the workers of the deployment nor the agents of others.
            WHEN 'agents' THEN 'owner_id = (SELECT current_user_id())'
            WHEN 'pools' THEN 'serves = (SELECT current_user_id())'
            -- A pause of everything or of a pool concerns every user.
            WHEN 'pauses' THEN 'scope <> ''user'' OR target = (SELECT current_user_id())::text'
            -- Policies run with the rights of the reader, so the policy of tasks applies here too.
            WHEN 'stale_results' THEN 'EXISTS (SELECT 1 FROM tasks t WHERE t.id = task_id)'
            ELSE 'user_id = (SELECT current_user_id())' END;
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', protected.name);
        EXECUTE format('CREATE POLICY own_rows ON %I TO overnight_app USING (%s) WITH CHECK (%s)', protected.name, visible,
                       -- A user may pause only themselves.
                       CASE protected.name WHEN 'pauses' THEN 'scope = ''user'' AND target = (SELECT current_user_id())::text'
                                           ELSE visible END);
        EXECUTE format('CREATE POLICY all_rows ON %I TO overnight_owner, overnight_admin, overnight_dispatcher, overnight_gate'
                       ' USING (true) WITH CHECK (true)', protected.name);
        EXECUTE format('CREATE POLICY read_all_rows ON %I FOR SELECT TO overnight_reader USING (true)', protected.name);
    END LOOP;
END
$row_level_security$;

-- Functions that run with the owner's rights, because the user is not known yet or the result concerns
-- all users. Each returns as little as possible.

-- The holder of a valid API key. The hash is compared here and never returned.
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

-- Raise an error unless this key of the user is still valid. Transactions of a request whose key was looked
-- up for an earlier request begin with it.
CREATE FUNCTION check_key(key_id text, of_user uuid) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    PERFORM
       FROM api_keys k
       JOIN users u ON u.id = k.user_id
      WHERE k.id = key_id
        AND k.user_id = of_user
        AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > clock())
        AND u.disabled_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the API key is not valid any more' USING ERRCODE = 'OV001';
    END IF;
END
$$;

-- Record when a key was last used, at most once a minute. The condition is checked again here, so that
-- only one of many simultaneous requests writes.
CREATE FUNCTION record_key_use(key_id text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    UPDATE api_keys
       SET last_used_at = clock()
     WHERE id = key_id
       AND (last_used_at IS NULL OR last_used_at < clock() - interval '1 minute')
$$;

-- The open session of a cookie, if it, its key and its user are valid. An unopened link has no session.
CREATE FUNCTION holder_of_session(cookie_hash text)
RETURNS TABLE (session_id uuid, user_id uuid, is_admin boolean, key_id text, token_subject text, scopes text[], secret text,
               expires_at timestamptz, is_new boolean, is_due boolean, use_is_old boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT s.id, s.user_id, u.is_admin, s.key_id, s.token_subject, s.scopes, s.secret, s.expires_at,
           s.hash = cookie_hash AND s.old_hash IS NOT NULL,
           s.rotated_at < clock() - CASE WHEN s.hash = cookie_hash THEN interval '1 hour' ELSE interval '1 minute' END,
           s.last_used_at < clock() - interval '1 minute'
      FROM sessions s
      JOIN users u ON u.id = s.user_id
      LEFT JOIN api_keys k ON k.id = s.key_id
     WHERE (s.hash = cookie_hash OR s.old_hash = cookie_hash)
       AND s.opened_at IS NOT NULL
       AND s.ended_at IS NULL
       AND s.expires_at > clock()
       AND s.last_used_at > clock() - interval '7 days'
       AND (s.key_id IS NULL OR k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock()))
       AND u.disabled_at IS NULL
$$;

-- Open a sign-in link once; NULL if it is not valid, or was opened before.
CREATE FUNCTION open_sign_in_link(link_hash text, cookie_hash text, of_browser text, lifetime interval) RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    UPDATE sessions s
       SET hash = cookie_hash, browser = of_browser, opened_at = clock(), rotated_at = clock(), last_used_at = clock(),
           expires_at = least(clock() + lifetime, s.ends_by)
     WHERE s.hash = link_hash
       AND s.opened_at IS NULL
       AND s.ended_at IS NULL
       AND s.expires_at > clock()
       AND (s.ends_by IS NULL OR s.ends_by > clock())
       AND EXISTS (SELECT 1 FROM users u WHERE u.id = s.user_id AND u.disabled_at IS NULL)
       AND (s.key_id IS NULL
            OR EXISTS (SELECT 1 FROM api_keys k
                        WHERE k.id = s.key_id AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock())))
    RETURNING s.id
$$;

-- The user that a token's subject names, by id or else by name.
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

-- The number of waiting tasks of all users.
CREATE FUNCTION total_depth() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
RETURN (SELECT coalesce(sum(waiting), 0) FROM depth_counters);

-- Check a claim token by its digest. `claim_status` is 'held' with the user and the claim's own token,
-- 'superseded' if a later claim holds the task, or 'over'. A wrong digest returns no row, so a caller
-- cannot even learn whether the task exists. The token of a pull agent's claim ends with the credential with
-- which the agent last asked for work.
CREATE FUNCTION holder_of_claim(of_task uuid, of_epoch int, digest text)
RETURNS TABLE (claim_status text, user_id uuid, token uuid)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT CASE WHEN t.token = a.token AND t.expires_at > clock() THEN 'held'
                WHEN t.epoch > a.epoch AND t.token IS NOT NULL THEN 'superseded'
                ELSE 'over' END,
           a.user_id,
           CASE WHEN t.token = a.token AND t.expires_at > clock() THEN a.token END
      FROM attempts a
      JOIN tasks t ON t.id = a.task_id
      LEFT JOIN agents g ON g.id = a.agent AND g.kind = 'pull'
     WHERE a.task_id = of_task
       AND a.epoch = of_epoch
       AND is_authorized(g.authorized_by, g.authorized_until)
       AND encode(sha256(convert_to(concat_ws('|', 'overnight-claim', a.task_id, a.epoch, a.token), 'UTF8')), 'hex') = digest
$$;

-- The lease of a pull agent's runs. An operator's agent may run tasks of users who do not see the agent.
CREATE FUNCTION lease_of_agent(agent_id text) RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
RETURN (SELECT stale_after_seconds FROM agents WHERE id = agent_id);
