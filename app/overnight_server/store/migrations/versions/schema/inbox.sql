-- The way in for programs that queue work in their own transactions. They have no rights on any
-- table of ours: this function looks with its owner's eyes, and at one thing only, whether the
-- caller holds a key. The key itself is never sent: what is stored is its hash, and what is shown
-- here is a hash of that, so that neither a log of statements nor this function gives it away.
CREATE FUNCTION overnight_inbox_submit(sender_key_id text, proof text, task jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    sender uuid;
    receipt bigint;
BEGIN
    SELECT k.user_id INTO sender
      FROM api_keys k
      JOIN users u ON u.id = k.user_id AND u.disabled_at IS NULL
     WHERE k.id = sender_key_id
       AND encode(sha256(convert_to('overnight inbox ' || k.hash, 'UTF8')), 'hex') = proof
       AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock())
       AND k.scopes && ARRAY['*', 'tasks:write'];
    IF sender IS NULL THEN
        RAISE EXCEPTION 'no valid API key with the scope tasks:write'
            USING ERRCODE = 'invalid_authorization_specification';
    END IF;
    IF jsonb_typeof(task) IS DISTINCT FROM 'object' OR octet_length(task::text) > 1048576 THEN
        RAISE EXCEPTION 'a task is a JSON object of at most 1048576 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO inbox (user_id, key_id, task) VALUES (sender, sender_key_id, task)
    RETURNING id INTO receipt;
    RETURN receipt;
END
$$;
